"""Prompts that a run newly solves or has lost against its starting model."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.stats import fisher_exact

from trl_prorl.eval.analysis.statistics import ERROR_RATE, holm, mcnemar_p_value
from trl_prorl.run.log_files import SIDES


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
    def is_significant(self) -> bool:
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
        p_value (`float`): Exact McNemar test of "some sample is correct", which also changes by chance.
    """

    prompts: int
    n: int
    newly_solved: list[PromptChange]
    lost: list[PromptChange]
    both: int
    neither: int
    p_value: float

    @property
    def rate_limit(self) -> float:
        """The rate at which no correct sample among n has a chance of 5 %; about 3/n (the rule of three)."""
        return 1 - ERROR_RATE ** (1 / self.n)

    @property
    def separable_from(self) -> int | None:
        """The fewest correct of n that differ significantly from 0 of n at the strictest of Holm's levels."""
        for correct in range(1, self.n + 1):
            if _fisher(0, correct, self.n) * self.prompts <= ERROR_RATE:
                return correct
        return None


@cache
def _fisher(base: int, trained: int, n: int) -> float:
    """Return p of Fisher's exact test of equal rates, two-sided."""
    return float(fisher_exact([[base, n - base], [trained, n - trained]]).pvalue)


def boundary(result: dict) -> Boundary:
    """
    Return the changes from base to trained, from the content of `passk.json`.

    Holm's correction is over all prompts. Prompts with no correct sample on one side are selected by the counts that
    are tested, so a correction over them only would find false changes.
    """
    n = result["n"]
    base, trained = (result[side]["correct"] for side in SIDES)
    counts = list(zip(base, trained, strict=True))
    adjusted = holm([_fisher(b, t, n) for b, t in counts])
    changes = [PromptChange(prompt, b, t, float(adjusted[prompt])) for prompt, (b, t) in enumerate(counts)]
    solved_base, solved_trained = np.array([base, trained]) > 0
    return Boundary(
        prompts=len(counts),
        n=n,
        newly_solved=[change for change in changes if change.base == 0 < change.trained],
        lost=[change for change in changes if change.trained == 0 < change.base],
        both=int((solved_base & solved_trained).sum()),
        neither=int((~solved_base & ~solved_trained).sum()),
        p_value=mcnemar_p_value(solved_trained, solved_base),
    )
