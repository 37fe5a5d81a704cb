"""`cast_lm_head_to_fp32` with adapters, tied embeddings and frozen copies: TRL's full model is the control."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from run_record import read_rows as rows
from tiny_run import TOKENS
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from trl import GRPOTrainer


EVERYWHERE = {"lora": False, "trainer_kwargs": {"peft_config": LoraConfig(r=4, target_modules="all-linear")}}
KEYS = {"cast_lm_head_to_fp32": True, "model_init_kwargs": {"dtype": "bfloat16"}}


@pytest.fixture(scope="module")
def models(tiny_model, tmp_path_factory):
    """Paths of a tied and an untied model, in bf16."""
    paths = {}
    for tied in (True, False):
        folder = str(tmp_path_factory.mktemp("model"))
        model = AutoModelForCausalLM.from_pretrained(tiny_model, tie_word_embeddings=tied)
        with torch.no_grad():
            model.lm_head.weight.mul_(0.5)
        model.to(torch.bfloat16).save_pretrained(folder)
        paths[tied] = folder
    return paths


def scores(trainer):
    """Log-probabilities as in the loss, and logits as in generation."""
    with torch.no_grad():
        logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, TOKENS, torch.ones_like(TOKENS), 5, compute_entropy=True
        )
        return logps, entropies, trainer.model(TOKENS).logits


@pytest.mark.parametrize("tied", [True, False])
def test_a_new_adapter_changes_nothing(make_trainer, models, tied):
    full = scores(make_trainer(GRPOTrainer, model=models[tied], lora=False, **KEYS))
    lower = scores(make_trainer(model=models[tied], **EVERYWHERE, **KEYS | {"cast_lm_head_to_fp32": False}))
    assert not torch.equal(lower[2].float(), full[2])  # the cast does something
    for keys in ({}, {"beta": 0.1, "ref_reset_every": 2}, {"beta": 0.1}, {"beta_base": 0.1}):
        trainer = make_trainer(model=models[tied], **EVERYWHERE, **KEYS, **keys)
        assert trainer.args.cast_lm_head_to_fp32
        for mine, theirs in zip(scores(trainer), full, strict=True):
            assert mine.dtype == torch.float32 and torch.equal(mine, theirs), keys
        base = trainer.model.get_base_model()
        assert base.lm_head.weight.dtype == torch.float32
        assert (base.lm_head.weight is base.model.embed_tokens.weight) == tied
        assert base.model.layers[0].mlp.down_proj.base_layer.weight.dtype == torch.bfloat16
        assert base.model.embed_tokens(TOKENS).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta": 0.1, "loss_mode": "clipped"}], ids=["A", "control"]
)
def test_the_reference_scores_as_the_policy_does(run, models, keys):
    trainer = run(model=models[True], **EVERYWHERE, **KEYS, **keys, beta_base=0.1)
    first, second, third, _ = rows(trainer)
    assert first["kl_ref"] == first["kl_base"] == 0.0
    assert second["kl_ref"] > 0.0 and third["kl_base"] > 0.0
    assert third["kl_ref"] == 0.0 if "ref_reset_every" in keys else third["kl_ref"] > 0.0


def test_an_adapter_of_one_s_own_works_too(run, models):
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(models[True]), LoraConfig(target_modules="all-linear"))
    keys = {**KEYS, "model_init_kwargs": None, "beta": 0.1, "ref_reset_every": 2}
    assert rows(run(model=model, lora=False, **keys))[0]["kl_ref"] == 0.0


def test_where_trl_s_cast_works_ours_gives_the_same_weights(run, models, weights):
    ours, theirs = (run(*cls, model=models[False], **EVERYWHERE, **KEYS) for cls in ((), (GRPOTrainer,)))
    a, b = ({name: value for name, value in weights(one).items() if "lora" in name} for one in (ours, theirs))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("cast", [True, False])
def test_a_frozen_copy_computes_in_the_policy_s_dtypes(run, models, tied, cast):
    trainer = run(model=models[tied], lora=False, beta_base=0.1, **KEYS | {"cast_lm_head_to_fp32": cast}, max_steps=1)
    assert rows(trainer)[0]["kl_base"] == 0.0
    copy = trainer.base.ref_model
    kept = [param.dtype for name, param in copy.named_parameters() if "lm_head" not in name and "embed" not in name]
    assert set(kept) == {torch.bfloat16}
    assert (copy.lm_head.weight is copy.model.embed_tokens.weight) == tied


def test_a_frozen_copy_keeps_a_head_of_higher_precision(make_trainer, models):
    model = AutoModelForCausalLM.from_pretrained(models[False], dtype=torch.bfloat16)
    model.lm_head.float().weight.data.mul_(1.001)  # no value of bf16
    trainer = make_trainer(model=model, lora=False, beta_base=0.1, cast_lm_head_to_fp32=True)
    assert torch.equal(trainer.base.ref_model.lm_head.weight, model.lm_head.weight)


def test_a_head_of_another_name_is_cast_under_an_adapter_and_refused_without(make_trainer, tiny_model, tmp_path):
    """TRL ends in an AttributeError for both."""
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=64, vocab_size=300)
    GPT2LMHeadModel(config).to(torch.bfloat16).save_pretrained(tmp_path)
    model, keys = str(tmp_path), {**KEYS, "beta": 0.1}
    for given in (model, GPT2LMHeadModel(config)):
        with pytest.raises(ValueError, match="GPT2LMHeadModel names them otherwise.*Train a LoRA adapter"):
            make_trainer(model=given, lora=False, **{**keys, "model_init_kwargs": None})
    lora = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    trainer = make_trainer(model=model, lora=False, trainer_kwargs={"peft_config": lora}, **keys)
    assert trainer.model(TOKENS).logits.dtype == torch.float32
    assert trainer.model.get_base_model().transformer.wte(TOKENS).dtype == torch.bfloat16
