"""The `pass_at_k` metric: `evaluate.load("<path>/eval/metrics/pass_at_k")`, offline.

`evaluate` copies this file into a cache of its own, and checks the imports that it finds, one a line. So the estimate
is imported from the installed package, by its absolute name: [`trl_prorl.pass_at_k.pass_at_k`].
"""

from collections.abc import Iterable

import datasets
import evaluate
import numpy as np

from trl_prorl.pass_at_k import as_verdict, pass_at_k


_DESCRIPTION = """
pass@k: the probability that at least one of k samples drawn for a prompt is correct, averaged over the prompts.
Estimated without bias from n >= k samples per prompt, of which c are correct: 1 - C(n-c, k) / C(n, k).
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (`list[list[bool]]`): one inner list per prompt: whether each of its samples is correct. The inner
        lists may differ in length.
    k (`int` or `list[int]`, *optional*, defaults to `[1]`): values of k, from 1 to the length of the shortest
        inner list.

Returns:
    `dict[str, float]`: `{"pass@<k>": mean over the prompts}`, one entry per `k`.

Raises:
    ValueError: if a `k` is no whole number, below 1 or above the number of samples of a prompt, if there are no
        prompts, or if a prediction is neither true nor false, such as `"False"` or 0.5.

Example:
    >>> metric = evaluate.load("eval/metrics/pass_at_k")
    >>> metric.compute(predictions=[[True, False], [False, False]], k=[1, 2])
    {'pass@1': 0.25, 'pass@2': 0.5}
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class PassAtK(evaluate.Metric):
    """The mean of [`pass_at_k`] over the prompts."""

    def _info(self):
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="Chen et al. 2021, arXiv:2107.03374",
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features({"predictions": datasets.Sequence(datasets.Value("bool"))}),
            reference_urls=["https://huggingface.co/papers/2107.03374"],
        )

    def add(self, *, prediction=None, **kwargs):
        """Add the samples of one prompt, read before they are cast to the type above, where any value is a bool."""
        super().add(prediction=_verdicts(prediction), **kwargs)

    def add_batch(self, *, predictions=None, **kwargs):
        """Add a batch of prompts; see [`add`]."""
        super().add_batch(predictions=[_verdicts(samples) for samples in predictions], **kwargs)

    def _compute(self, predictions, k=(1,)):
        sizes = list(k) if isinstance(k, Iterable) else [k]
        if not predictions:
            raise ValueError("predictions has no prompts: pass a list of verdicts for each.")
        counts = [(len(samples), sum(samples)) for samples in predictions]
        return {f"pass@{size}": float(np.mean([pass_at_k(n, c, size) for n, c in counts])) for size in sizes}


def _verdicts(samples):
    return [as_verdict(sample, "predictions") for sample in samples]
