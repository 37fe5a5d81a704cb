"""Differences between arms, the hypotheses that they test, Holm's correction, and how much of a score B keeps."""

from dataclasses import dataclass, replace
from functools import reduce
from itertools import permutations, product

import numpy as np
import pandas as pd

from eval.analysis.statistics import Estimate, holm
from study.hierarchical import RESAMPLES, Contrast, heterogeneity, mean_over, resample
from study.matrix import Block
from study.scores import BASE, CO_PRIMARY, outcomes
from study.tables import Tables


SHARES = (0.8, 0.9)  # of another arm's score, for B to have kept most of it
MATTERS = 0.02  # pass@1; a smaller effect does not matter: the margin of the protocol's H2, and of equivalence
ALPHA = 0.05
CLOSE, MANY = (0.04, 0.06), 100_000  # p-values that may hang on the noise of resampling have so many resamples
OPTIMIZER_KEYS = ("optimizer_reset", "optimizer_reset_alpha")
H0, H2, ELSE = "H0: A and B against plain", "H2: the optimizer at a reset", "exploratory"


@dataclass(frozen=True)
class Difference:
    """
    pass@1, or pass@k, of an arm less another's, on the pairs that both have: `contrast` with the error that the
    protocol names, `alone` with that of the paired t-test over bases, which it does not name. `adjusted` and
    `adjusted_alone` are their p-values after Holm, among the `tests` of the block and hypothesis; `families_differ`,
    of a mean over families, p of the test that the difference is the same in all.
    """

    block: str
    family: str
    arm: str
    reference: str
    hypothesis: str
    contrast: Contrast
    pairs: int
    alone: Contrast
    adjusted: float = float("nan")
    adjusted_alone: float = float("nan")
    tests: int = 1
    families_differ: float = float("nan")

    @property
    def exploratory(self) -> bool:
        """Whether it is no test of a registered hypothesis: by its arms, or by its block."""
        return self.hypothesis == ELSE or self.block not in CO_PRIMARY

    @property
    def verdict(self) -> str:
        """In a few words; H2 asks for more than a difference: one that matters."""
        if self.contrast.error != self.contrast.error:
            return "one base: no interval"
        if not self.contrast.estimate.apart:
            return "equivalent" if self.contrast.equivalence(MATTERS) < ALPHA else "not told apart"
        word = "higher" if self.contrast.value > 0 else "lower"
        if self.hypothesis == H2 and abs(self.contrast.value) <= MATTERS:
            return f"{word}, by no more than {MATTERS:g}"
        return word


def kept_partner(block: Block, arm: str) -> str | None:
    """The arm of a block that differs only in that its resets keep the optimizer; `None` if there is none."""

    def without(name: str) -> dict:
        return {key: value for key, value in block.recipe(name).items() if key not in OPTIMIZER_KEYS}

    if block.recipe(arm).get("optimizer_reset", "keep") == "keep":
        return None
    kept = (other for other in block.arms if block.recipe(other).get("optimizer_reset", "keep") == "keep")
    return next((other for other in kept if without(other) == without(arm)), None)


def compared(block: Block) -> list[tuple[str, str, str]]:
    """Which arm is held against which, and for which hypothesis; each once."""
    partners = {arm: kept_partner(block, arm) for arm in block.arms}
    found = {(arm, partner): H2 for arm, partner in partners.items() if partner is not None}
    main = {*block.references[1:], f"B{block.suffix}"}  # sweeps of B are exploratory
    for reference, arm in product(block.references, block.arms):
        if arm != reference and (reference, arm) not in found:
            first = reference == block.references[0] and arm in main
            found.setdefault((arm, reference), H0 if first else ELSE)
    return [(*pair, hypothesis) for pair, hypothesis in found.items()]


def differences(block: Block, tables: Tables, k: int = 1) -> list[Difference]:
    """
    pass@k, or greedy decoding, of every arm against the references of its block, in each family, with p-values after
    Holm. The hypotheses are about pass@1; with any other k all is exploratory.
    """
    found, values = [], outcomes(block, tables, k)
    for (arm, reference, hypothesis), family in product(compared(block), block.families):
        both = values[family][[arm, reference]].dropna()
        if len(both):
            of = hypothesis if k == 1 else ELSE
            found.append(_difference(block, family, arm, reference, of, [both.to_dict()]))
    return _with_holm(found)


def _difference(block: Block, family: str, arm: str, reference: str, hypothesis: str, values: list) -> Difference:
    """`values` has an entry for each family that is averaged."""
    weights = {arm: 1, reference: -1}
    for count in (RESAMPLES, MANY):
        found = mean_over([resample(one, count, family=number) for number, one in enumerate(values)])
        contrast = found.contrast(weights)
        if not any(CLOSE[0] < p < CLOSE[1] for p in (contrast.p_value, contrast.equivalence(MATTERS))):
            break
    alone = found.over_bases(weights)
    return Difference(block.name, family, arm, reference, hypothesis, contrast, found.pairs, alone)


def _with_holm(found: list[Difference]) -> list[Difference]:
    for hypothesis in (H0, H2, ELSE):
        tested = [place for place, one in enumerate(found) if one.hypothesis == hypothesis and one.contrast.error >= 0]
        ways = (holm([getattr(found[place], way).p_value for place in tested]) for way in ("contrast", "alone"))
        for place, one, other in zip(tested, *ways, strict=True):
            found[place] = replace(found[place], adjusted=float(one), adjusted_alone=float(other), tests=len(tested))
    return found


def over_families(block: Block, tables: Tables, k: int = 1) -> list[Difference]:
    """
    The mean over families of every difference, each family with the same weight, over the pairs that all have; a
    family with fewer pairs than the others is left out until it has theirs. The pairs are the units, because families
    share seeds ([`~study.hierarchical.mean_over`]). The p-values are not adjusted.
    """
    found, values = [], outcomes(block, tables, k)
    for arm, reference, _ in compared(block):
        every = [values[family][[arm, reference]].dropna() for family in block.families]
        most = [both for both in every if len(both) == max(map(len, every))]
        pairs = reduce(pd.Index.intersection, (both.index for both in most))
        if len(most) < 2 or len(pairs) < 2:
            continue
        alike = [both.loc[pairs].to_dict() for both in most]
        by_base = [resample(one, 1).by_base for one in alike]
        apart = heterogeneity(np.array([one[arm] - one[reference] for one in by_base]))
        mean = _difference(block, f"mean of {len(most)}", arm, reference, ELSE, alike)
        found.append(replace(mean, families_differ=apart))
    return found


@dataclass(frozen=True)
class Share:
    """How much B keeps of another arm's `score` or `gain over base`; no ratio where the other's is not above 0."""

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
    found, values = [], outcomes(block, tables)
    variant = tables.runs["variant"].groupby(level="arm").first()
    for family, (b, other) in product(block.families, permutations(block.arms, 2)):
        alike = values[family][[b, other, BASE]].dropna()
        if alike.empty or variant[b] != "B" or variant[other] not in ("A", "C"):
            continue
        resampled = resample(alike.to_dict())
        for of, base in (("score", {}), ("gain over base", {BASE: -1})):
            ratio = resampled.ratio({b: 1, **base}, {other: 1, **base})
            found.append(Share(block.name, family, b, other, of, ratio, resampled.pairs))
    return found
