"""Who is ahead: two runs, or arms over their seeds, on the same prompts; the best arm, and the success rule."""

import math
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np
from scipy import stats

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.configurations import seed_count, why_not_paired
from trl_prorl.eval.analysis.frame import Arm, Frame, mean_step_seconds
from trl_prorl.eval.analysis.passk import per_prompt
from trl_prorl.eval.analysis.statistics import (
    Estimate,
    detectable_difference,
    fieller_ratio,
    holm,
    mcnemar,
    paired_bootstrap_ratio,
    prompts_and_seeds,
    t_interval,
)
from trl_prorl.eval.run_folder.run import Run, require_passk
from trl_prorl.variants import DIFFERENT_OBJECTIVE, optimises_another_objective


COMPARED = ("plain", "control", "A")  # variants that every arm of their ground is compared with
SHARES = (0.8, 0.9)  # of A's score, that B is to keep at a lower step cost
MET, NOT_MET, UNDECIDED = "met", "not met", "undecided"


@dataclass(frozen=True)
class Comparison:
    """
    pass@k of two sides, runs or arms, on the same prompts, over the seeds that both have.

    Attributes:
        first, second (`str`): Names of the runs or arms.
        k (`int`): Size of the draw.
        difference ([`Estimate`]): First less second: of one pair of runs a paired bootstrap over prompts, of several
            its hull with the t-interval over seeds.
        seeds (`int`): Pairs of runs.
        first_value, second_value (`float`): pass@k of each, mean over the runs.
        p_value (`float`): Of one pair exact McNemar, else the larger of t-tests over seeds and over prompts.
        share ([`Estimate`] or `None`): First over second: the hull of Fieller's interval over runs and a bootstrap
            over prompts, 0 to infinity with one pair; `None` where the second scored nothing.
        step_time ([`Estimate`] or `None`): Ratio of mean step times, with the t-interval of log ratios over runs, 0 to
            infinity with one pair; `None` where not measured.
        adjusted (`float`): p after Holm over the comparisons of a k.
    """

    first: str
    second: str
    k: int
    difference: Estimate
    seeds: int
    first_value: float
    second_value: float
    p_value: float
    share: Estimate | None
    step_time: Estimate | None
    adjusted: float

    @property
    def detectable(self) -> float:
        """The true difference that is found with 80 % power."""
        return detectable_difference(self.difference)

    def rule(self, share: float) -> tuple[str, str, str]:
        """The success rule: score, step cost and both, each met, not met or undecided."""
        score = _at_least(self.share, share)
        cost = {MET: NOT_MET, NOT_MET: MET}.get(_at_least(self.step_time, 1.0), UNDECIDED)
        if NOT_MET in (score, cost):
            return score, cost, NOT_MET
        return score, cost, MET if (score, cost) == (MET, MET) else UNDECIDED


def _at_least(estimate: Estimate | None, threshold: float) -> str:
    """Met or not met if the whole interval is on one side of the threshold, else undecided."""
    if estimate is None:
        return UNDECIDED
    return MET if estimate.low >= threshold else NOT_MET if estimate.high < threshold else UNDECIDED


def compare(a: Run, b: Run, k: int = 1) -> Comparison:
    """
    The trained model of `a` less that of `b`, paired by prompt, for draws of `k`.

    Raises:
        InputError: If the runs cannot be paired or `k` exceeds the samples.
    """
    return _compare(a.name, b.name, [(a, b)], k)


def _right_or_wrong(a: Run, b: Run) -> list:
    """By prompt whether each was right: by greedy decoding where both have it, else in any of the samples."""
    greedy = [(run.passk.get("greedy") or {}).get("trained", {}).get("correct") for run in (a, b)]
    return greedy if all(greedy) else [np.array(run.passk["trained"]["correct"]) > 0 for run in (a, b)]


