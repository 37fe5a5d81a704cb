"""Rewards for the length of completions, in tokens, as TRL reward functions."""

import math
from collections.abc import Callable
from typing import Any


def cosine(length: float, longest: float, least: float) -> float:
    """
    Compute η_min + ½ (0 − η_min) (1 + cos(π t / T)) for t tokens, `least` from T tokens on (ProRL v2's cosine length
    penalty; form from arXiv 2502.03373).
    """
    return least - 0.5 * least * (1.0 + math.cos(math.pi * min(length / longest, 1.0)))


def cosine_length_reward(keys: Any, longest: int) -> Callable:
    """
    Penalise long completions by [`cosine`], on for `length_on` optimizer steps, off for `length_off` (ProRL v2: 100
    and 500).
    """

    def cosine_length(completion_ids, trainer_state, **columns):
        is_on = trainer_state.global_step % (keys.length_on + keys.length_off) < keys.length_on
        return [cosine(len(ids), longest, keys.length_least) if is_on else 0.0 for ids in completion_ids]

    return cosine_length


def target_length_reward(keys: Any, longest: int) -> Callable:
    """Return −`length_cost` · |length − `length_target`|, L1's exact-length reward (cost 0.0003, arXiv 2503.04697)."""

    def target_length(completion_ids, **columns):
        return [-keys.length_cost * abs(len(ids) - keys.length_target) for ids in completion_ids]

    return target_length


def overlong_length_reward(keys: Any, longest: int) -> Callable:
    """Return TRL's soft penalty for the last `length_margin` tokens."""
    from trl.rewards import get_soft_overlong_punishment  # deferred: keys.py imports this file and must not load TRL

    return get_soft_overlong_punishment(longest, keys.length_margin)


# By value of `length_reward`: makes a reward function from the recipe's keys and `max_completion_length`.
LENGTH_REWARDS: dict[str, Callable[[Any, int], Callable]] = {
    "cosine": cosine_length_reward,
    "target": target_length_reward,
    "overlong": overlong_length_reward,
}
# Required keys: a length of at most `max_completion_length`.
NEEDED_LENGTHS = {"target": "length_target", "overlong": "length_margin"}
