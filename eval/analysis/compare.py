"""Compare two runs, or variants over their seeds, on the same prompts; find the best variant."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.configurations import why_not_paired
from trl_prorl.eval.analysis.frame import Frame, ReportArm, Row, step_seconds
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
from trl_prorl.provenance import describe_evaluation
from trl_prorl.variants import DIFFERENT_OBJECTIVE, optimises_another_objective


COMPARED = ("plain", "control", "A")  # references: every variant of their ground is compared with these
GREEDY = None  # in place of a k: the outcome is the accuracy of greedy decoding
SAME_SCORE = 1e-12  # scores that differ by less count as equal
SIGNIFICANT = 0.05  # largest p, after Holm, of a significant difference


@dataclass(frozen=True)
class Comparison:
    """
    One outcome, pass@k or greedy accuracy, of two runs or variants on the same prompts, over the seeds that both have.

    Attributes:
        first, second (`str`): Names of the runs or variants.
        k (`int` or `None`): The k of pass@k; `None` for greedy decoding.
        difference ([`Estimate`]): First − second, with a paired bootstrap over prompts; with several pairs of runs,
            the hull of that interval and the t-interval over seeds.
        seeds (`int`): Pairs of runs.
        first_value, second_value (`float`): The outcome of each, mean over the runs.
        p_value (`float`): p-value that the difference is 0. With one pair of runs and a yes-or-no outcome per prompt,
            exact McNemar; otherwise a t-test over prompts and, with several pairs, the larger p of that and of a
            t-test over seeds. NaN if there are too few prompts for a t-test.
        share ([`Estimate`] or `None`): First / second, with a bootstrap over prompts; with several pairs, the hull of
            that interval and Fieller's over runs. `None` without an interval, or if the interval of the second
            includes 0.
        step_time ([`Estimate`] or `None`): Ratio of mean step times, with Fieller's interval over steps for one pair
            and the t-interval of log ratios over runs for several. `None` without an interval, if not measured, or if
            a run trained in parallel with another one.
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
        """Name of the outcome: `pass@8`, `greedy`."""
        return "greedy" if self.k is GREEDY else f"pass@{self.k}"

    @property
    def differs(self) -> bool:
        """Whether the difference is significant: by the interval, and by the test after Holm."""
        return self.difference.excludes_zero and self.adjusted <= SIGNIFICANT

    def favours(self, side: str) -> bool:
        """Return whether one side, given by name, is significantly higher."""
        is_higher = self.difference.value > 0 if side == self.first else self.difference.value < 0
        return self.differs and is_higher

    @property
    def detectable(self) -> float:
        """The true difference that would be detected with 80 % power."""
        return detectable_difference(self.difference)


def compare(a: RecordedRun, b: RecordedRun, k: int | None = 1) -> Comparison:
    """
    Compare the trained models of `a` and `b`, paired by prompt, by pass@k or by greedy decoding.

    Raises:
        InputError: If the runs cannot be paired, `k` exceeds the samples, or greedy decoding was not measured.
    """
    first, second = Frame([a, b]).rows
    return _compare(a.name, b.name, [(first, second)], k)


def has_greedy(run: RecordedRun) -> bool:
    """Return whether greedy decoding was measured, prompt by prompt."""
    return _greedy_verdicts(run) is not None


def _greedy_verdicts(run: RecordedRun) -> list[int] | None:
    """Return for each prompt whether the trained model's greedy completion is correct; `None` if not measured."""
    greedy = (run.passk or {}).get("greedy") or {}
    return (greedy.get("trained") or {}).get("correct")


def _outcome_per_prompt(run: RecordedRun, k: int | None) -> np.ndarray:
    """pass@k, or greedy accuracy, of the trained model at each prompt, shape (P,)."""
    if k is GREEDY:
        return np.array(_greedy_verdicts(run), dtype=float)
    return per_prompt(run.passk, "trained", k)


