"""Prompts that a run newly solves or has lost against its starting model: pass@k over k, and prompt by prompt."""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from scipy.stats import fisher_exact

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.passk import draw_sizes
from trl_prorl.eval.analysis.statistics import (
    Estimate,
    McNemar,
    bootstrap_interval,
    holm,
    mcnemar,
    paired_bootstrap_difference,
    pass_at_k_per_prompt,
)


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


class BoundaryRow(NamedTuple):
    """pass@k at one k, with intervals over prompts."""

    k: int
    base: Estimate
    trained: Estimate
    gain: Estimate


@dataclass(frozen=True)
class Boundary:
    """
    Base against trained, with n samples per prompt.

    Attributes:
        base, trained (`list[int]`): Correct samples of each prompt.
        prompts, n (`int`): Prompts, and samples of each.
        ks (`list[int]`): Powers of two up to n, n itself, and the evaluated k.
        newly_solved (`list[PromptChange]`): Prompts with no correct base sample and some of the trained model.
        lost (`list[PromptChange]`): The reverse.
        both, neither (`int`): Prompts with a correct sample on both sides, on none.
        solved_at_all (`McNemar`): Trained against base in "some sample is correct", which also changes by chance.
        rate_limit (`float`): Highest rate that 0 of n correct does not exclude at 95 %, 1 - 0.05^(1/n).
        separable_from (`int` or `None`): Number of correct samples of n that differs significantly from 0 among so
            many prompts; `None` if not even n does.
    """

    base: list[int]
    trained: list[int]
    prompts: int
    n: int
    ks: list[int]
    newly_solved: list[PromptChange]
    lost: list[PromptChange]
    both: int
    neither: int
    solved_at_all: McNemar
    rate_limit: float
    separable_from: int | None

    @cached_property
    def rows(self) -> list[BoundaryRow]:
        """pass@k at each k."""
        rows = []
        for k in self.ks:
            sides = [pass_at_k_per_prompt(counts, self.n, k) for counts in (self.base, self.trained)]
            measured = [Estimate(float(side.mean()), *bootstrap_interval(side)) for side in sides]
            rows.append(BoundaryRow(k, *measured, paired_bootstrap_difference(sides[1], sides[0])))
        return rows


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


def boundary(run_passk: dict) -> Boundary:
    """
    Return the changes from base to trained, from the content of `passk.json` (or one of its `others`): `n`, and
    `correct`, the counts of P >= 2 prompts, under `base` and `trained`.

    Raises:
        InputError: If a key is missing or the two sides have different prompts.
    """
    try:
        n = run_passk["n"]
        base = run_passk["base"]["correct"]
        trained = run_passk["trained"]["correct"]
    except KeyError as error:
        raise InputError(f"passk.json has no {error}; write it again with `trl-prorl passk`") from error
    if len(base) != len(trained) or len(base) < 2:
        raise InputError(
            f"passk.json has counts of {len(base)} base and {len(trained)} trained prompts; at least 2 prompts, the "
            "same on both sides, are needed: write it again with `trl-prorl passk`"
        )
    newly_solved, lost = changed_prompts(base, trained, n)
    solved = np.array([base, trained]) > 0
    return Boundary(
        base=base,
        trained=trained,
        prompts=len(base),
        n=n,
        ks=draw_sizes(n, run_passk.get("k", ())),
        newly_solved=newly_solved,
        lost=lost,
        both=int(solved.all(axis=0).sum()),
        neither=int((~solved).all(axis=0).sum()),
        solved_at_all=mcnemar(solved[1], solved[0]),
        rate_limit=rate_limit(n),
        separable_from=separable_from(n, len(base)),
    )
