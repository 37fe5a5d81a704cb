"""A reference that moves, the average of Elastic Reset, and the coefficient of the next generation, by hand."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from trl_prorl.extras.elastic import ElasticResets
from trl_prorl.kl import next_coefficient
from trl_prorl.reference import AdapterReference, SnapshotReference
from trl_prorl.run.meter import StageTimer


def perturbed(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.01 * torch.randn(param.shape, generator=generator))
    return model


@pytest.fixture(params=["adapter", "adapter of a quantised model", "snapshot"])
def reference(request, tiny_model, trained_adapter):
    if request.param != "snapshot":
        model = trained_adapter()
        model.add_adapter("ref", model.peft_config["default"])
        reference = AdapterReference(perturbed(model, 1))
        if request.param != "adapter":
            for _, policy in reference.pairs():
                policy.data = policy.data.bfloat16()  # as TRL does; `ref` stays in fp32
        return reference
    policy, ref = (perturbed(AutoModelForCausalLM.from_pretrained(tiny_model), seed) for seed in (1, 2))
    return SnapshotReference(policy, ref)


@pytest.mark.parametrize("mix", [0.0, 0.25, 1.0])
def test_mix_by_hand(reference, mix):
    before = [(ref.detach().clone(), policy.detach().clone()) for ref, policy in reference.pairs()]
    assert any(not torch.equal(ref, policy.to(ref.dtype)) for ref, policy in before)
    reference.move(mix)
    for (ref, policy), (old, same) in zip(reference.pairs(), before, strict=True):
        assert torch.equal(policy, same)
        assert ref.dtype == old.dtype
        same = same.to(ref.dtype)
        assert torch.allclose(ref, mix * same + (1 - mix) * old, atol=1e-7)
        if mix == 1.0:
            assert torch.equal(ref, same)


def test_the_next_coefficient_by_hand():
    """On target, above it, and clipped on both sides; it stays positive."""
    found = [next_coefficient(1.0, kl, target=0.1, steps=2, horizon=100) for kl in (0.1, 0.11, 0.5, 0.0)]
    assert found == pytest.approx([1.0, 1 + 0.1 * 2 / 100, 1 + 0.2 * 2 / 100, 1 - 0.2 * 2 / 100])
    assert next_coefficient(1.0, 0.0, target=0.1, steps=1000, horizon=10) == 0.5


def elastic_resets(values, ema, dtype=torch.float32):
    """The part for a policy of one parameter, with a reset at every step."""
    policy = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.tensor(values, dtype=dtype))})
    args = SimpleNamespace(elastic_reset_every=1, elastic_ema=ema)
    return policy["w"], ElasticResets(args, policy, StageTimer(torch.device("cpu")), 1)


def test_average_and_reset_by_hand(tmp_path):
    policy, elastic = elastic_resets([1.0, 2.0], 0.9)
    policy.data.copy_(torch.tensor([2.0, 4.0]))
    elastic.on_step_end(1, None)
    assert elastic.average["w"].tolist() == pytest.approx([1.1, 2.2])
    elastic.save(tmp_path)
    assert elastic.on_generation(1)["event"] == "elastic_reset"
    assert policy.tolist() == pytest.approx([1.1, 2.2])
    assert elastic.average["w"].tolist() == [1.0, 2.0]
    _, again = elastic_resets([0.0, 0.0], 0.9)
    again.load(tmp_path, {})
    assert again.average["w"].tolist() == pytest.approx([1.1, 2.2])
    assert again.initial["w"].tolist() == [1.0, 2.0]


def test_small_steps_are_not_lost_in_bf16():
    """300 steps of 0.01 of the way to 1.05: 1 + 0.05 (1 − 0.99³⁰⁰) = 1.0475; a bf16 average would stay at 1."""
    policy, elastic = elastic_resets([1.0] * 3, 0.99, torch.bfloat16)
    policy.data.fill_(1.05)
    for step in range(300):
        elastic.on_step_end(step, None)
    exact = 1 + (policy[0].item() - 1) * (1 - 0.99**300)
    assert elastic.average["w"].tolist() == pytest.approx([exact] * 3, rel=1e-5)
    elastic.on_generation(300)
    assert policy.dtype == torch.bfloat16
    assert policy[0].item() == pytest.approx(exact, rel=2**-8)
