"""Compare runs, or variants over their seeds, on the same prompts; find the best variant."""

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from trl_prorl.cli.variants import DIFFERENT_OBJECTIVE, optimises_another_objective
from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.configurations import pairing_obstacle, value_of
from trl_prorl.eval.analysis.frame import Frame, Row, RunGroup
from trl_prorl.eval.analysis.sampled_scores import per_prompt
from trl_prorl.eval.analysis.statistics import (
    Estimate,
    detectable_difference,
    holm,
    mcnemar_p_value,
    paired_p_value,
    prompts_and_seeds,
)
from trl_prorl.eval.run_folder.run import GROUND, MODEL, RecordedRun, require_passk
from trl_prorl.run.provenance import describe_evaluation


COMPARED = ("plain", "control", "A")  # references: every variant of their ground is compared with these
GREEDY = None  # in place of a k: the outcome is the accuracy of greedy decoding
SAME_SCORE = 1e-12  # scores that differ by less count as equal
ONE_RUN_EACH = "One run each: the intervals are over prompts. Other training seeds may give other differences."
SIGNIFICANT = 0.05  # largest p, after Holm, of a significant difference


@dataclass(frozen=True)
class Comparison:
    """
    One outcome, pass@k or greedy accuracy, of two runs or variants on the same prompts, over the seeds that both have.

    Attributes:
        first, second (`str`): Names of the runs or variants.
        k (`int` or `None`): The k of pass@k; `None` for greedy decoding.
        difference ([`Estimate`]): First − second, paired by prompt; with several pairs of runs, the hull of that
            interval and the t-interval over seeds.
        seeds (`int`): Pairs of runs with the same seeds; 0 for single runs with different ones.
        first_value, second_value (`float`): The outcome of each, mean over the runs.
        p_value (`float`): p-value that the difference is 0. With one pair of runs and a yes-or-no outcome per prompt,
            exact McNemar; otherwise a t-test over prompts and, with several pairs, the larger p of that and of a
            t-test over seeds. NaN if there are too few prompts for a t-test.
        adjusted (`float`): p after Holm over the comparisons of an outcome.
        tests (`int`): Number of these comparisons that have a p, and at least 1.
    """

    first: str
    second: str
    k: int | None
    difference: Estimate
    seeds: int
    first_value: float
    second_value: float
    p_value: float
    adjusted: float
    tests: int = 1

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
        """The true difference that would be detected with 80 % power, after Holm."""
        return detectable_difference(self.difference, self.tests)


def has_greedy(run: RecordedRun) -> bool:
    """Return whether greedy decoding was measured, prompt by prompt."""
    return _greedy_verdicts(run) is not None


def _greedy_verdicts(run: RecordedRun) -> list[int] | None:
    """Return for each prompt whether the trained model's greedy completion is correct; `None` if not measured."""
    return (run.passk or {}).get("greedy", {}).get("trained", {}).get("correct")


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
        names = [f"{model} ({revision})" if started[0][0] == started[1][0] else model for model, revision in started]
        notes.append(f"The runs started from different models: {names[0]} and {names[1]}.")
    templates = [run.config.get("chat_template_kwargs") or None for run in (a, b)]
    if templates[0] != templates[1]:
        notes.append(f"The same prompts were given in different forms: chat_template_kwargs {_both(templates)}.")
    steps = [_trained_steps(run) for run in (a, b)]
    if steps[0] != steps[1]:
        notes.append(f"The runs were trained for {steps[0]} and {steps[1]} steps. Scores are not matched by step.")
    lacking = [run for run in (a, b) if not has_greedy(run)]
    if len(lacking) == 1:
        notes.append(f"Greedy decoding is not compared: `{lacking[0].name}` was evaluated without it.")
    return [*notes, ONE_RUN_EACH]


def group_notes(pairs: list[tuple[RunGroup, RunGroup]]) -> list[str]:
    """
    Return a sentence for every pair of variants with different starting models, prompts, grounds, steps or, of single
    runs, seeds; and one if every variant has a single run.
    """
    notes = []
    for pair in pairs:
        runs = [row.run for row in pair_by_seed(*pair)[0]]
        values = {key: [value_of(run, key) for run in runs] for key in (MODEL, *GROUND)}
        values["chat_template_kwargs"] = [run.config.get("chat_template_kwargs") or None for run in runs]
        values["model_revision"] = [run.config.get("model_revision") or "main" for run in runs]
        values["seed"] = [run.seed for run in runs]
        if runs[0].base != runs[1].base:
            values[MODEL] = [run.config.get(MODEL) or run.model for run in runs]
        values["steps"] = [" or ".join(map(str, sorted(set(map(_trained_steps, group.evaluated))))) for group in pair]
        if values["steps"][0] != values["steps"][1]:
            del values["max_steps"]
        differing = []
        for key, (first, second) in values.items():
            if first != second:
                differing.append(f"{key} ({_both([first, second])})")
        if differing:
            names = f"{pair[0].label} and {pair[1].label}"
            notes.append(f"{names} differ in {', '.join(differing)}: their difference may be due to this.")
    if all(len(pair_by_seed(*pair)) == 1 for pair in pairs):
        notes.append(ONE_RUN_EACH)
    return notes


