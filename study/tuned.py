"""
Values that are chosen on validation: an arm's `beta: tuned` is what the runs of another block say.

A block with `split: validation` tries values of `beta` and `beta_old` on bases that no other block uses. A block with
`tuned_on: THAT BLOCK` takes them family by family, by the rule of the other's `tuned_by`:

- `pass@1` or `proxy` (the reward itself): of the values whose mean over the tuning runs is within `TIE` of the best,
  the largest, which is the strongest anchor that costs nothing there;
- `gain`: the smallest value at which pass@1 ends at most `STILL` above the base's, on average; the largest if none is.

The mean is over all arms that try the value. `tuned_own` is the choice of those tuning runs alone that are the arm
itself, but for the value; an arm whose own choice is that of all is left out, because another arm is the same.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from study.matrix import OF_THE_RUN, OWN, Block, Matrix, Run
from study.tables import Tables


TIE = 0.01  # of the score
STILL = 0.02  # pass@1
KEYS = ("beta", "beta_old")


class Choice(NamedTuple):
    """A value that a tuning block has chosen for a family and a key, and the mean scores by value."""

    block: str
    family: str
    key: str
    by: str
    scores: dict[float, float]
    value: float


def choose(block: Block, family: str, key: str, tables: Tables, own: dict | None = None) -> Choice | None:
    """
    The choice of a tuning block; `None` until every run that tries a value has ended, or where none does. With the
    recipe of an arm as `own`: of the runs that have its keys.
    """

    def others(recipe: dict) -> dict:
        return {name: value for name, value in recipe.items() if name not in (key, *OF_THE_RUN)}

    runs = [run for run in block.runs if run.key.family == family and run.recipe.get(key)]
    runs = [run for run in runs if own is None or others(run.recipe) == others(own)]
    if not runs or any(run.key not in tables.runs.index for run in runs):
        return None
    rows = tables.runs.loc[[run.key for run in runs]].assign(gain=lambda rows: rows["pass@1"] - rows["base_pass@1"])
    scores = rows[block.tuned_by].groupby([run.recipe[key] for run in runs]).mean().round(12)
    if block.tuned_by == "gain":
        chosen = min(scores.index[scores <= STILL], default=scores.index.max())
    else:
        chosen = scores.index[scores >= scores.max() - TIE].max()
    return Choice(block.name, family, key, block.tuned_by, scores.to_dict(), float(chosen))


def choices(matrix: Matrix, tables: Tables) -> list[Choice]:
    """All that have been made."""
    blocks = [block for block in matrix.blocks if block.tunes]
    found = (choose(block, family, key, tables) for block in blocks for family in block.families for key in KEYS)
    return [choice for choice in found if choice is not None]


def with_choices(matrix: Matrix, whole: Matrix, tables: Tables) -> Matrix:
    """A matrix, or a selection, with the values that the whole one's tuning blocks have chosen; other runs wait."""
    tuning = {block.name: block for block in whole.blocks}

    def known(block: Block, run: Run) -> Iterator[Run]:
        recipe, family = dict(run.recipe), block.tuned_family or run.key.family
        for key in run.waits:
            common, own = (choose(tuning[block.tuned_on], family, key, tables, of) for of in (None, run.recipe))
            if recipe[key] == OWN and own and common and own.value == common.value:
                return
            if choice := own if recipe[key] == OWN else common:
                recipe[key] = choice.value
        yield replace(run, recipe=recipe)

    runs = {block: tuple(new for run in block.runs for new in known(block, run)) for block in matrix.blocks}
    return Matrix(tuple(replace(block, runs=known_now) for block, known_now in runs.items()))
