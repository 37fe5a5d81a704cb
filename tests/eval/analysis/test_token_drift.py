import math

import pytest
import torch

from eval.analysis.language import token_drift


def test_token_drift_by_hand():
    """π = (1/2, 1/4, 1/4), π₀ = (1/4, 1/4, 1/2): KL = ½ ln 2 − ¼ ln 2; both entropies are 1.5 ln 2."""
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]))
    base = torch.log(torch.tensor([[0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]))
    found = token_drift(logits, base)
    assert found.kl.tolist() == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-7)
    assert found.agreement.tolist() == [0.0, 1.0]
    assert found.entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    assert found.base_entropy.tolist() == pytest.approx([1.5 * math.log(2)] * 2)
    # At temperature ½ probabilities are squared and normalised: (2/3, 1/6, 1/6).
    cold = token_drift(logits[:1], base[:1], temperature=0.5)
    assert cold.entropy.item() == pytest.approx(-(2 / 3 * math.log(2 / 3) + 2 / 6 * math.log(1 / 6)))
    assert cold.kl.item() == pytest.approx(0.5 * math.log(4))


def test_kl_is_not_symmetric_and_not_negative():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 50, 7, generator=generator)
    there, back = token_drift(a, b).kl, token_drift(b, a).kl
    assert (there > 0).all()
    assert not torch.allclose(there, back, atol=1e-3)


def test_tokens_that_neither_model_can_say_are_no_nan():
    """By hand: ½ and ½ against ¼ and ¾, beside a token with a logit of −∞ on both sides."""
    nothing = float("-inf")
    policy = torch.tensor([[0.0, 0.0, nothing]])
    base = torch.tensor([[0.0, math.log(3.0), nothing]])
    found = token_drift(policy, base)
    assert found.kl.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-5)
    assert found.entropy.item() == pytest.approx(math.log(2)) and found.base_entropy.isfinite().all()