def pair_notes(a: RecordedRun, b: RecordedRun) -> list[str]:
    """Return a sentence for every other difference between two runs."""
    notes = [f"`{run.name}`: {run.variant} {run.without_reset}." for run in (a, b) if run.without_reset]
    if optimises_another_objective(a.variant) != optimises_another_objective(b.variant):
        notes.append(DIFFERENT_OBJECTIVE)
    started = [(run.model, run.config.get("model_revision") or "main") for run in (a, b)]
    if started[0] != started[1]:
        notes.append(f"The runs started from different models: {started[0][0]} and {started[1][0]}.")
    steps = [int(run.passk.get("step") or run.metrics["step"].max()) for run in (a, b)]
    if steps[0] != steps[1]:
        notes.append(f"The runs were trained for {steps[0]} and {steps[1]} steps. Scores are not matched by step.")
    lacking = [run for run in (a, b) if not has_greedy(run)]
    if len(lacking) == 1:
        notes.append(f"Greedy decoding is not compared: `{lacking[0].name}` was evaluated without it.")
    alone = "One run each: the intervals are over prompts. Other training seeds may give other differences."
    return [*notes, alone]


def common_sizes(a: RecordedRun, b: RecordedRun) -> list[int]:
    """Return every k at which both runs were evaluated, and always 1."""
    return sorted({1} | (set(require_passk(a)["k"]) & set(require_passk(b)["k"])))


def compare_arms(first: ReportArm, second: ReportArm, k: int | None = 1) -> Comparison:
    """
    Compare two variants over their evaluated runs, paired by seed and by prompt.

    Raises:
        InputError: If they share no seed, or runs cannot be paired.
    """
    return _compare(first.label, second.label, pair_by_seed(first, second), k)


