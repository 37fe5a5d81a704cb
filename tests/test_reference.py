"""Moving the reference: copies, Polyak averages, save and load."""

import re

import pytest
import torch
from peft import LoraConfig, get_peft_model
from run_record import read_rows
from tiny_run import adapted
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.scoring.references import AdapterReference, SnapshotReference


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
        assert torch.equal(policy, same) and ref.dtype == old.dtype
        same = same.to(ref.dtype)
        assert torch.allclose(ref, mix * same + (1 - mix) * old, atol=1e-7)
        if mix == 1.0:
            assert torch.equal(ref, same)


def test_a_checkpoint_without_its_reference_is_named(tiny_model, tmp_path):
    policy = AutoModelForCausalLM.from_pretrained(tiny_model)
    with pytest.raises(ValueError, match="reference.safetensors"):
        SnapshotReference(policy, policy).load(tmp_path)


def test_factors_of_an_embedding_are_part_of_the_adapter(run, tiny_model):
    """PEFT names them `lora_embedding_A.default`, with nothing behind: a reset must move them too."""
    targets = {"target_modules": ["q_proj", "embed_tokens"]}
    new = {"trainer_kwargs": {"peft_config": LoraConfig(r=4, lora_alpha=8, **targets)}}
    for keys in (new, {"lora": False, "model": adapted(tiny_model, **targets)}):
        trainer = run(beta=0.1, ref_reset_every=2, beta_base=0.1, max_steps=5, **keys)
        kl = read_rows(trainer)
        assert [row["kl_ref"] for row in kl[::2]] == pytest.approx([0.0] * 3, abs=1e-6)
        assert kl[0]["kl_base"] == pytest.approx(0.0, abs=1e-6)
        assert all(row["kl_ref"] > 1e-3 for row in kl[1::2])


ANCHORS = [{"beta": 0.1, "ref_reset_every": 2}, {"beta_base": 0.1}]


@pytest.mark.parametrize("keys", ANCHORS)
def test_a_peft_model_is_not_wrapped_again(make_trainer, trained_adapter, keys):
    """And the line is TRL's."""
    with pytest.raises(ValueError, match="PeftModel") as theirs:
        make_trainer(GRPOTrainer, model=trained_adapter(), beta=0.1)
    with pytest.raises(ValueError, match=f"^{re.escape(str(theirs.value))}$"):
        make_trainer(model=trained_adapter(), **keys)


@pytest.mark.parametrize("keys", ANCHORS)
def test_an_adapter_of_another_name_is_refused(make_trainer, tiny_model, keys):
    config = LoraConfig(target_modules=["q_proj"])
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config, adapter_name="policy")
    for others in ([], ["default"]):  # there, but not what is trained
        for name in others:
            model.add_adapter(name, config)
        with pytest.raises(ValueError, match="active adapter is 'policy'.*adapter_name=\"default\""):
            make_trainer(model=model, lora=False, **keys)
    model.set_adapter("default")
    make_trainer(model=model, lora=False, **keys)


@pytest.mark.parametrize("keys", ANCHORS)
@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_trained_biases_of_which_there_is_no_second_copy_are_refused(make_trainer, tiny_model, keys, bias):
    config = LoraConfig(target_modules=["q_proj"], bias=bias)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config)
    for given in ({"model": "not loaded", "trainer_kwargs": {"peft_config": config}}, {"model": model}):
        with pytest.raises(ValueError, match=f"bias='{bias}'.*bias=\"none\""):
            make_trainer(lora=False, **given, **keys)


def test_trained_biases_without_an_anchor_of_ours_are_trl_s_affair(run, weights):
    keys = {"lora": False, "beta": 0.1, "max_steps": 2}
    keys["trainer_kwargs"] = {"peft_config": LoraConfig(target_modules=["q_proj"], bias="all")}
    trl, ours = (weights(run(cls, **keys)) for cls in (GRPOTrainer, ProRLTrainer))
    assert all(torch.equal(trl[name], ours[name]) for name in trl)
