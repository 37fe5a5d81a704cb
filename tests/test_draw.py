"""`draw` against probabilities that are known."""

import pytest
import torch
from scipy.stats import chisquare

from trl_prorl.rollout.compact import BLOCK, _running_sums, draw


@pytest.mark.parametrize("size", [2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3])
def test_frequencies_are_the_probabilities(size):
    torch.manual_seed(size)
    weights = torch.rand(size) ** 3
    weights[torch.rand(size) < 0.3] = 0.0
    weights[-1] = 0.2
    probabilities = weights / weights.sum()
    number = 200_000
    counts = torch.bincount(draw(probabilities.expand(number, size)), minlength=size)
    assert counts[probabilities == 0].sum() == 0
    drawn = probabilities > 0
    expected = probabilities[drawn].double() / probabilities[drawn].double().sum() * number
    assert chisquare(counts[drawn].double(), expected).pvalue > 1e-3


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_the_ends_of_the_interval(number, monkeypatch):
    """No number draws a token of probability 0, where zeros come first, last, and fill whole blocks."""
    probabilities = torch.zeros(3, 4 * BLOCK)
    probabilities[0, BLOCK + 5] = 1.0
    probabilities[1, [BLOCK + 5, 2 * BLOCK]] = 0.5
    probabilities[2, [1, 4 * BLOCK - 2]] = torch.tensor([1e-30, 1.0])
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, device: torch.full(shape, number, dtype=dtype))
    first, second, third = draw(probabilities).tolist()
    assert first == BLOCK + 5
    assert second == (BLOCK + 5 if number < 0.5 else 2 * BLOCK)
    assert third == (1 if number == 0.0 else 4 * BLOCK - 2)


def test_a_rare_token_is_as_rare_as_it_should_be(monkeypatch):
    """Of probability 3e-8 behind a thousand others: cumulative sums in fp32 are multiples of 6e-8 there."""
    rare = 3e-8
    probabilities = torch.full((2, 1001), (1 - rare) / 1000)
    probabilities[:, -1] = rare
    numbers = torch.tensor([[1 - 0.9 * rare], [1 - 1.1 * rare]], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, device: numbers)
    total = probabilities[0].double().sum()
    assert abs(total - 1) < 1e-7 and draw(probabilities / total).tolist() == [1000, 999]


class OnCard(torch.Tensor):
    """A tensor of a GPU, whose running sums torch refuses in deterministic mode."""

    is_cuda = property(lambda self: True)

    def cpu(self):
        return self.as_subclass(torch.Tensor)

    def cumsum(self, dim):
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation")
        return self.cpu().cumsum(dim)


@pytest.mark.parametrize("deterministic", [True, False])
def test_under_full_determinism_a_gpu_draws_too(deterministic):
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 1.0]], dtype=torch.float64)
    torch.use_deterministic_algorithms(deterministic)
    try:
        sums = _running_sums(values.as_subclass(OnCard))
    finally:
        torch.use_deterministic_algorithms(False)
    assert sums.tolist() == [[1.0, 3.0, 6.0], [4.0, 4.0, 5.0]]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_what_has_no_distribution_is_not_drawn(value):
    probabilities = torch.ones(3, 300)
    assert len(draw(probabilities)) == 3
    probabilities[1] = value
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        draw(probabilities)
