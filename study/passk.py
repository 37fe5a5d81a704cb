"""
pass@k for large k: right ones of many samples per question, of a run's end and of its base, and what bounds pass@k.
Part of a run's evaluation (`study/evaluate.py`) where its block asks for `passk` of its arm.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.models import Point


class Moments(NamedTuple):
    """Mean and variance, over questions, of the chance that a sample is right."""

    mean: float
    variance: float


def count_rows(held_out: HeldOut, point: Point, samples: int) -> list[dict]:
    """Return the right ones of so many samples of a model, a row for each question."""
    verdicts = held_out.samples(point, samples)["correct"].to_numpy(dtype=int)
    counts = verdicts.reshape(-1, samples).sum(axis=1)
    return [{"prompt": place, "n": samples, "correct": int(count)} for place, count in enumerate(counts)]


def passk_rows(folder: Path, plan: dict) -> dict[str, list[dict]]:
    """Return the rows `passk` and `base_passk` of a run; `plan` is what the runner wrote."""
    asked = plan["passk"]
    held_out = HeldOut(folder, plan["split"], asked["prompts"])
    return {
        "passk": count_rows(held_out, held_out.trained, asked["samples"]),
        "base_passk": count_rows(held_out, held_out.base, asked["samples"]),
    }


def moments(correct: Sequence[int], n: int) -> Moments:
    """
    Estimate the moments from the right ones of each question's n samples.

    A question's chance rho is estimated by c / n, and its square by c (c - 1) / (n (n - 1)), both unbiased: the noise
    of the samples is no part of the variance.
    """
    counts = np.asarray(correct, dtype=float)
    mean = float((counts / n).mean())
    square = float((counts * (counts - 1) / (n * (n - 1))).mean())
    return Moments(mean, square - mean**2)


def upper_bound(mean: float, variance: float, k: int) -> float:
    """
    Return the highest pass@k, for k of 2 or more, of questions whose chances have these moments: 1 - ((1 - mean)^2 +
    variance)^(k / 2). Pass@k is 1 less the mean of (1 - rho)^k, which is at least the mean of (1 - rho)^2 to the power
    of k / 2, because that power is convex; both are the same at k = 2, and where all chances are.
    """
    return 1 - ((1 - mean) ** 2 + variance) ** (k / 2)
