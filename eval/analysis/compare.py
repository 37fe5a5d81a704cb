"""Who is ahead: two runs, or arms over their seeds, on the same prompts; the best arm, and the success rule."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.configurations import why_not_paired
from trl_prorl.eval.analysis.frame import Frame, ReportArm, Row
from trl_prorl.eval.analysis.passk import per_prompt
from trl_prorl.eval.analysis.statistics import (
    Estimate,
    detectable_difference,
    fieller_ratio,
    holm,
    mcnemar,
    paired_bootstrap_ratio,
    paired_p_value,
    prompts_and_seeds,
    t_interval,
)
from trl_prorl.eval.run_folder.run import RecordedRun, require_passk
from trl_prorl.record.provenance import describe_evaluation
from trl_prorl.variants import DIFFERENT_OBJECTIVE, optimises_another_objective


COMPARED = ("plain", "control", "A")  # variants that every arm of their ground is compared with
SHARES = (0.8, 0.9)  # of A's score, that B is to keep at a lower step cost
GREEDY = None  # in place of a k: the outcome is greedy decoding, right or wrong
SAME_SCORE = 1e-12  # scores that differ by rounding alone are equal
MET = "met"
NOT_MET = "not met"
UNDECIDED = "undecided"


@dataclass(frozen=True)
class Comparison:
    """
    One outcome, pass@k or greedy accuracy, of two sides, runs or arms, on the same prompts, over the seeds that both
    have.

    Attributes:
        first, second (`str`): Names of the runs or arms.
        k (`int` or `None`): Size of the draw; `None` of greedy decoding.
        difference ([`Estimate`]): First less second: of one pair of runs a paired bootstrap over prompts, of several
            its hull with the t-interval over seeds.
        seeds (`int`): Pairs of runs.
        first_value, second_value (`float`): The outcome of each, mean over the runs.
        p_value (`float`): That the difference is 0. Of one pair of runs whose every prompt is right or wrong exact
            McNemar; else a t-test over prompts and, of several pairs, the larger of that and of the one over seeds.
            NaN where a t-test has too few prompts.
        share ([`Estimate`] or `None`): First over second: the hull of Fieller's interval over runs and a bootstrap
            over prompts, 0 to infinity with one pair; `None` where the second scored nothing.
        step_time ([`Estimate`] or `None`): Ratio of mean step times, with the t-interval of log ratios over runs, 0 to
            infinity with one pair; `None` where not measured, or where a run trained beside another one.
        adjusted (`float`): p after Holm over the comparisons of an outcome.
    """

    first: str
    second: str
    k: int | None
    difference: Estimate
    seeds: int
    first_value: float
    second_value: float
    p_value: float
    share: Estimate | None
    step_time: Estimate | None
    adjusted: float

    @property
    def outcome(self) -> str:
        """What was measured, in a word: `pass@8`, `greedy`."""
        return "greedy" if self.k is GREEDY else f"pass@{self.k}"

    @property
    def differs(self) -> bool:
        """Whether the two sides differ: by the interval, and by the test."""
        return self.difference.excludes_zero and self.p_value <= 0.05

    @property
    def detectable(self) -> float:
        """The true difference that is found with 80 % power."""
        return detectable_difference(self.difference)

    def rule(self, share: float) -> tuple[str, str, str]:
        """Return the success rule: score, step cost and both, each met, not met or undecided."""
        score = _at_least(self.share, share)
        cost = _below(self.step_time, 1.0)
        if NOT_MET in (score, cost):
            both = NOT_MET
        elif UNDECIDED in (score, cost):
            both = UNDECIDED
        else:
            both = MET
        return score, cost, both


def _at_least(estimate: Estimate | None, threshold: float) -> str:
    """Met or not met if the whole interval is on one side of the threshold, else undecided."""
    if estimate is None:
        return UNDECIDED
    if estimate.low >= threshold:
        return MET
    return NOT_MET if estimate.high < threshold else UNDECIDED


def _below(estimate: Estimate | None, threshold: float) -> str:
    """Met or not met if the whole interval is on one side of the threshold, else undecided."""
    opposite = {MET: NOT_MET, NOT_MET: MET, UNDECIDED: UNDECIDED}
    return opposite[_at_least(estimate, threshold)]


def compare(a: RecordedRun, b: RecordedRun, k: int | None = 1) -> Comparison:
    """
    Compare the trained model of `a` with that of `b`, paired by prompt, for draws of `k`, or by greedy decoding.

    Raises:
        InputError: If the runs cannot be paired, `k` exceeds the samples, or greedy decoding was not measured.
    """
    first, second = Frame([a, b]).rows
    return _compare(a.name, b.name, [(first, second)], k)


def has_greedy(run: RecordedRun) -> bool:
    """Return whether greedy decoding was measured, prompt by prompt."""
    return _greedy_verdicts(run) is not None


def _greedy_verdicts(run: RecordedRun) -> list[int] | None:
    """Return for each prompt whether the trained model's greedy completion is right; `None` if not measured."""
    greedy = (run.passk or {}).get("greedy") or {}
    return (greedy.get("trained") or {}).get("correct")


