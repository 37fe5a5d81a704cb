"""Initialisations of LoRA, and trained adapters in bf16: their frozen copies, and their averages in fp32."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from run_record import read_rows
from slow import slow_but
from tiny_run import LORA, logits
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.eval.run_folder.reading import load_config
from trl_prorl.eval.samples.models import identity, load_base_model, with_base_model
from trl_prorl.supported import INITIALISATIONS


@pytest.fixture
def quantised(monkeypatch):
    """
    Arguments of a trainer. On CPUs with AVX512-BF16, as whose this one passes, bitsandbytes cannot train a model that
    has been evaluated.
    """

    def arguments(loads="load_in_4bit"):
        monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
        nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
        config = BitsAndBytesConfig(**{loads: True}, **nf4)
        return {"trainer_kwargs": {"quantization_config": config}, "bf16": True}

    return arguments


def adapters(trainer):
    return {name: param for name, param in trainer.model.named_parameters() if "lora_" in name}


RESUMED = {
    "C": {"beta": 0.3, "ref_reset_every": 2, "optim": "adamw_8bit", "optimizer_reset": "hard"},
    # The copy that is sampled holds the adapter's parameters, and is made before they are loaded.
    "an adapter of one's own": {"compact_generation": "on", "lora": False, "bf16": True},
    "beside its start": {"beta": 0.3, "ref_reset_every": 3, "beta_base": 0.1, "lora": False, "bf16": True},
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", slow_but(RESUMED, "C", "an adapter of one's own"))
def test_a_resumed_run_trains_the_numbers_of_the_run_that_it_continues(run, make_trainer, tiny_model, quantised, case):
    def arguments():
        if "lora" not in RESUMED[case]:
            return quantised()
        torch.manual_seed(11)
        base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
        return {"model": get_peft_model(base, LoraConfig(**LORA), autocast_adapter_dtype=False)}

    keys = {"num_iterations": 1, "max_steps": 5, "save_strategy": "steps", "save_steps": 2, "learning_rate": 2e-2}
    keys |= RESUMED[case]
    whole = run(**arguments(), **keys)
    again = make_trainer(output_dir=whole.args.output_dir, **arguments(), **keys)
    begun = adapters(again)
    again.train(resume_from_checkpoint=str(Path(whole.args.output_dir, "checkpoint-2")))
    assert "compact_generation" not in keys or again.parts["generation"].copy is not None
    assert {param.dtype for name, param in begun.items() if ".default." in name} == {torch.bfloat16}
    for name, param in adapters(again).items():
        assert param is begun[name], name
        assert param.dtype == adapters(whole)[name].dtype and torch.equal(param, adapters(whole)[name]), name
    optimizer = [param for group in again.optimizer.param_groups for param in group["params"]]
    assert {id(param) for param in optimizer} == {id(param) for param in begun.values() if param.requires_grad}


@pytest.mark.parametrize("loads", ["load_in_4bit", "load_in_8bit"])
def test_a_quantised_base_that_is_listed_is_scored_and_sampled_as_by_its_own_forward(run, quantised, loads):
    keys = {"learning_rate": 2e-2, "max_steps": 3, "beta": 0.3, "ref_reset_every": 2, "num_iterations": 1}
    trainer = run(**quantised(loads), **keys, fast=True)
    assert trainer.acceleration.packs and trainer.compact is not None
    rows = read_rows(trainer)
    assert rows[1]["kl_ref"] > rows[2]["kl_ref"] == 0.0


@pytest.mark.parametrize("loads", ["load_in_4bit", "load_in_8bit"])
def test_a_quantised_base_is_evaluated_as_it_was_trained(run, quantised, loads):
    trainer = run(**quantised(loads), max_steps=1, learning_rate=2e-2)
    trainer.save_model()
    config = load_config(trainer.run_dir) | {"model_name_or_path": trainer.base_name()}
    config = with_base_model(trainer.run_dir, config)
    then, now = (
        {name: param for name, param in one.named_parameters() if not param.is_floating_point()}
        for one in (trainer.model, load_base_model(config, trainer.run_dir))
    )
    assert then and then.keys() == now.keys()
    same = [(param == now[name]).float().mean() for name, param in then.items()]
    assert torch.stack(same).min() > 0.8  # weights are rounded to bf16 before they are quantised
    assert identity(None, config) != identity(None, config | {"quantization": None})


@pytest.mark.gpu
def test_a_reference_in_fp32_takes_a_part_of_a_policy_in_bf16(run, quantised):
    trainer = run(**quantised(), beta=0.3, ref_reset_every=2, ref_reset_mix=0.25, max_steps=3, learning_rate=2e-2)
    (event,) = read_rows(trainer, "events.jsonl")
    assert (event["event"], event["ref_reset_mix"]) == ("reset", 0.25)
    pairs = trainer.reference.pairs()
    assert {(ref.dtype, policy.dtype) for ref, policy in pairs} == {(torch.float32, torch.bfloat16)}


@pytest.mark.parametrize("keys", [{}, {"use_dora": True, "modules_to_save": ["norm"]}])
def test_frozen_copies_of_an_adapter_in_bf16_are_the_policy_without_autocast(run, tiny_model, keys):
    torch.manual_seed(11)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    model = get_peft_model(base, LoraConfig(**LORA, **keys), autocast_adapter_dtype=False)
    anchors = {"beta": 0.1, "ref_reset_every": 2, "beta_base": 0.1}
    trainer = run(model=model, lora=False, **anchors, num_iterations=1, max_steps=3, learning_rate=2e-2)
    rows = read_rows(trainer)
    assert rows[0]["kl_base"] == rows[0]["kl_ref"] == rows[2]["kl_ref"] == 0.0
    assert rows[1]["kl_ref"] > 1e-3


def test_a_fixed_reference_of_an_adapter_in_bf16_is_trls(run, tiny_model):
    """PEFT makes TRL's copy in fp32: with our keys at their defaults its KL is TRL's to the bit."""

    def logged_kl(trainer_class):
        torch.manual_seed(11)
        base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
        model = get_peft_model(base, LoraConfig(**LORA, init_lora_weights=False), autocast_adapter_dtype=False)
        trainer = run(trainer_class, model=model, lora=False, beta=0.5, max_steps=3, learning_rate=2e-2)
        return [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]

    kl = logged_kl(ProRLTrainer)
    assert len(kl) == 3
    assert kl == logged_kl(GRPOTrainer)


def adapter(**keys):
    targets = ["q_proj", "v_proj", "down_proj"]
    return {"lora": False, "trainer_kwargs": {"peft_config": LoraConfig(r=4, target_modules=targets, **keys)}}


@pytest.mark.parametrize("init", INITIALISATIONS)
def test_the_policy_starts_where_trl_s_does(make_trainer, init):
    trl = make_trainer(cls=GRPOTrainer, **adapter(init_lora_weights=init)).model
    for keys in ({"beta": 0.1, "ref_reset_every": 2}, {"beta_base": 0.1}):
        ours = make_trainer(**keys, **adapter(init_lora_weights=init))
        assert torch.equal(logits(trl), logits(ours.model))
        for name in ours.model.peft_config.keys() - {"default"}:
            assert torch.equal(logits(trl), logits(ours.model, name)), name
