"""
Values that are chosen on validation: an arm's `beta: tuned` is what the runs of another block say.

A block with `split: validation` tries values of `beta` and `beta_old` on bases that no other block uses. A block with
`tuned_on: THAT BLOCK` takes them family by family, by the rule of the other's `tuned_by`:

- `pass@1` or `proxy` (the reward itself): of the values whose mean over the tuning runs is within `TIE` of the best,
  the largest, which is the strongest anchor that costs nothing there;
- `gain`: the smallest value at which pass@1 ends at most `STILL` above the base's, on average; the largest if none is;
- `reward`: the value with the highest mean reward of the last `LATE` steps of training.

The mean is over all arms that try the value. `tuned_own` is the choice of those tuning runs alone that are the arm
itself, but for the value; an arm whose own choice is that of all is left out, because another arm is the same.
"""

from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from study.matrix import KEYS_OF_THE_RUN, OWN, Block, Matrix, PlannedRun, RunKey
from study.tables import Tables


TIE = 0.01  # of the score
STILL = 0.02  # pass@1
LATE = 20  # steps
COEFFICIENTS = ("beta", "beta_old")


class TunedValue(NamedTuple):
    """A value that a tuning block has chosen for a family and a key, and the mean scores by value."""

    block: str
    family: str
    key: str
    by: str
    scores: dict[float, float]
    value: float


def choose(block: Block, family: str, key: str, tables: Tables, own: dict | None = None) -> TunedValue | None:
    """
    Choose the value of a key for a family.

    Args:
        block (`Block`): The tuning block.
        family (`str`), key (`str`): What the value is for.
        tables (`Tables`): The rows of its runs.
        own (`dict`, *optional*): The recipe of an arm: then of the runs that have its keys alone.

    Returns:
        `TunedValue` or `None`: `None` until every run that tries a value has ended, or where none does.
    """

    def other_keys(recipe: dict) -> dict:
        return {name: value for name, value in recipe.items() if name != key and name not in KEYS_OF_THE_RUN}

    runs = [run for run in block.runs if run.key.family == family and run.recipe.get(key)]
    if own is not None:
        runs = [run for run in runs if other_keys(run.recipe) == other_keys(own)]
    if not runs or any(run.key not in tables.runs.index for run in runs):
        return None
    values = [run.recipe[key] for run in runs]
    scores = _scores(block.tuned_by, [run.key for run in runs], tables).groupby(values).mean().round(12)
    if block.tuned_by == "gain":
        value = min(scores.index[scores <= STILL], default=scores.index.max())
    elif block.tuned_by == "reward":
        value = scores.idxmax()
    else:
        value = scores.index[scores >= scores.max() - TIE].max()
    return TunedValue(block.name, family, key, block.tuned_by, scores.to_dict(), float(value))


def _scores(tuned_by: str, keys: list[RunKey], tables: Tables) -> pd.Series:
    """Return the score of each run by which values are chosen."""
    if tuned_by == "reward":
        return pd.Series([float(tables.curves.loc[[key], "reward"].tail(LATE).mean()) for key in keys])
    rows = tables.runs.loc[keys].reset_index(drop=True)
    if tuned_by == "gain":
        return rows["pass@1"] - rows["base_pass@1"]
    return rows[tuned_by]


def choices(matrix: Matrix, tables: Tables) -> list[TunedValue]:
    """List all choices that have been made."""
    found = []
    for block in matrix.blocks:
        if not block.tunes:
            continue
        for family in block.families:
            for key in COEFFICIENTS:
                choice = choose(block, family, key, tables)
                if choice is not None:
                    found.append(choice)
    return found


def with_choices(matrix: Matrix, whole: Matrix, tables: Tables) -> Matrix:
    """
    Fill in the values that have been chosen; other runs keep their open keys.

    Args:
        matrix (`Matrix`): The matrix, or a selection.
        whole (`Matrix`): The whole one, which has the tuning blocks.
        tables (`Tables`): The rows of their runs.
    """
    tuning = {block.name: block for block in whole.blocks}
    blocks = []
    for block in matrix.blocks:
        runs = [_with_choice(run, block, tuning, tables) for run in block.runs]
        blocks.append(replace(block, runs=tuple(run for run in runs if run is not None)))
    return Matrix(tuple(blocks))


def _with_choice(run: PlannedRun, block: Block, tuning: dict[str, Block], tables: Tables) -> PlannedRun | None:
    """Fill in the chosen values of a run; `None` for an arm whose own choice is that of all."""
    recipe = dict(run.recipe)
    family = block.tuned_family or run.key.family
    for key in run.open_keys:
        choice = choose(tuning[block.tuned_on], family, key, tables)
        if recipe[key] == OWN:
            of_all = choice
            choice = choose(tuning[block.tuned_on], family, key, tables, own=run.recipe)
            if choice is not None and of_all is not None and choice.value == of_all.value:
                return None
        if choice is not None:
            recipe[key] = choice.value
    return replace(run, recipe=recipe)
