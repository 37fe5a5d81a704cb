"""Best of k, without a training: of k texts of a model the one with the highest reward, ties at random."""

from collections.abc import Sequence
from math import comb


def best_of(rewards: Sequence[float], correct: Sequence[bool], k: int) -> float:
    """
    Return the chance that the text is right which best of k takes, exact over all choices of k of a question's n
    samples.

    The best reward of a choice is r where all k have at most r, and not all have less: that is so in C(at most r, k) -
    C(less than r, k) of C(n, k) choices. A random one of the best is then any sample with reward r, each as likely.
    There is no greedy counterpart, because greedy decoding gives one text.

    Args:
        rewards (`Sequence[float]`): The reward of each sample, shape (n,).
        correct (`Sequence[bool]`): Whether each sample is right, shape (n,).
        k (`int`): From 1 to n.

    Raises:
        ValueError: k is not.
    """
    n = len(rewards)
    if not 1 <= k <= n:
        raise ValueError(f"k={k} has to lie between 1 and the {n} samples")
    chance = 0.0
    for reward in set(rewards):
        verdicts = [right for one, right in zip(rewards, correct, strict=True) if one == reward]
        at_most = sum(one <= reward for one in rewards)
        less = at_most - len(verdicts)
        is_best = (comb(at_most, k) - comb(less, k)) / comb(n, k)
        chance += is_best * sum(verdicts) / len(verdicts)
    return chance