def _outcome_per_prompt(run: RecordedRun, k: int | None) -> np.ndarray:
    """pass@k, or greedy accuracy, of the trained model at each prompt, shape (P,)."""
    if k is GREEDY:
        return np.array(_greedy_verdicts(run), dtype=float)
    return per_prompt(run.passk, "trained", k)


def pair_notes(a: RecordedRun, b: RecordedRun) -> list[str]:
    """What two runs differ in beside what they are compared for."""
    notes = [f"`{run.name}`: {run.variant} {run.without_reset}." for run in (a, b) if run.without_reset]
    if optimises_another_objective(a.variant) != optimises_another_objective(b.variant):
        notes.append(DIFFERENT_OBJECTIVE)
    started = [(run.model, run.config.get("model_revision") or "main") for run in (a, b)]
    if started[0] != started[1]:
        notes.append(f"The runs started from different models: {started[0][0]} and {started[1][0]}.")
    steps = [int(run.passk.get("step") or run.metrics["step"].max()) for run in (a, b)]
    if steps[0] != steps[1]:
        notes.append(f"The runs were trained for {steps[0]} and {steps[1]} steps; nothing is matched by steps.")
    lacking = [run for run in (a, b) if not has_greedy(run)]
    if len(lacking) == 1:
        notes.append(f"Greedy decoding is not compared: `{lacking[0].name}` was evaluated without it.")
    alone = "One run each: the intervals are over prompts and say nothing of the variation between training seeds."
    return [*notes, alone]


def common_sizes(a: RecordedRun, b: RecordedRun) -> list[int]:
    """Every k that both runs were evaluated at; 1 always."""
    return sorted({1} | (set(require_passk(a)["k"]) & set(require_passk(b)["k"])))


def compare_arms(first: ReportArm, second: ReportArm, k: int | None = 1, level: float = 0.95) -> Comparison:
    """
    Two arms by their evaluated runs, paired by seed and by prompt; `level` is the coverage of the difference's
    interval.

    Raises:
        InputError: They share no seed, or runs cannot be paired.
    """
    by_seed = []
    for arm in (first, second):
        evaluated = [row for row in arm.rows if row.run.passk]
        by_seed.append({row.run.repetition: row for row in evaluated or arm.rows})
    firsts, seconds = by_seed
    pairs = [(firsts[seed], seconds[seed]) for seed in sorted(set(firsts) & set(seconds), key=str)]
    if not pairs and len(firsts) == len(seconds) == 1:
        pairs = [(*firsts.values(), *seconds.values())]
    if not pairs:
        raise InputError("they have no seed in common; train both with the same seeds, or compare two runs alone")
    return _compare(first.label, second.label, pairs, k, level)


def _compare(first: str, second: str, pairs: list[tuple[Row, Row]], k: int | None, level: float = 0.95) -> Comparison:
    _check_pairs(pairs, k)
    firsts = np.array([_outcome_per_prompt(a.run, k) for a, _ in pairs])
    seconds = np.array([_outcome_per_prompt(b.run, k) for _, b in pairs])
    samples = pairs[0][0].run.passk["n"]
    if len(pairs) == 1 and (k is GREEDY or k == samples):  # a prompt is right or wrong
        p_value = mcnemar(firsts[0], seconds[0]).p_value
    else:
        p_value = paired_p_value(firsts - seconds)
    return Comparison(
        first=first,
        second=second,
        k=k,
        difference=prompts_and_seeds(list(firsts - seconds), True, -1.0, level),
        seeds=len(pairs),
        first_value=float(firsts.mean()),
        second_value=float(seconds.mean()),
        p_value=p_value,
        share=_share(firsts, seconds),
        step_time=_step_time(pairs),
        adjusted=p_value,
    )


def _check_pairs(pairs: list[tuple[Row, Row]], k: int | None) -> None:
    """Refuse runs that cannot be paired, and an outcome that they lack."""
    for a, b in pairs:
        why = why_not_paired(a.run, b.run) or why_not_paired(pairs[0][0].run, a.run)
        if why:
            raise InputError(why)
        for run in (a.run, b.run):
            if k is GREEDY and not has_greedy(run):
                how = describe_evaluation(run.config, run.env, run.path)
                raise InputError(f"'{run.name}' has no greedy decoding in passk.json; {how} adds it")
        if k is not GREEDY and not 1 <= k <= a.run.passk["n"]:
            raise InputError(f"--k {k} must lie between 1 and the {a.run.passk['n']} samples of passk.json")


def _share(firsts: np.ndarray, seconds: np.ndarray) -> Estimate | None:
    """Ratio of the means of an outcome, shape (S, P) each; `None` where the second side scored nothing."""
    if not seconds.mean() > 0:
        return None
    over_runs = fieller_ratio(firsts.mean(axis=1), seconds.mean(axis=1), paired=True)
    over_prompts = paired_bootstrap_ratio(firsts.mean(axis=0), seconds.mean(axis=0))
    low = np.minimum(over_runs.low, over_prompts.low)
    high = np.maximum(over_runs.high, over_prompts.high)
    return Estimate(over_runs.value, float(low), float(high))


