"""What follows from the tables: scores, differences, B's share of another arm's score, and which are told apart."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from eval.analysis.smoothing import end_by_best
from eval.analysis.statistics import Estimate, holm, pass_at_k_per_prompt
from study.hierarchical import Contrast, Pair, Resampled, mean_over, resample
from study.matrix import Block, Matrix, RunKey
from study.tables import BaseKey, Tables


SHARES = (0.8, 0.9)  # of another arm's score, for B to have kept most of it
MATTERS = 0.02  # pass@1; a smaller effect of what a reset does to the optimizer does not matter
OPTIMIZER_KEYS = ("optimizer_reset", "optimizer_reset_alpha")
H0, H2, ELSE = "H0: A and B against plain", "H2: the optimizer at a reset", "exploratory"
CO_PRIMARY = ("core", "stress")  # blocks; every other one is exploratory by the protocol
BASE = "base"


@dataclass(frozen=True)
class Score:
    """
    An arm of a block on a family: means over the pairs that are finished.

    Attributes:
        pass1, pass8, greedy (`Estimate`): With intervals over bases, seeds and prompts.
        base (`float`): pass@1 of the same bases.
        gain (`Estimate`): pass@1 less that of the bases, paired.
        kept (`tuple[float, float]`): The training reward at the end by the run's best, of the run that kept least and
            of the one that kept most; below a half it is called collapsed.
        drift (`float` or `None`): KL to base, nats per token, mean over the runs that have a policy at their end.
        collapsed, pairs (`int`): Runs that collapsed, and all.
        ref_calls (`float`): Forward calls of the reference, mean over runs.
    """

    block: str
    family: str
    arm: str
    pass1: Estimate
    pass8: Estimate
    greedy: Estimate
    base: float
    gain: Estimate
    kept: tuple[float, float]
    drift: float | None
    collapsed: int
    pairs: int
    ref_calls: float

    @property
    def exploratory(self) -> bool:
        """Whether its block is."""
        return self.block not in CO_PRIMARY


@dataclass(frozen=True)
class Difference:
    """
    pass@1, or pass@k, of an arm less another's, on the pairs that both have.

    Attributes:
        hypothesis (`str`): The tests that it is corrected together with.
        contrast ([`~study.hierarchical.Contrast`]): The difference, with the error that the protocol names.
        pairs (`int`): Pairs of base seed and training seed.
        alone (`Contrast`): The same by the ordinary paired t-test over bases, with the prompts as they are. The
            protocol does not name it.
        adjusted, adjusted_alone (`float`): Their p-values after Holm, among the differences of the block and
            hypothesis.
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

    @property
    def exploratory(self) -> bool:
        """Whether it is no test of a registered hypothesis: by its arms, or by its block."""
        return self.hypothesis == ELSE or self.block not in CO_PRIMARY

    @property
    def told_apart(self) -> bool:
        """Whether the 95 % interval is off 0."""
        return bool(self.contrast.estimate.low > 0 or self.contrast.estimate.high < 0)

    @property
    def verdict(self) -> str:
        """In a few words; H2 asks for more than a difference: one that matters."""
        if self.contrast.error != self.contrast.error:
            return "one base: no interval"
        if not self.told_apart:
            return "not told apart"
        word = "higher" if self.contrast.value > 0 else "lower"
        if self.hypothesis == H2 and abs(self.contrast.value) <= MATTERS:
            return f"{word}, by no more than {MATTERS:g}"
        return word


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


def per_prompt(tables: Tables, key: RunKey, k: int = 1) -> np.ndarray:
    """pass@k of each held-out prompt of a run, or of a base; shape (P,)."""
    rows = tables.prompts[key]
    return pass_at_k_per_prompt([row["correct"] for row in rows], rows[0]["n"], k)


def greedy(tables: Tables, key: RunKey) -> np.ndarray:
    """Whether each held-out prompt is right by greedy decoding; shape (P,)."""
    return np.array([row["greedy"] for row in tables.prompts[key]], dtype=float)