def _both(values: list) -> str:
    return " and ".join("not set" if value is None else str(value) for value in values)


def _trained_steps(run: RecordedRun) -> int:
    """Return the step of the weights that were evaluated."""
    return run.passk.get("step") or run.last_step


def common_sizes(runs: list[RecordedRun]) -> list[int]:
    """Return every k at which all runs were evaluated, and always 1."""
    return sorted({1} | set.intersection(*(set(require_passk(run)["k"]) for run in runs)))


def pair_by_seed(first: RunGroup, second: RunGroup) -> list[tuple[Row, Row]]:
    """
    Return the evaluated runs of two variants in pairs with the same seeds; single runs are a pair anyway.

    Raises:
        InputError: If they share no seed.
    """
    by_seed = []
    for group in (first, second):
        evaluated = [row for row in group.rows if row.run.passk]
        by_seed.append({row.run.repetition: row for row in evaluated or group.rows})
    firsts, seconds = by_seed
    pairs = [(firsts[seed], seconds[seed]) for seed in sorted(set(firsts) & set(seconds), key=str)]
    if not pairs and len(firsts) == len(seconds) == 1:
        pairs = [(*firsts.values(), *seconds.values())]
    if not pairs:
        raise InputError("they have no seed in common; train both with the same seeds, or compare only two runs")
    return pairs


def without_partner(pairs: list[tuple[RunGroup, RunGroup]]) -> list[str]:
    """Return a line for every evaluated run that is left out of pairs of variants: the other one lacks its seed."""
    lacking = {}
    for first, second in pairs:
        paired = {row.run for pair in pair_by_seed(first, second) for row in pair}
        for group, other in ((first, second), (second, first)):
            for run in group.evaluated:
                if run not in paired:
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


def compare(first: RunGroup, second: RunGroup, k: int | None = 1) -> Comparison:
    """
    Compare the trained models of two variants over their evaluated runs, paired by seed and by prompt, by pass@k or by
    greedy decoding.

    Raises:
        InputError: If they share no seed, runs cannot be paired, `k` exceeds the samples, or greedy decoding was not
            measured.
    """
    pairs = pair_by_seed(first, second)
    _check_pairs(pairs, k)
    firsts = np.array([_outcome_per_prompt(a.run, k) for a, _ in pairs])
    seconds = np.array([_outcome_per_prompt(b.run, k) for _, b in pairs])
    samples = pairs[0][0].run.passk["n"]
    if len(pairs) == 1 and (k is GREEDY or k == samples):  # 0 or 1 at each prompt
        p_value = mcnemar_p_value(firsts[0], seconds[0])
    else:
        p_value = paired_p_value(firsts - seconds)
    return Comparison(
        first=first.label,
        second=second.label,
        k=k,
        difference=prompts_and_seeds(list(firsts - seconds), True, -1.0),
        seeds=sum(a.run.repetition == b.run.repetition for a, b in pairs),
        first_value=float(firsts.mean()),
        second_value=float(seconds.mean()),
        p_value=p_value,
        adjusted=p_value,
    )


def _check_pairs(pairs: list[tuple[Row, Row]], k: int | None) -> None:
    """Raise `InputError` if runs cannot be paired, or lack the outcome."""
    for a, b in pairs:
        obstacle = pairing_obstacle(a.run, b.run) or pairing_obstacle(pairs[0][0].run, a.run)
        if obstacle:
            raise InputError(obstacle)
        for run in (a.run, b.run):
            if k is GREEDY and not has_greedy(run):
                how = describe_evaluation(run.config, run.env, run.path)
                raise InputError(f"'{run.name}' has no greedy decoding in passk.json; add it with {how}")
        if k is not GREEDY and not 1 <= k <= a.run.passk["n"]:
            raise InputError(f"--k {k} must be between 1 and the {a.run.passk['n']} samples of passk.json")


def compare_pairs(
    pairs: list[tuple[RunGroup, RunGroup]], outcomes: list[int | None]
) -> tuple[list[Comparison], list[str]]:
    """
    Compare pairs of variants by every outcome, with Holm over the pairs of each. Also return a line for every pair
    that was skipped and for every run without a partner, with the reason.
    """
    rows = []
    skipped = []
    compared = {}
    for k in dict.fromkeys(outcomes):
        comparisons = []
        for first, second in pairs:
            try:
                comparisons.append(compare(first, second, k))
                compared[first.label, second.label] = (first, second)
            except InputError as error:
                skipped.append(f"{first.label} and {second.label} were not compared: {str(error).rstrip('.')}.")
        adjusted = holm([each.p_value for each in comparisons])
        tests = max(1, int(np.sum(~np.isnan(adjusted))))
        rows += [replace(each, adjusted=float(p), tests=tests) for each, p in zip(comparisons, adjusted, strict=True)]
    return rows, [*dict.fromkeys(skipped), *without_partner(list(compared.values()))]


