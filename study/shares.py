"""How much of another arm's score B keeps, by Fieller's interval; B has a different objective from the others."""

from dataclasses import dataclass
from itertools import product

from eval.analysis.statistics import Estimate
from study.hierarchical import resample
from study.matrix import Block
from study.per_prompt import finished, of_bases, of_runs
from study.scores import BASE
from study.tables import Tables


SHARES = (0.8, 0.9)  # of another arm's score, for B to have kept most of it


@dataclass(frozen=True)
class Share:
    """
    How much of another arm's score B keeps.

    Attributes:
        of (`str`): `score` or `gain over base`.
        ratio (`Estimate` or `None`): B's by the other's; `None` where the other's is not above 0.
    """

    block: str
    family: str
    arm: str
    reference: str
    of: str
    ratio: Estimate | None
    pairs: int

    def verdict(self, share: float) -> str:
        """Whether at least this share is kept: `met`, `not met`, or `undecided`, by the 95 % interval."""
        if self.ratio is None or self.ratio.low != self.ratio.low:
            return "undecided"
        return "met" if self.ratio.low >= share else "not met" if self.ratio.high < share else "undecided"


def shares(block: Block, tables: Tables) -> list[Share]:
    """B's part of the score of every arm with a moving reference, and of its gain over base; families in which both
    have runs."""
    found = []
    for family in block.families:
        runs = {arm: keys for arm in block.arms if (keys := finished(block, tables, family, arm))}
        variant = {arm: tables.runs[next(iter(keys.values()))]["variant"] for arm, keys in runs.items()}
        for b, other in product(runs, runs):
            if variant[b] != "B" or variant[other] not in ("A", "C") or not runs[b].keys() & runs[other].keys():
                continue
            values = {arm: of_runs(tables, runs[arm]) for arm in (b, other)}
            resampled = resample({**values, BASE: of_bases(tables, family, runs[b])})
            for of, base in (("score", {}), ("gain over base", {BASE: -1})):
                ratio = resampled.ratio({b: 1, **base}, {other: 1, **base})
                found.append(Share(block.name, family, b, other, of, ratio, resampled.pairs))
    return found