def finished(block: Block, tables: Tables, family: str, arm: str) -> dict[Pair, RunKey]:
    """The runs of an arm that are in the tables, by base seed and training seed."""
    keys = (run.key for run in block.runs if (run.key.family, run.key.arm) == (family, arm))
    return {(key.base_seed, key.seed): key for key in keys if key in tables.runs}


def scores(block: Block, tables: Tables) -> list[Score]:
    """Of every family and arm that has a run."""
    found = []
    for family in block.families:
        for arm in block.arms:
            if runs := finished(block, tables, family, arm):
                found.append(_score(block, tables, family, arm, runs))
    return found


def _score(block: Block, tables: Tables, family: str, arm: str, runs: dict[Pair, RunKey]) -> Score:
    def estimate(value) -> Estimate:
        resampled = resample({arm: {pair: value(tables, key) for pair, key in runs.items()}})
        return resampled.contrast({arm: 1}).estimate

    against = {arm: _per_prompt(tables, runs), BASE: _of_bases(tables, family, runs)}
    kept = [reward_kept(tables, key) for key in runs.values()]
    rows = [tables.runs[key] for key in runs.values()]
    drifts = [row["drift"] for row in rows if row["drift"] is not None]
    return Score(
        block=block.name,
        family=family,
        arm=arm,
        pass1=estimate(per_prompt),
        pass8=estimate(lambda tables, key: per_prompt(tables, key, 8)),
        greedy=estimate(greedy),
        base=float(np.mean([row["base_pass@1"] for row in rows])),
        gain=resample(against).contrast({arm: 1, BASE: -1}).estimate,
        kept=(min(kept), max(kept)),
        drift=float(np.mean(drifts)) if drifts else None,
        collapsed=sum(row["collapsed"] for row in rows),
        pairs=len(rows),
        ref_calls=float(np.mean([row["ref_forward_calls"] for row in rows])),
    )


def _per_prompt(tables: Tables, runs: dict[Pair, RunKey], k: int = 1) -> dict[Pair, np.ndarray]:
    return {pair: per_prompt(tables, key, k) for pair, key in runs.items()}


def _of_bases(tables: Tables, family: str, runs: Iterable[Pair]) -> dict[Pair, np.ndarray]:
    return {pair: per_prompt(tables, BaseKey(family, pair[0]).run) for pair in runs}


def reward_kept(tables: Tables, key: RunKey) -> float:
    """
    The number that a collapse is told by, [`~eval.analysis.smoothing.end_by_best`] of the training reward; 0 where it
    cannot be told, because the best is 0 or numbers that are not finite ended the run.
    """
    rewards = pd.Series([row["reward"] for row in tables.curves[key]], dtype=float)
    if len(rewards) < key.steps or not np.isfinite(rewards).all():
        return 0.0
    return end_by_best(rewards) or 0.0


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
    found: dict[tuple[str, str], str] = {}
    for arm in block.arms:
        if (partner := kept_partner(block, arm)) is not None:
            found[arm, partner] = H2
    plain = block.references[0] if block.references else None
    main = {*block.references[1:], f"B{block.suffix}"}  # sweeps of B are exploratory
    for reference in block.references:
        for arm in block.arms:
            if arm != reference and (reference, arm) not in found:
                first = reference == plain and arm in main
                found.setdefault((arm, reference), H0 if first else ELSE)
    return [(arm, reference, hypothesis) for (arm, reference), hypothesis in found.items()]


def differences(block: Block, tables: Tables, k: int = 1) -> list[Difference]:
    """
    pass@k of every arm against the references of its block, in each family, with p-values after Holm. The hypotheses
    are about pass@1; with any other k all is exploratory.
    """
    found = []
    for arm, reference, hypothesis in compared(block):
        for family in block.families:
            runs = {name: finished(block, tables, family, name) for name in (arm, reference)}
            if not runs[arm].keys() & runs[reference].keys():
                continue
            resampled = resample({name: _per_prompt(tables, keys, k) for name, keys in runs.items()})
            found.append(_difference(block, family, arm, reference, hypothesis if k == 1 else ELSE, resampled))
    return _with_holm(found)