def pair_by_seed(first: ReportArm, second: ReportArm) -> list[tuple[Row, Row]]:
    """
    Return the evaluated runs of two variants in pairs with the same seeds; single runs are a pair anyway.

    Raises:
        InputError: If they share no seed.
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
        raise InputError("they have no seed in common; train both with the same seeds, or compare only two runs")
    return pairs


def without_partner(pairs: list[tuple[ReportArm, ReportArm]]) -> list[str]:
    """Return a line for every evaluated run that is left out of pairs of variants: the other one lacks its seed."""
    lacking = {}
    for first, second in pairs:
        paired = {row.run.name for pair in pair_by_seed(first, second) for row in pair}
        for arm, other in ((first, second), (second, first)):
            for run in arm.evaluated:
                if run.name not in paired:
                    same_seed = any(each.seed == run.seed for each in other.evaluated)
                    seed = f"seed {run.seed}" + (f" and starting model {run.model}" if same_seed else "")
                    lacking.setdefault((run.name, seed), []).append(other.label)
    lines = []
    for (name, seed), others in lacking.items():
        if len(others) == 1:
            lines.append(f"{name} is left out: {others[0]} has no run with {seed}.")
        else:
            lines.append(f"{name} is left out of {len(others)} pairs: {', '.join(others)} have no run with {seed}.")
    return lines


def _compare(first: str, second: str, pairs: list[tuple[Row, Row]], k: int | None) -> Comparison:
    _check_pairs(pairs, k)
    firsts = np.array([_outcome_per_prompt(a.run, k) for a, _ in pairs])
    seconds = np.array([_outcome_per_prompt(b.run, k) for _, b in pairs])
    samples = pairs[0][0].run.passk["n"]
    if len(pairs) == 1 and (k is GREEDY or k == samples):  # 0 or 1 at each prompt
        p_value = mcnemar(firsts[0], seconds[0]).p_value
    else:
        p_value = paired_p_value(firsts - seconds)
    return Comparison(
        first=first,
        second=second,
        k=k,
        difference=_within(prompts_and_seeds(list(firsts - seconds), True, -1.0), 1.0),
        seeds=len(pairs),
        first_value=float(firsts.mean()),
        second_value=float(seconds.mean()),
        p_value=p_value,
        share=_share(firsts, seconds),
        step_time=_step_time(pairs),
        adjusted=p_value,
    )


def _check_pairs(pairs: list[tuple[Row, Row]], k: int | None) -> None:
    """Raise `InputError` if runs cannot be paired, or lack the outcome."""
    for a, b in pairs:
        why = why_not_paired(a.run, b.run) or why_not_paired(pairs[0][0].run, a.run)
        if why:
            raise InputError(why)
        for run in (a.run, b.run):
            if k is GREEDY and not has_greedy(run):
                how = describe_evaluation(run.config, run.env, run.path)
                raise InputError(f"'{run.name}' has no greedy decoding in passk.json; add it with {how}")
        if k is not GREEDY and not 1 <= k <= a.run.passk["n"]:
            raise InputError(f"--k {k} must be between 1 and the {a.run.passk['n']} samples of passk.json")


def _within(difference: Estimate, most: float) -> Estimate:
    """Clip the interval of a difference to its possible range, which a t-interval may leave."""
    return Estimate(*np.clip(difference, -most, most).tolist())


def _share(firsts: np.ndarray, seconds: np.ndarray) -> Estimate | None:
    """
    Return the ratio of the means of an outcome, shape (S, P) each; `None` without an interval, or if the interval of
    the second side includes 0, because then any ratio is possible.
    """
    second = prompts_and_seeds(list(seconds), True)
    if not second.low > 0:  # NaN with too few prompts
        return None
    ratio = paired_bootstrap_ratio(firsts.mean(axis=0), seconds.mean(axis=0))
    if len(firsts) == 1:
        return ratio
    over_runs = fieller_ratio(firsts.mean(axis=1), seconds.mean(axis=1), paired=True)
    low = np.minimum(ratio.low, over_runs.low)
    high = np.maximum(ratio.high, over_runs.high)
    return Estimate(ratio.value, float(low), float(high))


def _step_time(pairs: list[tuple[Row, Row]]) -> Estimate | None:
    """Return the ratio of mean step times over the pairs in which both runs have one; `None` without an interval."""
    timed = [(first, second) for first, second in pairs if first.seconds and second.seconds]
    if not timed:
        return None
    if len(timed) == 1:
        steps = [step_seconds(row.run) for row in timed[0]]
        ratio = fieller_ratio(*steps, paired=False)
        return ratio if math.isfinite(ratio.high) else None
    firsts, seconds = np.array([(first.seconds, second.seconds) for first, second in timed]).T
    _, low, high = t_interval(np.log(firsts / seconds))
    return Estimate(float(firsts.mean() / seconds.mean()), math.exp(low), math.exp(high))


def compare_pairs(pairs: list[tuple[ReportArm, ReportArm]], ks: list[int]) -> tuple[list[Comparison], list[str]]:
    """
    Compare pairs of variants at every k and, if any run has it, by greedy decoding, with Holm over the pairs of each
    outcome. Also return a line for every pair that was skipped and for every run without a partner, with the reason.
    """
    outcomes: list[int | None] = list(ks)
    if any(has_greedy(run) for pair in pairs for arm in pair for run in arm.evaluated):
        outcomes.append(GREEDY)
    rows = []
    skipped = []
    compared = {}
    for k in outcomes:
        comparisons = []
        for first, second in pairs:
            try:
                comparisons.append(compare_arms(first, second, k))
                compared[first.label, second.label] = (first, second)
            except InputError as error:
                skipped.append(f"{first.label} and {second.label} were not compared: {str(error).rstrip('.')}.")
        adjusted = holm([each.p_value for each in comparisons])
        rows += [replace(each, adjusted=float(p)) for each, p in zip(comparisons, adjusted, strict=True)]
    return rows, [*dict.fromkeys(skipped), *without_partner(list(compared.values()))]


def compare_all_pairs(runs: list[RecordedRun], ks: list[int]) -> tuple[list[Comparison], list[str]]:
    """
    Compare every pair of variants at every k. Also return a line for every pair that was skipped, with the reason.

    Raises:
        InputError: If there is only one variant, or no pair can be compared.
    """
    arms = Frame(runs).arms
    if len(arms) < 2:
        raise InputError(
            f"--runs: all {len(runs)} runs are one variant with different seeds; give runs of a second variant"
        )
    rows, skipped = compare_pairs(list(combinations(arms, 2)), ks)
    if not rows:
        raise InputError(skipped[0])
    return rows, skipped


@dataclass(frozen=True)
class Verdict:
    """
    The variant with the highest held-out pass@1 among those of one ground.

    Attributes:
        title (`str`): Title of the ground; "" if there is only one.
        best ([`ReportArm`]): The best variant; at a tie, the first.
        tied (`list[str]`): Labels of the other variants with the same score.
        others (`list[str]`): Labels of all other evaluated variants of the ground, by score.
        shown (`list[str]`): Labels of the variants whose difference is printed: tied ones, control, plain and the
            second best.
        seeds (`int`): Smallest number of seeds among the compared variants.
        gain ([`Estimate`] or `None`): Best − base.
        comparisons (`dict[str, Comparison]`): Comparisons with the other variants, by their labels; without those
            whose runs have no prompts or seeds in common.
        pairs (`int`): Number of compared pairs, for which p is corrected.
    """

    title: str
    best: ReportArm
    tied: list[str]
    others: list[str]
    shown: list[str]
    seeds: int
    gain: Estimate | None
    comparisons: dict[str, Comparison]
    pairs: int

    @property
    def untested(self) -> bool:
        """Whether there are too few prompts for an interval."""
        return self.gain is not None and math.isnan(self.gain.low)

    @property
    def not_behind(self) -> list[str]:
        """Labels of the variants, and base, over which the best has no significant lead."""
        labels = [name for name, found in self.comparisons.items() if not found.favours(self.best.label)]
        if self.gain is None or not self.gain.low > 0:
            labels.insert(0, "base")
        return labels

    @property
    def is_significant(self) -> bool:
        """Whether the best of several variants is significantly better than every other one, and than base."""
        return bool(self.others) and set(self.comparisons) == set(self.others) and not self.not_behind


def score_of(arm: ReportArm) -> float:
    """Return the held-out pass@1 of the trained models, mean over the runs."""
    return float(np.mean([per_prompt(run.passk, "trained").mean() for run in arm.evaluated]))


@lru_cache(maxsize=1)  # several sections ask, of one frame
def compare_grounds(frame: Frame) -> dict[str, tuple[list[Comparison], list[str]]]:
    """Return [`compare_pairs`] of all evaluated variants of every ground at k = 1, by the ground's title."""
    found = {}
    for title, arms in frame.grounds.items():
        ranked = sorted((arm for arm in arms if arm.evaluated), key=score_of, reverse=True)
        pairs = []
        for pair in combinations(ranked, 2):
            pairs.append(tuple(sorted(pair, key=_place_in_pair, reverse=True)))
        pairs.sort(key=lambda pair: _place_in_pair(pair[1]))  # by reference
        found[title] = compare_pairs(pairs, [1])
    return found


