"""
Rewards for the length of completions, as TRL reward functions. Lengths are in tokens.

A new one is a function and an entry of [`LENGTH_REWARDS`]; what adjusts it is a field of `TaskKeys` in keys.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def cosine(length: float, longest: float, least: float, most: float) -> float:
    """
    Compute η_min + ½ (η_max − η_min) (1 + cos(π t / T)) for length t: from `most` for an empty completion down to
    `least` for one of T tokens or more (ProRL v2's cosine length penalty; the form is that of arXiv 2502.03373).
    """
    return least + 0.5 * (most - least) * (1.0 + math.cos(math.pi * min(length / longest, 1.0)))


def is_on(step: int, on: int, off: int) -> bool:
    """
    Return whether a schedule that alternates `on` optimizer steps with `off` steps is on. With `off=0` it always is.
    """
    return step % (on + off) < on


def cosine_length_reward(longest: int, least: float, on: int = 1, off: int = 0) -> Callable:
    """
    Return a reward function that charges for long completions by [`cosine`] during `on` optimizer steps, and then not
    during `off` steps: ProRL v2 has 100 and 500. T is usually `max_completion_length`.
    """

    def cosine_length(completion_ids, trainer_state, **columns):
        if not is_on(trainer_state.global_step, on, off):
            return [0.0] * len(completion_ids)
        return [cosine(len(ids), longest, least, 0.0) for ids in completion_ids]

    return cosine_length


def target_length_reward(target: int, cost: float) -> Callable:
    """
    Return a reward function of −`cost` · |length − target|: L1's exact-length reward, arXiv 2503.04697, where the cost
    is 0.0003.
    """

    def target_length(completion_ids, **columns):
        return [-cost * abs(len(ids) - target) for ids in completion_ids]

    return target_length


def make_cosine(keys: Any, longest: int) -> Callable:
    """Make [`cosine_length_reward`] as a recipe's keys have it."""
    return cosine_length_reward(longest, keys.length_least, on=keys.length_on, off=keys.length_off)


def make_target(keys: Any, longest: int) -> Callable:
    """Make [`target_length_reward`] as a recipe's keys have it."""
    return target_length_reward(keys.length_target, keys.length_cost)


def make_overlong(keys: Any, longest: int) -> Callable:
    """Make TRL's soft punishment of the last `length_margin` tokens of the longest completion."""
    from trl.rewards import get_soft_overlong_punishment  # keys.py, which imports this file, does not wait for TRL

    return get_soft_overlong_punishment(longest, keys.length_margin)


@dataclass(frozen=True)
class LengthReward:
    """
    A value of the key `length_reward`.

    Attributes:
        make (`Callable`): Makes the reward function, from the keys of a recipe and `max_completion_length`.
        length_key (`str`, *optional*): A key that it cannot do without: a length of at most `max_completion_length`.
    """

    make: Callable[[Any, int], Callable]
    length_key: str | None = None


LENGTH_REWARDS = {
    "cosine": LengthReward(make_cosine),
    "target": LengthReward(make_target, length_key="length_target"),
    "overlong": LengthReward(make_overlong, length_key="length_margin"),
}