def _difference(
    block: Block, family: str, arm: str, reference: str, hypothesis: str, resampled: Resampled
) -> Difference:
    weights = {arm: 1, reference: -1}
    contrast, alone = resampled.contrast(weights), resampled.over_bases(weights)
    return Difference(block.name, family, arm, reference, hypothesis, contrast, resampled.pairs, alone)


def _with_holm(found: list[Difference]) -> list[Difference]:
    adjusted = list(found)
    for hypothesis in (H0, H2, ELSE):
        places = [
            place
            for place, one in enumerate(found)
            if one.hypothesis == hypothesis and one.contrast.p_value == one.contrast.p_value
        ]
        by_protocol = holm([found[place].contrast.p_value for place in places])
        alone = holm([found[place].alone.p_value for place in places])
        for place, *p_values in zip(places, by_protocol, alone, strict=True):
            names = ("adjusted", "adjusted_alone")
            adjusted[place] = replace(found[place], **dict(zip(names, map(float, p_values), strict=True)))
    return adjusted


def over_families(block: Block, tables: Tables) -> list[Difference]:
    """
    The mean over families of every difference, each family with the same weight, over the pairs that all have; a
    family with fewer pairs than the others is left out until it has theirs. The pairs are the units, because families
    share seeds ([`~study.hierarchical.mean_over`]). The p-values are not adjusted.
    """
    found = []
    for arm, reference, _ in compared(block):
        runs = {
            family: {name: finished(block, tables, family, name) for name in (arm, reference)}
            for family in block.families
        }
        pairs = {family: of[arm].keys() & of[reference].keys() for family, of in runs.items()}
        most = max(map(len, pairs.values()))
        families = [family for family in block.families if len(pairs[family]) == most]
        common = set.intersection(*(set(pairs[family]) for family in families))
        if len(families) < 2 or len(common) < 2:
            continue
        parts = [
            resample(
                {
                    name: _per_prompt(tables, {pair: keys[pair] for pair in common})
                    for name, keys in runs[family].items()
                },
                family=number,
            )
            for number, family in enumerate(families)
        ]
        found.append(_difference(block, f"mean of {len(families)}", arm, reference, ELSE, mean_over(parts)))
    return found


def shares(block: Block, tables: Tables) -> list[Share]:
    """B's part of the score of every arm with a moving reference, and of its gain over base; families in which both
    have runs."""
    found = []
    for family in block.families:
        runs = {arm: finished(block, tables, family, arm) for arm in block.arms}
        variant = {arm: tables.runs[next(iter(keys.values()))]["variant"] for arm, keys in runs.items() if keys}
        for b in (arm for arm, name in variant.items() if name == "B"):
            for other in (arm for arm, name in variant.items() if name in ("A", "C")):
                if runs[b].keys() & runs[other].keys():
                    found += _shares(block, tables, family, b, other, runs[b], runs[other])
    return found


def _shares(block: Block, tables: Tables, family: str, b: str, other: str, b_runs: dict, other_runs: dict):
    values = {
        b: _per_prompt(tables, b_runs),
        other: _per_prompt(tables, other_runs),
        BASE: _of_bases(tables, family, b_runs),
    }
    resampled = resample(values)
    for of, base in (("score", {}), ("gain over base", {BASE: -1})):
        yield Share(
            block.name, family, b, other, of, resampled.ratio({b: 1, **base}, {other: 1, **base}), resampled.pairs
        )


def of_matrix(matrix: Matrix, what, tables: Tables) -> Iterable:
    """`scores`, `differences` or `shares` of every block."""
    return [one for block in matrix.blocks if not block.tunes for one in what(block, tables)]