def _place_in_pair(arm: ReportArm) -> int:
    """Return a sort key: a reference variant comes second in its pair."""
    return COMPARED.index(arm.variant) if arm.variant in COMPARED else len(COMPARED)


@lru_cache(maxsize=1)
def verdicts(frame: Frame) -> list[Verdict]:
    """Return the best variant of every ground with an evaluated run."""
    results = []
    for title, arms in frame.grounds.items():
        ranked = sorted((arm for arm in arms if arm.evaluated), key=score_of, reverse=True)
        if not ranked:
            continue
        best, *others = ranked
        tied = [arm.label for arm in others if score_of(best) - score_of(arm) <= SAME_SCORE]
        rows = [row for row in compare_grounds(frame)[title][0] if row.k == 1]
        comparisons = {}
        for arm in others:
            for row in rows:
                if {row.first, row.second} == {best.label, arm.label}:
                    comparisons[arm.label] = row
        references = [arm for arm in others if arm.variant in ("control", "plain") or arm is others[0]]
        results.append(
            Verdict(
                title=title,
                best=best,
                tied=tied,
                others=[arm.label for arm in others],
                shown=[arm.label for arm in others if arm in references or arm.label in tied],
                seeds=min(len(arm.evaluated) for arm in ranked),
                gain=best.gain(),
                comparisons=comparisons,
                pairs=len(rows),
            )
        )
    return results


def compare_with_references(frame: Frame) -> tuple[list[Comparison], list[str]]:
    """
    Return the comparisons with plain, control, A (if there are several, the one with the highest held-out pass@1) and
    the best variant of every ground. p is corrected for all pairs of a ground, returned or not. Also return a line for
    every pair that was skipped, with the reason.
    """
    rows = []
    skipped = []
    for title, arms in frame.grounds.items():
        evaluated = [arm for arm in arms if arm.evaluated]
        if not evaluated:
            continue
        references = {max(evaluated, key=score_of).label}
        for variant in COMPARED:
            of_variant = [arm for arm in evaluated if arm.variant == variant]
            if of_variant:
                references.add(max(of_variant, key=score_of).label)
        found, left = compare_grounds(frame)[title]
        rows += [row for row in found if {row.first, row.second} & references]
        skipped += left
    return rows, list(dict.fromkeys(skipped))