def pair_notes(a: Run, b: Run) -> list[str]:
    """What two runs differ in beside what they are compared for."""
    notes = [f"`{run.name}`: {run.variant} {run.without_reset}." for run in (a, b) if run.without_reset]
    if optimises_another_objective(a.variant) != optimises_another_objective(b.variant):
        notes.append(DIFFERENT_OBJECTIVE)
    started = [(run.config.get("model_name_or_path"), run.config.get("model_revision") or "main") for run in (a, b)]
    if started[0] != started[1]:
        notes.append(f"The runs started from different models: {started[0][0]} and {started[1][0]}.")
    steps = [int(run.passk.get("step") or run.metrics["step"].max()) for run in (a, b)]
    if steps[0] != steps[1]:
        notes.append(f"The runs were trained for {steps[0]} and {steps[1]} steps; nothing is matched by steps.")
    alone = "One run each: the intervals are over prompts and say nothing of the variation between training seeds."
    return [*notes, alone]


def common_sizes(a: Run, b: Run) -> list[int]:
    """Every k that both runs were evaluated at; 1 always."""
    return sorted({1} | (set(require_passk(a)["k"]) & set(require_passk(b)["k"])))


def compare_arms(first: Arm, second: Arm, k: int = 1, level: float = 0.95) -> Comparison:
    """
    Two arms by their evaluated runs, paired by seed and by prompt; `level` is the coverage of the difference's
    interval.

    Raises:
        InputError: They share no seed, or runs cannot be paired.
    """
    sides = [{run.repetition: run for run in arm.evaluated or arm.runs} for arm in (first, second)]
    pairs = [(sides[0][seed], sides[1][seed]) for seed in sorted(set(sides[0]) & set(sides[1]), key=str)]
    if not pairs and len(sides[0]) == len(sides[1]) == 1:
        pairs = [(*sides[0].values(), *sides[1].values())]
    if not pairs:
        raise InputError("they have no seed in common; train both with the same seeds, or compare two runs alone")
    return _compare(first.label, second.label, pairs, k, level)


def _compare(first: str, second: str, pairs: list[tuple[Run, Run]], k: int, level: float = 0.95) -> Comparison:
    for a, b in pairs:
        if why := why_not_paired(a, b) or why_not_paired(pairs[0][0], a):
            raise InputError(why)
        if not 1 <= k <= a.passk["n"]:
            raise InputError(f"--k {k} must lie between 1 and the {a.passk['n']} samples of passk.json")
    values = [np.array([per_prompt(run.passk, "trained", k) for run in side]) for side in zip(*pairs, strict=True)]
    means = [side.mean(axis=1) for side in values]
    differences = values[0] - values[1]
    p_value = _p_value(pairs, differences)
    return Comparison(
        first=first,
        second=second,
        k=k,
        difference=prompts_and_seeds(list(differences), True, -1.0, level),
        seeds=len(pairs),
        first_value=float(means[0].mean()),
        second_value=float(means[1].mean()),
        p_value=p_value,
        share=_share(values, means),
        step_time=_step_time(pairs),
        adjusted=p_value,
    )


def _p_value(pairs: list[tuple[Run, Run]], differences: np.ndarray) -> float:
    if len(pairs) == 1:
        return mcnemar(*_right_or_wrong(*pairs[0])).p_value
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where nothing differs
        p_values = [stats.ttest_1samp(differences.mean(axis=axis), 0.0).pvalue for axis in (0, 1)]
    return float(np.max(np.nan_to_num(p_values, nan=1.0)))


def _share(values: list[np.ndarray], means: list[np.ndarray]) -> Estimate | None:
    if not means[1].mean() > 0:
        return None
    over_runs = fieller_ratio(*means, paired=True)
    over_prompts = paired_bootstrap_ratio(*(side.mean(axis=0) for side in values))
    ends = np.minimum(over_runs.low, over_prompts.low), np.maximum(over_runs.high, over_prompts.high)
    return Estimate(over_runs.value, *map(float, ends))


def _step_time(pairs: list[tuple[Run, Run]]) -> Estimate | None:
    seconds = [(a, b) for a, b in ((mean_step_seconds(a), mean_step_seconds(b)) for a, b in pairs) if a and b]
    if not seconds:
        return None
    b, a = np.array(seconds).T
    if len(b) == 1:
        return Estimate(float(b[0] / a[0]), 0.0, math.inf)
    _, low, high = t_interval(np.log(b / a))
    return Estimate(float(b.mean() / a.mean()), math.exp(low), math.exp(high))


