"""Any number of runs on the same held-out prompts: arms averaged over seeds, and every pair of them compared."""

import math
import warnings
from dataclasses import dataclass, replace
from itertools import combinations, groupby

import numpy as np
from scipy import stats

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.compare import check_comparable, compare
from trl_prorl.eval.analysis.names import configuration_labels
from trl_prorl.eval.analysis.over_seeds import prompts_and_seeds
from trl_prorl.eval.analysis.passk import per_prompt
from trl_prorl.eval.analysis.repetitions import repetitions
from trl_prorl.eval.analysis.statistics import Estimate, detectable_difference, holm
from trl_prorl.eval.run_folder.run import Run


@dataclass(frozen=True)
class ArmComparison:
    """
    Two arms: pass@k of each, first less second with the hull of the intervals over prompts and over seeds, and p: of
    one run on each side exact McNemar, else the larger of t-tests over seeds and prompts; `adjusted` is after Holm.
    """

    first: str
    second: str
    k: int
    seeds: int
    first_value: float
    second_value: float
    difference: Estimate
    p_value: float
    adjusted: float = math.nan

    @property
    def detectable(self) -> float:
        """The true difference that is found with 80 % power."""
        return detectable_difference(self.difference)


def compare_arms(runs: list[Run], ks: list[int]) -> tuple[list[ArmComparison], list[str]]:
    """
    Every pair of arms at every k, by k, and which pairs were left out and why. Runs that differ in seeds alone are one
    arm.

    Raises:
        InputError: There is one arm only, or no pair can be compared.
    """
    groups = repetitions(runs)
    if len(groups) < 2:
        raise InputError(f"--runs: all {len(runs)} runs are one arm with different seeds; give runs of another arm")
    arms, found, left = list(zip(configuration_labels(groups), groups, strict=True)), [], []
    for k in ks:
        for a, b in combinations(arms, 2):
            try:
                found.append(_pair(a, b, k))
            except InputError as error:
                left.append(f"{a[0]} and {b[0]} were not compared: {str(error).rstrip('.')}.")
    if not found:
        raise InputError(left[0])
    rows = []
    for _, of_k in groupby(found, key=lambda each: each.k):
        of_k = list(of_k)
        adjusted = holm([each.p_value for each in of_k])
        rows += [replace(each, adjusted=float(p)) for each, p in zip(of_k, adjusted, strict=True)]
    return rows, list(dict.fromkeys(left))


def _pair(first: tuple[str, list[Run]], second: tuple[str, list[Run]], k: int) -> ArmComparison:
    sides = [{run.repetition: run for run in group} for _, group in (first, second)]
    shared = sorted(set(sides[0]) & set(sides[1]), key=str)
    if not shared:
        raise InputError("they have no seed in common; train both with the same seeds, or compare two runs alone")
    pairs = [(sides[0][seed], sides[1][seed]) for seed in shared]
    for pair in pairs[1:]:
        for run in pair:
            check_comparable(pairs[0][0], run)
    each = [compare(a, b, k) for a, b in pairs]
    values = np.array([per_prompt(a.passk, "trained", k) - per_prompt(b.passk, "trained", k) for a, b in pairs])
    difference, p_value = each[0].difference, each[0].paired.p_value
    if len(pairs) > 1:
        difference = prompts_and_seeds(list(values), same=True, least=-1.0)
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # where nothing differs
            p_values = [stats.ttest_1samp(values.mean(axis=axis), 0.0).pvalue for axis in (0, 1)]
        p_value = float(np.max(np.nan_to_num(p_values, nan=1.0)))
    values_of = [(one.first_value, one.second_value) for one in each]
    means = [float(np.mean([side.value for side in of_arm])) for of_arm in zip(*values_of, strict=True)]
    return ArmComparison(first[0], second[0], k, len(pairs), *means, difference, p_value)
