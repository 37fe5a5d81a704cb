"""The success rule: B keeps 80 to 90 % of A's held-out score at a lower step cost; met, not met or undecided."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
from scipy import stats

from trl_prorl.eval.analysis.cost import mean_step_seconds
from trl_prorl.eval.analysis.names import configuration_labels
from trl_prorl.eval.analysis.pairing import ground, pairs, same_prompts
from trl_prorl.eval.analysis.passk import per_prompt
from trl_prorl.eval.analysis.repetitions import repetitions
from trl_prorl.eval.analysis.statistics import Estimate, fieller_ratio, paired_bootstrap_ratio
from trl_prorl.eval.run_folder.run import Run


MET, NOT_MET, UNDECIDED = "met", "not met", "undecided"
# These define B and are no other way of computing: it has no reference to score with, and its penalty is added to
# TRL's loss.
INHERENT_EXECUTION = ("ref_compute", "loss")


@dataclass(frozen=True)
class Pair:
    """
    One run of B and one of A: held-out pass@1 and mean step time, B's over A's; `None` where not measured or where A
    is 0.

    The interval of the share is over prompts: of these two models, not of training with another seed.
    """

    b: Run
    a: Run
    share: Estimate | None
    step_time: float | None


@dataclass(frozen=True)
class Comparison:
    """
    A configuration of B against one of A.

    Attributes:
        b, a (`str`): Names of the configurations.
        pairs (`list[Pair]`): Runs that share a seed, or all combinations where none is shared.
        share (`Estimate` or `None`): B's mean held-out pass@1 over A's, all comparable pairs together. The interval is
            the hull of Fieller's over training runs and a bootstrap over prompts; 0 to infinity with one pair, whose
            prompts say nothing of other seeds.
        step_time (`Estimate` or `None`): Ratio of mean step times; the interval is over runs, 0 to infinity with one.
        warnings (`list[str]`): Why the step times may not compare.
    """

    b: str
    a: str
    pairs: list[Pair]
    share: Estimate | None
    step_time: Estimate | None
    warnings: list[str]


def at_least(estimate: Estimate | None, threshold: float) -> str:
    """Whether a value is at least `threshold`: met or not met if the whole interval says so, else undecided."""
    if estimate is None:
        return UNDECIDED
    return MET if estimate.low >= threshold else NOT_MET if estimate.high < threshold else UNDECIDED


def below(estimate: Estimate | None, threshold: float) -> str:
    """Whether a value is below `threshold`, as [`at_least`]."""
    if estimate is None:
        return UNDECIDED
    return MET if estimate.high < threshold else NOT_MET if estimate.low >= threshold else UNDECIDED


def both(first: str, second: str) -> str:
    """Of two conditions that must hold: not met as soon as one is not."""
    if NOT_MET in (first, second):
        return NOT_MET
    return MET if (first, second) == (MET, MET) else UNDECIDED


def _pair(b: Run, a: Run) -> Pair:
    share = None
    if same_prompts(a, b) and any(a.passk["trained"]["correct"]):
        share = paired_bootstrap_ratio(per_prompt(b.passk, "trained"), per_prompt(a.passk, "trained"))
    b_seconds, a_seconds = mean_step_seconds(b), mean_step_seconds(a)
    return Pair(b, a, share, b_seconds / a_seconds if b_seconds and a_seconds else None)


def ratio_over_runs(b: list[float], a: list[float], paired: bool) -> tuple[float, float] | None:
    """
    95 % t-interval of a ratio of step times over training runs, in logarithms, because times vary by factors.

    Args:
        b, a (`list[float]`): One positive value per run.
        paired (`bool`): Whether the values belong together, seed by seed (t-test of the log ratios); Welch's test of
            the two sides otherwise.

    Returns:
        `tuple[float, float]` or `None`: `None` with fewer than 2 runs on a side.
    """
    if min(len(b), len(a)) < 2:
        return None
    b, a = np.log(b), np.log(a)
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # SciPy's, about values that do not differ at all
        test = stats.ttest_1samp(b - a, 0) if paired else stats.ttest_ind(b, a, equal_var=False)
        interval = test.confidence_interval(0.95)
    return float(np.exp(interval.low)), float(np.exp(interval.high))


def _sides(found: list[Pair]) -> tuple[list[Run], list[Run], bool]:
    """The runs of B and of A, each once, and whether they are paired: every seed known and once on each side."""
    b, a = ({id(run): run for run in side} for side in zip(*((pair.b, pair.a) for pair in found), strict=True))
    paired = len(found) == len(b) == len(a) and all(
        pair.b.seed is not None and pair.b.repetition == pair.a.repetition for pair in found
    )
    return list(b.values()), list(a.values()), paired


def _overall_share(found: list[Pair]) -> Estimate | None:
    # A pair in which A scored 0 has no share of its own, and counts here like any other.
    measured = [pair for pair in found if same_prompts(pair.a, pair.b)]
    if not any(any(pair.a.passk["trained"]["correct"]) for pair in measured):
        return None
    b_runs, a_runs, paired = _sides(measured)
    b, a = ([per_prompt(run.passk, "trained") for run in runs] for runs in (b_runs, a_runs))
    over_runs = fieller_ratio([v.mean() for v in b], [v.mean() for v in a], paired)
    if not all(same_prompts(measured[0].b, pair.b) for pair in measured):
        return over_runs  # over prompts too, because these differ from run to run
    # Runs share their prompts, so that agreement between seeds says nothing of other prompts.
    over_prompts = paired_bootstrap_ratio(np.mean(b, axis=0), np.mean(a, axis=0))
    low, high = np.minimum(over_runs.low, over_prompts.low), np.maximum(over_runs.high, over_prompts.high)
    return Estimate(over_runs.value, float(low), float(high))


def _overall_step_time(found: list[Pair]) -> Estimate | None:
    measured = [pair for pair in found if pair.step_time is not None]
    if not measured:
        return None
    b_runs, a_runs, paired = _sides(measured)
    b, a = ([mean_step_seconds(run) for run in runs] for runs in (b_runs, a_runs))
    return Estimate(float(np.mean(b) / np.mean(a)), *(ratio_over_runs(b, a, paired) or (0.0, math.inf)))


def _warnings(found: list[Pair]) -> list[str]:
    """Differences within pairs, by `env.json`, that touch the step time."""

    def execution(run):
        recorded = run.env.get("execution") or {}
        return {key: value for key, value in recorded.items() if key not in INHERENT_EXECUTION}

    lines = []
    for key, of in (
        ("hardware", lambda run: run.env.get("hardware")),
        ("execution", execution),
        ("versions", lambda run: run.env.get("versions")),
    ):
        names = [f"`{pair.b.name}` and `{pair.a.name}`" for pair in found if of(pair.b) != of(pair.a)]
        if names:
            lines.append(
                f"`{key}` in `env.json` differs between {'; '.join(names)}: their step times may not compare."
            )
    return lines


def comparisons(runs: list[Run]) -> list[Comparison]:
    """Every configuration of B against every one of A on the same ground, or against all where none is."""
    groups = repetitions(runs)
    named = list(zip(configuration_labels(groups), groups, strict=True))
    sides = [(b, a) for b in named for a in named if (b[1][0].variant, a[1][0].variant) == ("B", "A")]
    sides = [(b, a) for b, a in sides if ground(b[1][0]) == ground(a[1][0])] or sides
    found = []
    for (b_label, b_runs), (a_label, a_runs) in sides:
        members = [_pair(b, a) for b, a in pairs([*b_runs, *a_runs], "B", "A")]
        found.append(
            Comparison(
                b_label, a_label, members, _overall_share(members), _overall_step_time(members), _warnings(members)
            )
        )
    return found


def verdict(comparison: Comparison, share: float) -> tuple[str, str, str]:
    """Score, step cost and the rule as a whole, each met, not met or undecided."""
    score, cost = at_least(comparison.share, share), below(comparison.step_time, 1.0)
    return score, cost, both(score, cost)
