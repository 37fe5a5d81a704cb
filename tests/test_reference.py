"""Moving the reference: copies, Polyak averages, save and load."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from trl_prorl.reference import AdapterReference, SnapshotReference, move_reference


def perturbed(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.01 * torch.randn(param.shape, generator=generator))
    return model


@pytest.fixture(params=["adapter", "snapshot"])
def reference(request, tiny_model, trained_adapter):
    if request.param == "adapter":
        model = trained_adapter()
        model.add_adapter("ref", model.peft_config["default"])
        return AdapterReference(perturbed(model, 1))
    policy, ref = (perturbed(AutoModelForCausalLM.from_pretrained(tiny_model), seed) for seed in (1, 2))
    return SnapshotReference(policy, ref)


@pytest.mark.parametrize("mix", [0.0, 0.25, 1.0])
def test_mix_by_hand(reference, mix):
    before = [(ref.detach().clone(), policy.detach().clone()) for ref, policy in reference.pairs()]
    assert any(not torch.equal(ref, policy) for ref, policy in before)
    move_reference(reference, mix)
    for (ref, policy), (old, same) in zip(reference.pairs(), before, strict=True):
        assert torch.equal(policy, same)
        assert torch.allclose(ref, mix * same + (1 - mix) * old, atol=1e-7)
        if mix == 1.0:
            assert torch.equal(ref, same)


def test_adapter_pairs_are_the_adapter_and_nothing_else(trained_adapter):
    model = trained_adapter()
    model.add_adapter("ref", model.peft_config["default"])
    pairs = AdapterReference(model).pairs()
    assert sum(p.numel() for _, p in pairs) == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_a_moved_snapshot_comes_back(tiny_model, tmp_path):
    policy = AutoModelForCausalLM.from_pretrained(tiny_model)
    moved = SnapshotReference(policy, perturbed(AutoModelForCausalLM.from_pretrained(tiny_model), 5))
    moved.save(tmp_path)
    fresh = SnapshotReference(policy, AutoModelForCausalLM.from_pretrained(tiny_model))
    fresh.load(tmp_path)
    for (a, _), (b, _) in zip(moved.pairs(), fresh.pairs(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_without_its_reference_is_named(tiny_model, tmp_path):
    policy = AutoModelForCausalLM.from_pretrained(tiny_model)
    with pytest.raises(ValueError, match="reference.safetensors"):
        SnapshotReference(policy, policy).load(tmp_path)
