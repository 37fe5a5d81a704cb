"""Compare runs, or variants over their seeds, on the same prompts; find the best variant."""

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.configurations import pairing_obstacle
from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.sampled_scores import per_prompt
from trl_prorl.eval.analysis.statistics import (
    Estimate,
    detectable_difference,
    holm,
    mcnemar_p_value,
    paired_p_value,
    prompts_and_seeds,
)
from trl_prorl.eval.run_folder.run import RecordedRun, require_passk


REFERENCES = ("plain", "control", "A")  # they come second in a pair
GREEDY = None  # in place of a k: the outcome is the accuracy of greedy decoding
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


def greedy_verdicts(run: RecordedRun) -> list[int] | None:
    """Return for each prompt whether the trained model's greedy completion is correct; `None` if not measured."""
    return (run.passk or {}).get("greedy", {}).get("trained", {}).get("correct")


def common_outcomes(runs: list[RecordedRun]) -> list[int | None]:
    """Return every k at which all runs were evaluated, 1 among them, and greedy decoding if all have it."""
    ks = sorted({1} | set.intersection(*(set(require_passk(run)["k"]) for run in runs)))
    return [*ks, GREEDY] if all(map(greedy_verdicts, runs)) else ks


def pair_by_seed(first: RunGroup, second: RunGroup) -> list[tuple[RecordedRun, RecordedRun]]:
    """
    Return the evaluated runs of two variants in pairs with the same seeds; single runs are a pair anyway.

    Raises:
        InputError: If they share no seed.
    """
    firsts, seconds = ({run.repetition: run for run in group.evaluated} for group in (first, second))
    pairs = [(firsts[seed], seconds[seed]) for seed in sorted(set(firsts) & set(seconds), key=str)]
    if not pairs and len(firsts) == len(seconds) == 1:
        pairs = [(*firsts.values(), *seconds.values())]
    if not pairs:
        raise InputError("they have no seed in common; train both with the same seeds, or compare only two runs")
    return pairs


def compare(first: RunGroup, second: RunGroup, k: int | None = 1) -> Comparison:
    """
    Compare the trained models of two variants over their evaluated runs, paired by seed and by prompt, by pass@k or by
    greedy decoding.

    Raises:
        InputError: If they share no seed, runs cannot be paired, or `k` exceeds the samples.
    """
    pairs = pair_by_seed(first, second)
    samples = pairs[0][0].passk["n"]
    if k is not GREEDY and not 1 <= k <= samples:
        raise InputError(f"--k {k} must be between 1 and the {samples} samples of passk.json")
    obstacles = [pairing_obstacle(pairs[0][0], run) for pair in pairs for run in pair]
    if any(obstacles):
        raise InputError(next(filter(None, obstacles)))
    firsts, seconds = (np.array([outcome_per_prompt(run, k) for run in runs]) for runs in zip(*pairs, strict=True))
    if len(pairs) == 1 and k in (GREEDY, samples):  # 0 or 1 at each prompt
        p_value = mcnemar_p_value(firsts[0], seconds[0])
    else:
        p_value = paired_p_value(firsts - seconds)
    return Comparison(
        first=first.label,
        second=second.label,
        k=k,
        difference=prompts_and_seeds(list(firsts - seconds), True, -1.0),
        seeds=sum(a.repetition == b.repetition for a, b in pairs),
        first_value=float(firsts.mean()),
        second_value=float(seconds.mean()),
        p_value=p_value,
        adjusted=p_value,
    )


def outcome_per_prompt(run: RecordedRun, k: int | None) -> np.ndarray:
    """pass@k, or greedy accuracy, of the trained model at each prompt, shape (P,)."""
    return np.array(greedy_verdicts(run), dtype=float) if k is GREEDY else per_prompt(run.passk, "trained", k)


def compare_pairs(
    pairs: list[tuple[RunGroup, RunGroup]], outcomes: list[int | None]
) -> tuple[list[Comparison], list[str]]:
    """
    Compare pairs of variants by every outcome, with Holm over the pairs of each. Also return a line for every pair
    that was skipped, with the reason.
    """
    rows = []
    skipped = {}
    for k in outcomes:
        comparisons = []
        for first, second in pairs:
            try:
                comparisons.append(compare(first, second, k))
            except InputError as error:
                skipped[f"{first.label} and {second.label} were not compared: {error}."] = None
        adjusted = holm([row.p_value for row in comparisons])
        tests = max(1, int(np.sum(~np.isnan(adjusted))))
        rows += [replace(row, adjusted=float(p), tests=tests) for row, p in zip(comparisons, adjusted, strict=True)]
    return rows, list(skipped)


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
        best = self.best.label
        behind = set()
        for row in self.found:
            if row.k == 1 and row.favours(best):
                behind |= {row.first, row.second}
        names = [group.label for group in self.ranked[1:] if group.label not in behind]
        return names if self.gain.low > 0 else ["base", *names]

    @property
    def is_significant(self) -> bool:
        """Whether the best of several variants is significantly better than every other one, and than base."""
        return len(self.ranked) > 1 and not self.not_behind


@lru_cache(maxsize=1)  # several sections ask, of one frame
def verdicts(frame: Frame) -> list[Verdict]:
    """Compare all evaluated variants of every ground in pass@1 and, if all runs have it, greedy decoding."""
    results = []
    for title, groups in frame.grounds.items():
        evaluated = [group for group in groups if group.evaluated]
        ranked = sorted(evaluated, key=lambda group: group.sides["trained"].value, reverse=True)
        if not ranked:
            continue
        pairs = [tuple(sorted(pair, key=place_in_pair, reverse=True)) for pair in combinations(ranked, 2)]
        pairs.sort(key=lambda pair: place_in_pair(pair[1]))  # by reference
        outcomes = common_outcomes([run for group in ranked for run in group.evaluated])
        results.append(Verdict(title, ranked, *compare_pairs(pairs, [k for k in outcomes if k in (1, GREEDY)])))
    return results


def place_in_pair(group: RunGroup) -> int:
    """Return a sort key: a reference variant comes second in its pair."""
    return REFERENCES.index(group.variant) if group.variant in REFERENCES else len(REFERENCES)
