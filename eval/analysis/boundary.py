"""Prompts that a run newly solves or has lost against its starting model."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.stats import fisher_exact

from trl_prorl.eval.analysis.passk import SIDES
from trl_prorl.eval.analysis.statistics import McNemar, holm, mcnemar


ERROR_RATE = 0.05


class PromptChange(NamedTuple):
    """
    A prompt that went from no correct sample to some, or back: its index among the evaluated prompts, correct samples
    of n on both sides, and p of Fisher's exact test of equal rates, two-sided, after Holm's correction over all
    prompts.
    """

    prompt: int
    base: int
    trained: int
    p_value: float

    @property
    def separated(self) -> bool:
        """Whether the two rates differ significantly, at 5 % over all prompts together."""
        return self.p_value <= ERROR_RATE


@dataclass(frozen=True)
class Boundary:
    """
    Base against trained, with n samples per prompt.

    Attributes:
        prompts, n (`int`): Prompts, and samples of each.
        newly_solved (`list[PromptChange]`): Prompts with no correct base sample and some of the trained model.
        lost (`list[PromptChange]`): The reverse.
        both, neither (`int`): Prompts with a correct sample on both sides, on none.
        solved_at_all (`McNemar`): Trained against base in "some sample is correct", which also changes by chance.
        rate_limit (`float`): Highest rate that 0 of n correct does not exclude at 95 %, 1 - 0.05^(1/n).
        separable_from (`int` or `None`): Number of correct samples of n that differs significantly from 0 among so
            many prompts; `None` if not even n does.
    """

    prompts: int
    n: int
    newly_solved: list[PromptChange]
    lost: list[PromptChange]
    both: int
    neither: int
    solved_at_all: McNemar
    rate_limit: float
    separable_from: int | None


def rate_limit(n: int) -> float:
    """Return the rate at which no correct sample among `n` has a chance of 5 %; about 3/n (the rule of three)."""
    return 1 - ERROR_RATE ** (1 / n)


@cache
def _fisher(base: int, trained: int, n: int) -> float:
    """Return p of Fisher's exact test of equal rates, two-sided."""
    return float(fisher_exact([[base, n - base], [trained, n - trained]]).pvalue)


def changed_prompts(base, trained, n: int) -> tuple[list[PromptChange], list[PromptChange]]:
    """
    Return the newly solved and the lost prompts, each in the order of prompts, with the p-value of each, from correct
    samples of `n` on each side, shape (P,).

    Holm's correction is over all prompts. Prompts with no correct sample on one side are selected by the counts that
    are tested, so a correction over them only would find false changes.
    """
    counts = list(zip(base, trained, strict=True))
    adjusted = holm([_fisher(b, t, n) for b, t in counts])
    changes = []
    for prompt, (b, t) in enumerate(counts):
        changes.append(PromptChange(prompt, b, t, float(adjusted[prompt])))
    newly_solved = [change for change in changes if change.base == 0 < change.trained]
    lost = [change for change in changes if change.trained == 0 < change.base]
    return newly_solved, lost


def separable_from(n: int, prompts: int) -> int | None:
    """Return the fewest correct of `n` that differ significantly from 0 of `n` at the strictest of Holm's levels."""
    for correct in range(1, n + 1):
        if _fisher(0, correct, n) * prompts <= ERROR_RATE:
            return correct
    return None


def boundary(result: dict) -> Boundary:
    """Return the changes from base to trained, from the content of `passk.json`."""
    n = result["n"]
    base, trained = (result[side]["correct"] for side in SIDES)
    newly_solved, lost = changed_prompts(base, trained, n)
    solved = np.array([base, trained]) > 0
    return Boundary(
        prompts=len(base),
        n=n,
        newly_solved=newly_solved,
        lost=lost,
        both=int(solved.all(axis=0).sum()),
        neither=int((~solved).all(axis=0).sum()),
        solved_at_all=mcnemar(solved[1], solved[0]),
        rate_limit=rate_limit(n),
        separable_from=separable_from(n, len(base)),
    )
