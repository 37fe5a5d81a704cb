"""The unbiased estimate of pass@k and its verdicts, for evaluations during training and after it."""

import math
import operator
from typing import Any

from .errors import RewardError


def as_verdict(value: Any, source: str) -> bool:
    """
    Return a verdict as a bool. (The truth value of `"False"`, 0.5 or NaN is no verdict.)

    Args:
        value (`bool`, `int`, `float` or a scalar of NumPy or torch): True or 1, False or 0.
        source (`str`): Its origin, for the message.

    Raises:
        [`RewardError`]: For any other value.
    """
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    if isinstance(number, bool | int | float) and number in (0, 1):
        return bool(number)
    raise RewardError(f"{source} returned {value!r}, which is neither True nor False. Return one of them.")


def pass_at_k(n: int, c: int, k: int) -> float:
    r"""
    Unbiased estimate of pass@k for one prompt, \\( 1 - \binom{n-c}{k} / \binom{n}{k} \\) ([Chen et al.
    2021](https://huggingface.co/papers/2107.03374), section 2.1). The binomials are whole numbers, so nothing
    overflows.

    Args:
        n (`int`): Samples drawn for the prompt.
        c (`int`): Correct ones among them, from 0 to `n`.
        k (`int`): Size of the draw, from 1 to `n`.

    Returns:
        `float`: The estimate, in [0, 1].

    Raises:
        `ValueError`: If `k` is not a whole number in [1, n], or `c` not in [0, n].
    """
    try:
        size = operator.index(k)
    except TypeError:
        raise ValueError(f"k={k!r} must be a whole number.") from None
    if k < 1:
        raise ValueError(f"k={k} must be at least 1.")
    if k > n:
        raise ValueError(f"k={k} exceeds n={n} samples per prompt; draw more samples or lower k.")
    if not 0 <= c <= n:
        raise ValueError(f"c={c} correct samples must be between 0 and n={n}.")
    # Python's integers: a binomial overflows NumPy's.
    samples = int(n)
    wrong = samples - int(c)
    return 1.0 - math.comb(wrong, size) / math.comb(samples, size)
