"""
Rewards for the length of completions, as TRL reward functions. Lengths are in tokens.

A new one is a function and an entry of [`LENGTH_REWARDS`]; what adjusts it is a field of `TaskKeys` in keys.py.
"""

import math
from collections.abc import Callable
from typing import Any


def cosine(length: float, longest: float, least: float) -> float:
    """
    Compute η_min + ½ (0 − η_min) (1 + cos(π t / T)) for length t: from 0 for an empty completion down to `least` for
    one of T tokens or more (ProRL v2's cosine length penalty; the form is that of arXiv 2502.03373).
    """
    return least - 0.5 * least * (1.0 + math.cos(math.pi * min(length / longest, 1.0)))


def cosine_length_reward(keys: Any, longest: int) -> Callable:
    """
    Return a reward function that charges for long completions by [`cosine`] during `length_on` optimizer steps, and
    then not during `length_off` steps: ProRL v2 has 100 and 500. With `length_off: 0` it always does.
    """

    def cosine_length(completion_ids, trainer_state, **columns):
        is_on = trainer_state.global_step % (keys.length_on + keys.length_off) < keys.length_on
        return [cosine(len(ids), longest, keys.length_least) if is_on else 0.0 for ids in completion_ids]

    return cosine_length


def target_length_reward(keys: Any, longest: int) -> Callable:
    """
    Return a reward function of −`length_cost` · |length − `length_target`|: L1's exact-length reward, arXiv
    2503.04697, where the cost is 0.0003.
    """

    def target_length(completion_ids, **columns):
        return [-keys.length_cost * abs(len(ids) - keys.length_target) for ids in completion_ids]

    return target_length


def overlong_length_reward(keys: Any, longest: int) -> Callable:
    """Return TRL's soft punishment of the last `length_margin` tokens of the longest completion."""
    from trl.rewards import get_soft_overlong_punishment  # keys.py, which imports this file, does not wait for TRL

    return get_soft_overlong_punishment(longest, keys.length_margin)


# The values of the key `length_reward`. Each makes a reward function from the keys of a recipe and
# `max_completion_length`.
LENGTH_REWARDS: dict[str, Callable[[Any, int], Callable]] = {
    "cosine": cosine_length_reward,
    "target": target_length_reward,
    "overlong": overlong_length_reward,
}
# The key that one cannot do without: a length of at most `max_completion_length`.
NEEDED_LENGTHS = {"target": "length_target", "overlong": "length_margin"}