def comparisons_to_json(comparisons: list[Comparison]) -> list[dict]:
    """Return comparisons as JSON values."""
    return [{"outcome": row.outcome, **asdict(row), "detectable": row.detectable} for row in comparisons]


@dataclass(frozen=True)
class Verdict:
    """
    The variants of one ground, compared.

    Attributes:
        title (`str`): Title of the ground; "" if there is only one.
        ranked (`list[RunGroup]`): Its evaluated variants, by held-out pass@1, the best first.
        found (`list[Comparison]`): The comparisons of all pairs with prompts and seeds in common.
        skipped (`list[str]`): A line for every pair that was skipped, with the reason.
    """

    title: str
    ranked: list[RunGroup]
    found: list[Comparison]
    skipped: list[str]

    @property
    def best(self) -> RunGroup:
        """The best variant; at a tie, the first."""
        return self.ranked[0]

    @property
    def others(self) -> list[str]:
        return [group.label for group in self.ranked[1:]]

    @property
    def tied(self) -> list[str]:
        """Labels of the other variants with the same score."""
        best = score_of(self.best)
        return [group.label for group in self.ranked[1:] if best - score_of(group) <= SAME_SCORE]

    @property
    def shown(self) -> list[str]:
        """Labels of the variants whose difference is printed: tied ones, control, plain and the second best."""
        shown = {*self.tied, *self.others[:1]}
        shown |= {group.label for group in self.ranked[1:] if group.variant in ("control", "plain")}
        return [label for label in self.others if label in shown]

    @property
    def seeds(self) -> int:
        """Smallest number of seeds among the variants."""
        return min(len(group.evaluated) for group in self.ranked)

    @property
    def pairs(self) -> int:
        """Number of compared pairs, for which p is corrected."""
        return sum(row.k == 1 for row in self.found)

    @property
    def comparisons(self) -> dict[str, Comparison]:
        """Comparisons of the best variant in pass@1, by the label of the other one."""
        rows = {}
        for row in self.found:
            if row.k == 1 and self.best.label in (row.first, row.second):
                rows[row.second if row.first == self.best.label else row.first] = row
        return {label: rows[label] for label in self.others if label in rows}

    @property
    def gain(self) -> Estimate:
        """Best − base."""
        return self.best.gain()

    @property
    def untested(self) -> bool:
        """Whether there are too few prompts for an interval."""
        return math.isnan(self.gain.low)

    @property
    def not_behind(self) -> list[str]:
        """Labels of the variants, and base, over which the best has no significant lead."""
        labels = [name for name, row in self.comparisons.items() if not row.favours(self.best.label)]
        return labels if self.gain.low > 0 else ["base", *labels]

    @property
    def is_significant(self) -> bool:
        """Whether the best of several variants is significantly better than every other one, and than base."""
        return bool(self.others) and set(self.comparisons) == set(self.others) and not self.not_behind


def score_of(group: RunGroup) -> float:
    """Return the held-out pass@1 of the trained models, mean over the runs."""
    return float(np.mean([per_prompt(run.passk, "trained").mean() for run in group.evaluated]))


@lru_cache(maxsize=1)  # several sections ask, of one frame
def verdicts(frame: Frame) -> list[Verdict]:
    """Compare all evaluated variants of every ground in pass@1 and, if any run has it, greedy decoding."""
    results = []
    for title, groups in frame.grounds.items():
        ranked = sorted((group for group in groups if group.evaluated), key=score_of, reverse=True)
        if not ranked:
            continue
        pairs = [tuple(sorted(pair, key=_place_in_pair, reverse=True)) for pair in combinations(ranked, 2)]
        pairs.sort(key=lambda pair: _place_in_pair(pair[1]))  # by reference
        any_greedy = any(has_greedy(run) for group in ranked for run in group.evaluated)
        outcomes = [1, GREEDY] if any_greedy else [1]
        results.append(Verdict(title, ranked, *compare_pairs(pairs, outcomes)))
    return results


def _place_in_pair(group: RunGroup) -> int:
    """Return a sort key: a reference variant comes second in its pair."""
    return COMPARED.index(group.variant) if group.variant in COMPARED else len(COMPARED)


def compare_with_references(frame: Frame) -> tuple[list[Comparison], list[str]]:
    """
    Return the comparisons with plain, control, A (if there are several, the one with the highest held-out pass@1) and
    the best variant of every ground. p is corrected for all pairs of a ground, returned or not. Also return a line for
    every pair that was skipped, with the reason.
    """
    rows = []
    skipped = []
    for verdict in verdicts(frame):
        references = {verdict.best.label}
        for variant in COMPARED:
            references.update([group.label for group in verdict.ranked if group.variant == variant][:1])
        rows += [row for row in verdict.found if {row.first, row.second} & references]
        skipped += verdict.skipped
    return rows, list(dict.fromkeys(skipped))
