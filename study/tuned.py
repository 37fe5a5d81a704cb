"""
Values that are chosen on validation: an arm's `beta: tuned` is what the runs of another block say.

A block with `split: validation` tries values of `beta` and `beta_old` on bases that no other block uses. A block with
`tuned_on: THAT BLOCK` takes them family by family: of the values whose mean score over the tuning pairs is within
`TIE` of the best, the largest, which is the strongest anchor that costs nothing there.
"""

from dataclasses import dataclass, replace
from statistics import mean

from study.matrix import TUNED, Block, Matrix, Run
from study.tables import Tables


TIE = 0.01  # pass@1
KEYS = ("beta", "beta_old")


@dataclass(frozen=True)
class Choice:
    """
    A value that a tuning block has chosen.

    Attributes:
        block, family, key (`str`): What it was chosen for.
        by (`str`): The score that chose: `pass@1`, or `proxy`, the reward itself.
        scores (`dict[float, float]`): Its mean on validation over the pairs, by value.
        value (`float`): The choice.
    """

    block: str
    family: str
    key: str
    by: str
    scores: dict[float, float]
    value: float


def choose(block: Block, family: str, key: str, tables: Tables) -> Choice | None:
    """The choice of a tuning block; `None` until every run that tries a value has ended, or where none does."""
    tried: dict[float, list] = {}
    for run in block.runs:
        if run.key.family == family and run.recipe.get(key):
            tried.setdefault(run.recipe[key], []).append(tables.runs.get(run.key))
    if not tried or any(row is None for rows in tried.values() for row in rows):
        return None
    scores = {value: mean(row[block.tuned_by] for row in rows) for value, rows in sorted(tried.items())}
    best = max(scores.values())
    chosen = max(value for value in scores if scores[value] >= best - TIE)
    return Choice(block.name, family, key, block.tuned_by, scores, chosen)


def choices(matrix: Matrix, tables: Tables) -> list[Choice]:
    """All that have been made."""
    blocks = [block for block in matrix.blocks if block.tunes]
    found = (choose(block, family, key, tables) for block in blocks for family in block.families for key in KEYS)
    return [choice for choice in found if choice is not None]


def with_choices(matrix: Matrix, whole: Matrix, tables: Tables) -> Matrix:
    """
    A matrix with the values that have been chosen; runs whose value has not been chosen still wait.

    Args:
        matrix ([`~study.matrix.Matrix`]): Whole or a selection.
        whole ([`~study.matrix.Matrix`]): With the tuning blocks.
        tables ([`~study.tables.Tables`]): The runs that have ended.
    """
    values = {(choice.block, choice.family, choice.key): choice.value for choice in choices(whole, tables)}

    def known(block: Block, run: Run) -> Run:
        recipe = {
            name: values.get((block.tuned_on, run.key.family, name), value) if value == TUNED else value
            for name, value in run.recipe.items()
        }
        return replace(run, recipe=recipe)

    blocks = (replace(block, runs=tuple(known(block, run) for run in block.runs)) for block in matrix.blocks)
    return replace(matrix, blocks=tuple(blocks))