def compared(pairs: list[tuple[Arm, Arm]], ks: list[int]) -> tuple[list[Comparison], list[str]]:
    """These pairs of arms at every k, by k, with Holm over the pairs of a k; and what was left out and why."""
    rows, left = [], []
    for k in ks:
        found = []
        for first, second in pairs:
            try:
                found.append(compare_arms(first, second, k))
            except InputError as error:
                left.append(f"{first.label} and {second.label} were not compared: {str(error).rstrip('.')}.")
        adjusted = holm([each.p_value for each in found]) if found else []
        rows += [replace(each, adjusted=float(p)) for each, p in zip(found, adjusted, strict=True)]
    return rows, list(dict.fromkeys(left))


def all_pairs(runs: list[Run], ks: list[int]) -> tuple[list[Comparison], list[str]]:
    """
    Every pair of arms at every k, and which pairs were left out and why.

    Raises:
        InputError: There is one arm only, or no pair can be compared.
    """
    arms = Frame(runs).arms
    if len(arms) < 2:
        raise InputError(f"--runs: all {len(runs)} runs are one arm with different seeds; give runs of another arm")
    rows, left = compared(list(combinations(arms, 2)), ks)
    if not rows:
        raise InputError(left[0])
    return rows, left


@dataclass(frozen=True)
class Verdict:
    """
    The best arm of a ground.

    Attributes:
        title (`str`): The ground, "" if there is one.
        best ([`Arm`]): The arm with the highest held-out pass@1.
        arms (`int`): Evaluated arms of its ground.
        seeds (`int`): Fewest seeds of an arm that is compared.
        level (`float`): Coverage of the intervals: 95 % for one comparison, corrected for several (Bonferroni).
        differences (`dict[str, Estimate | None]`): Best less base, and less each control and plain arm, without both
            less the second best; `None` where the runs have no prompts or seeds in common.
    """

    title: str
    best: Arm
    arms: int
    seeds: int
    level: float
    differences: dict[str, Estimate | None]


def score_of(arm: Arm) -> float:
    """Held-out pass@1 of the trained models, mean over the runs."""
    return float(np.mean([per_prompt(run.passk, "trained").mean() for run in arm.evaluated]))


@lru_cache(maxsize=1)  # several sections ask, of one frame
def verdicts(frame: Frame) -> list[Verdict]:
    """The best arm of every ground with an evaluated run."""
    found = []
    for title, arms in frame.grounds.items():
        ranked = sorted((arm for arm in arms if arm.evaluated), key=score_of, reverse=True)
        if not ranked:
            continue
        best, *others = ranked
        references = [arm for arm in others if arm.variant in ("control", "plain")] or others[:1]
        # The best was chosen among all, so each arm could have been compared with each reference.
        level = 1 - 0.05 / max(1, len(others) * len(references))
        differences = {"base": best.gain(level)}
        for arm in references:
            try:
                difference = compare_arms(best, arm, level=level).difference
                differences[arm.label] = Estimate(*np.clip(difference, -1.0, 1.0).tolist())
            except InputError:
                differences[arm.label] = None
        seeds = min(seed_count(arm.evaluated) for arm in (best, *references))
        found.append(Verdict(title, best, len(ranked), seeds, level, differences))
    return found


def against_references(frame: Frame) -> tuple[list[Comparison], list[str]]:
    """
    Every evaluated arm at k = 1 against plain, the control and A of its ground, of several of a variant the one with
    the highest held-out pass@1; and which pairs were left out and why.
    """
    pairs = {}
    for arms in frame.grounds.values():
        evaluated = [arm for arm in arms if arm.evaluated]
        for variant in COMPARED:
            reference = max((arm for arm in evaluated if arm.variant == variant), key=score_of, default=None)
            for arm in evaluated if reference else []:
                if arm.variant != variant:
                    pairs.setdefault(frozenset((arm.label, reference.label)), (arm, reference))
    return compared(list(pairs.values()), [1])
