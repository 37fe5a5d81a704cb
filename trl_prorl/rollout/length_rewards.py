"""Rewards for the length of completions, as TRL reward functions. Lengths are in tokens."""

import math
from collections.abc import Callable


def cosine(length: float, longest: float, least: float, most: float) -> float:
    """
    Compute ProRL v2's cosine length penalty, of the form of arXiv 2502.03373.

        η_min + ½ (η_max − η_min) (1 + cos(π t / T))     for length t, with η_min = `least` and η_max = `most`

    It falls from `most` for an empty completion to `least` for one of T = `longest` tokens or more.
    """
    share = min(length / longest, 1.0)
    return least + 0.5 * (most - least) * (1.0 + math.cos(math.pi * share))


def is_on(step: int, on: int, off: int) -> bool:
    """Whether a schedule that alternates `on` optimizer steps with `off` steps is on. With `off=0` it always is."""
    return step % (on + off) < on


def cosine_length_reward(longest: int, least: float, most: float = 0.0, on: int = 1, off: int = 0) -> Callable:
    """
    Make a reward function that charges for long completions by [`cosine`].

    It does so during `on` optimizer steps, and then not during `off` steps: ProRL v2 has 100 and 500. T is usually
    `max_completion_length`.
    """

    def cosine_length(completion_ids, trainer_state, **columns):
        if not is_on(trainer_state.global_step, on, off):
            return [0.0] * len(completion_ids)
        return [cosine(len(ids), longest, least, most) for ids in completion_ids]

    return cosine_length


def target_length_reward(target: int, cost: float) -> Callable:
    """
    Make a reward function of −`cost` · |length − target|: L1's exact-length reward, arXiv 2503.04697.

    There the cost is 0.0003.
    """

    def target_length(completion_ids, **columns):
        return [-cost * abs(len(ids) - target) for ids in completion_ids]

    return target_length
