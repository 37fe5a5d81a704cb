"""The best arm on held-out pass@1, and whether it is told apart from base, control and plain."""

from dataclasses import dataclass

import numpy as np

from trl_prorl.eval.analysis.names import configuration_labels
from trl_prorl.eval.analysis.over_seeds import prompts_and_seeds
from trl_prorl.eval.analysis.pairing import belonging, ground, same_prompts
from trl_prorl.eval.analysis.passk import per_prompt
from trl_prorl.eval.analysis.repetitions import repetitions, seed_count
from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.eval.run_folder.run import Run


REFERENCES = ("control", "plain")


@dataclass(frozen=True)
class Arm:
    """A configuration by its name, and those of its runs that were evaluated."""

    label: str
    runs: list[Run]

    def score(self, side: str = "trained") -> float:
        """Held-out pass@1, mean over the runs."""
        return float(np.mean([per_prompt(run.passk, side).mean() for run in self.runs]))


@dataclass(frozen=True)
class Verdict:
    """
    The best arm of a ground.

    Attributes:
        best (`Arm`): The arm with the highest held-out pass@1.
        arms (`int`): Evaluated arms of its ground.
        seeds (`int`): Fewest seeds of an arm that is compared.
        level (`float`): Coverage of the intervals: 95 % for one comparison, corrected for several (Bonferroni).
        gain ([`Estimate`]): Trained less base.
        against (`list[tuple[Arm, Estimate | None]]`): Each control and plain arm, without both the second best arm:
            best less this one; `None` where the runs have no prompts or seeds in common.
    """

    best: Arm
    arms: int
    seeds: int
    level: float
    gain: Estimate
    against: list[tuple[Arm, Estimate | None]]


def told_apart(difference: Estimate | None) -> bool:
    """Whether there is an interval, and it excludes 0."""
    return difference is not None and (difference.low > 0 or difference.high < 0)


def _over(values: list[np.ndarray], runs: list[Run], level: float) -> Estimate:
    same = all(same_prompts(runs[0], run) for run in runs)
    return Estimate(*np.clip(prompts_and_seeds(values, same, -1.0, level), -1.0, 1.0).tolist())


def _difference(first: Arm, second: Arm, level: float) -> Estimate | None:
    """Over pairs of equal seeds, or of the only run on each side."""
    found = belonging([(a, b) for a in first.runs for b in second.runs])
    if len(found) > min(len(first.runs), len(second.runs)) or not all(same_prompts(a, b) for a, b in found):
        return None
    values = [per_prompt(a.passk, "trained") - per_prompt(b.passk, "trained") for a, b in found]
    return _over(values, [a for a, _ in found], level)


def _verdict(arms: list[Arm]) -> Verdict:
    best, *others = sorted(arms, key=Arm.score, reverse=True)
    references = [arm for arm in others if arm.runs[0].variant in REFERENCES] or others[:1]
    # The best was chosen among all, so each arm could have been compared with each reference.
    level = 1 - 0.05 / max(1, len(others) * len(references))
    gains = [per_prompt(run.passk, "trained") - per_prompt(run.passk, "base") for run in best.runs]
    against = [(arm, _difference(best, arm, level)) for arm in references]
    seeds = min(seed_count(arm.runs) for arm in (best, *references))
    return Verdict(best, len(arms), seeds, level, _over(gains, best.runs, level), against)


def verdicts(runs: list[Run]) -> list[Verdict]:
    """The best arm of every ground with an evaluated run, in the order of the runs."""
    grounds: dict[str, list[Arm]] = {}
    groups = repetitions(runs)
    for label, group in zip(configuration_labels(groups), groups, strict=True):
        if evaluated := [run for run in group if run.passk]:
            grounds.setdefault(ground(group[0]), []).append(Arm(label, evaluated))
    return [_verdict(arms) for arms in grounds.values()]
