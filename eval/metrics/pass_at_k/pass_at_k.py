"""The `pass_at_k` metric: `evaluate.load("<path>/eval/metrics/pass_at_k")`, offline.

`evaluate` copies this single file elsewhere and reads its import lines, so it stands alone: one import a line, nothing
of ours. The estimate is that of `trl_prorl.pass_at_k`, computed in another way; a test compares the two.
"""

from collections.abc import Iterable

import datasets
import evaluate
import numpy as np


_DESCRIPTION = """
pass@k: the probability that at least one of k samples drawn for a prompt is correct, averaged over the prompts.
Estimated without bias from n >= k samples per prompt, of which c are correct: 1 - C(n-c, k) / C(n, k).
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (`list[list[bool]]`): one inner list per prompt: was each of its samples correct? The inner lists may
        differ in length.
    k (`int` or `list[int]`, *optional*, defaults to `[1]`): sizes of the draw, from 1 to the shortest inner list.

Returns:
    `dict[str, float]`: `{"pass@<k>": mean over the prompts}`, one entry per `k`.

Raises:
    ValueError: if a `k` is below 1 or above the number of samples of a prompt.

Example:
    >>> metric = evaluate.load("eval/metrics/pass_at_k")
    >>> metric.compute(predictions=[[True, False], [False, False]], k=[1, 2])
    {'pass@1': 0.25, 'pass@2': 0.5}
"""


def pass_at_k(n: int, c: int, k: int) -> float:
    r"""
    Unbiased estimate of pass@k for one prompt, \\( 1 - \binom{n-c}{k} / \binom{n}{k} \\).

    Computed as the product \\( 1 - \prod_{i=n-c+1}^{n} (1 - k/i) \\), in which no binomial overflows
    ([Chen et al. 2021](https://huggingface.co/papers/2107.03374), section 2.1).

    Args:
        n (`int`): Samples drawn for the prompt.
        c (`int`): Correct ones among them, from 0 to `n`.
        k (`int`): Size of the draw, from 1 to `n`.

    Returns:
        `float`: The estimate, in [0, 1].

    Raises:
        ValueError: If `k` is not in [1, n] or `c` not in [0, n].
    """
    if k < 1:
        raise ValueError(f"k={k} must be at least 1.")
    if k > n:
        raise ValueError(f"k={k} exceeds n={n} samples of a prompt; draw more samples or lower k.")
    if not 0 <= c <= n:
        raise ValueError(f"c={c} correct samples must lie between 0 and n={n}.")
    if n - c < k:  # every draw of k contains a correct sample
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class PassAtK(evaluate.Metric):
    """Mean of [`pass_at_k`] over the prompts."""

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="Chen et al. 2021, arXiv:2107.03374",
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": datasets.Sequence(datasets.Value("bool"))}),
            reference_urls=["https://huggingface.co/papers/2107.03374"],
        )

    def _compute(self, predictions, k=(1,)):
        sizes = list(k) if isinstance(k, Iterable) else [k]
        counts = [(len(samples), sum(samples)) for samples in predictions]
        return {f"pass@{size}": float(np.mean([pass_at_k(n, c, size) for n, c in counts])) for size in sizes}