def _step_time(pairs: list[tuple[Row, Row]]) -> Estimate | None:
    """Ratio of mean step times over the pairs of which both runs have one."""
    seconds = [(first.seconds, second.seconds) for first, second in pairs if first.seconds and second.seconds]
    if not seconds:
        return None
    firsts, seconds = np.array(seconds).T
    if len(firsts) == 1:
        return Estimate(float(firsts[0] / seconds[0]), 0.0, math.inf)
    _, low, high = t_interval(np.log(firsts / seconds))
    return Estimate(float(firsts.mean() / seconds.mean()), math.exp(low), math.exp(high))


def compare_pairs(pairs: list[tuple[ReportArm, ReportArm]], ks: list[int]) -> tuple[list[Comparison], list[str]]:
    """
    These pairs of arms at every k, and by greedy decoding where any run has it, outcome by outcome, with Holm over the
    pairs of an outcome; and what was left out and why.
    """
    outcomes: list[int | None] = list(ks)
    if any(has_greedy(run) for pair in pairs for arm in pair for run in arm.evaluated):
        outcomes.append(GREEDY)
    rows = []
    skipped = []
    for k in outcomes:
        comparisons = []
        for first, second in pairs:
            try:
                comparisons.append(compare_arms(first, second, k))
            except InputError as error:
                skipped.append(f"{first.label} and {second.label} were not compared: {str(error).rstrip('.')}.")
        adjusted = holm([each.p_value for each in comparisons])
        rows += [replace(each, adjusted=float(p)) for each, p in zip(comparisons, adjusted, strict=True)]
    return rows, list(dict.fromkeys(skipped))


def compare_all_pairs(runs: list[RecordedRun], ks: list[int]) -> tuple[list[Comparison], list[str]]:
    """
    Every pair of arms at every k, and which pairs were left out and why.

    Raises:
        InputError: There is one arm only, or no pair can be compared.
    """
    arms = Frame(runs).arms
    if len(arms) < 2:
        raise InputError(f"--runs: all {len(runs)} runs are one arm with different seeds; give runs of another arm")
    rows, skipped = compare_pairs(list(combinations(arms, 2)), ks)
    if not rows:
        raise InputError(skipped[0])
    return rows, skipped


@dataclass(frozen=True)
class Verdict:
    """
    The best arm of a ground.

    Attributes:
        title (`str`): The ground, "" if there is one.
        best ([`ReportArm`]): The arm with the highest held-out pass@1, of several that share it the first.
        tied (`list[str]`): Labels of the others that share it.
        arms (`int`): Evaluated arms of its ground.
        seeds (`int`): Fewest seeds of an arm that is compared.
        level (`float`): Coverage of the intervals: 95 % for one comparison, corrected for several (Bonferroni).
        differences (`dict[str, Estimate | None]`): Best less base, and less each control and plain arm, without both
            less the second best; `None` where the runs have no prompts or seeds in common.
    """

    title: str
    best: ReportArm
    tied: list[str]
    arms: int
    seeds: int
    level: float
    differences: dict[str, Estimate | None]


def score_of(arm: ReportArm) -> float:
    """Held-out pass@1 of the trained models, mean over the runs."""
    return float(np.mean([per_prompt(run.passk, "trained").mean() for run in arm.evaluated]))


@lru_cache(maxsize=1)  # several sections ask, of one frame
def verdicts(frame: Frame) -> list[Verdict]:
    """Return the best arm of every ground with an evaluated run."""
    results = []
    for title, arms in frame.grounds.items():
        ranked = sorted((arm for arm in arms if arm.evaluated), key=score_of, reverse=True)
        if not ranked:
            continue
        best, *others = ranked
        tied = [arm.label for arm in others if score_of(best) - score_of(arm) <= SAME_SCORE]
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
        seeds = min(len(arm.evaluated) for arm in (best, *references))
        results.append(Verdict(title, best, tied, len(ranked), seeds, level, differences))
    return results


def compare_with_references(frame: Frame) -> tuple[list[Comparison], list[str]]:
    """
    Every evaluated arm at k = 1, and by greedy decoding, against plain, the control and A of its ground, of several of
    a variant the one with the highest held-out pass@1; and which pairs were left out and why.
    """
    pairs = {}
    for arms in frame.grounds.values():
        evaluated = [arm for arm in arms if arm.evaluated]
        for variant in COMPARED:
            reference = max((arm for arm in evaluated if arm.variant == variant), key=score_of, default=None)
            if reference is None:
                continue
            for arm in evaluated:
                if arm.variant != variant:
                    pairs.setdefault(frozenset((arm.label, reference.label)), (arm, reference))
    return compare_pairs(list(pairs.values()), [1])
