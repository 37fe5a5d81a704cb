"""What is random in training mode: found before anything is sampled, and absent from frozen copies."""

from contextlib import nullcontext

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from run_record import read_rows
from tiny_run import LORA
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOTrainer

from trl_prorl.guards.noise import find_noise


SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 300,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_dropout": 0.0,
}


def small(kind, **keys):
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SHAPE, **keys}))


def with_dropout(rate=0.1):
    """Arguments of a trainer whose new adapter has dropout, which changes nothing before the first update."""
    return {"lora": False, "trainer_kwargs": {"peft_config": LoraConfig(**LORA, lora_dropout=rate)}}


@pytest.mark.parametrize("keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta_old": 0.1}, {"reuse_old_logps": True}])
def test_a_trainer_with_a_key_of_ours_refuses_dropout_or_switches_it_off(make_trainer, keys):
    with pytest.raises(ValueError, match="dropout rate of 0.1.*disable_dropout: true"):
        make_trainer(**with_dropout(), **keys)
    for cure, rate in (({"disable_dropout": True, **keys}, 0), ({"beta": 0.1}, 0.1)):  # plain TRL keeps its own
        modules = make_trainer(**with_dropout(), **cure).model.modules()
        assert {module.p for module in modules if isinstance(module, torch.nn.Dropout)} == {rate}


@pytest.mark.parametrize("keys", [{"beta": 0.1, "ref_reset_every": 2}, {"beta_base": 0.1}])
def test_a_frozen_copy_of_an_adapter_has_no_dropout(make_trainer, tiny_model, keys):
    config = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config)
    trainer = make_trainer(model=model, lora=False, disable_dropout=True, **keys)
    assert len(trainer.model.peft_config) == 2
    assert {module.p for module in trainer.model.modules() if isinstance(module, torch.nn.Dropout)} == {0}


def test_a_frozen_copy_of_a_full_model_has_no_dropout(run, tiny_model, tmp_path):
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": len(AutoTokenizer.from_pretrained(tiny_model))}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **sizes)).save_pretrained(tmp_path / "gpt2")
    keys = {"lora": False, "disable_dropout": True, "beta_base": 0.1, "learning_rate": 0.0, "max_steps": 2}
    trainer = run(model=str(tmp_path / "gpt2"), **keys)
    assert [row["kl_base"] for row in read_rows(trainer)] == pytest.approx([0.0, 0.0], abs=1e-6)


# What is random in training mode, and is no module with a rate.
RANDOM = {
    "attention": ("qwen2", {"attention_dropout": 0.3}),
    "residual": ("seed_oss", {"residual_dropout": 0.3}),
    "router": ("mixtral", {"router_jitter_noise": 0.4, "num_local_experts": 2}),
    "layers": ("opt", {"layerdrop": 0.5, "ffn_dim": 48, "dropout": 0.0, "word_embed_proj_dim": 32}),
}


@pytest.mark.parametrize("case", RANDOM)
def test_two_forwards_of_a_random_model_differ_and_those_of_the_same_without_do_not(case):
    kind, keys = RANDOM[case]
    accelerator = Accelerator(cpu=True)
    random_key = next(iter(keys))
    set_seed(1)
    noises = [find_noise(small(kind, **keys | {random_key: rate}), accelerator) for rate in (0.0, keys[random_key])]
    assert noises[0] is None
    assert "random in training mode" in noises[1]


@pytest.fixture
def random_model(tiny_model, tmp_path):
    """The folder of a model with dropout of the attention, which `disable_dropout` does not reach."""
    AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.3).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


NEFTUNE = {"neftune_noise_alpha": 5.0}


@pytest.mark.parametrize("noise", [{"model": None}, NEFTUNE], ids=["attention", "NEFTune"])
@pytest.mark.parametrize(
    ("keys", "ends_with"),
    [
        ({"beta_old": 0.1, "num_iterations": 2}, "an error"),
        ({"beta": 0.1, "ref_reset_every": 2}, "an error"),
        ({"pack_groups": "on", "num_iterations": 1}, "an error"),
        ({"beta": 0.1, "num_iterations": 1}, "a warning"),
        ({"num_iterations": 2}, "a warning"),
        ({"num_iterations": 1}, "nothing"),
    ],
    ids=str,
)
def test_noise_is_an_error_with_our_keys_and_a_warning_with_a_kl_of_trls(
    run, random_model, caplog, noise, keys, ends_with
):
    given = {name: random_model if name == "model" else value for name, value in noise.items()}
    outcome = nullcontext()
    if ends_with == "an error":
        outcome = pytest.raises(ValueError, match="random in training mode")
    with outcome, caplog.at_level("WARNING"):
        run(**given, **keys, max_steps=1)
    assert sum("random in training mode" in message for message in caplog.messages) == (ends_with == "a warning")


@pytest.mark.parametrize("keys", [{"beta": 0.1, "num_iterations": 1}, {"num_iterations": 2}, {"fast": True}], ids=str)
def test_with_noise_and_no_key_of_ours_weights_are_trls_to_the_bit(run, random_model, largest_difference, keys):
    theirs = {name: value for name, value in keys.items() if name != "fast"}
    trained = run(model=random_model, **keys, max_steps=2)
    assert trained.args.is_trl
    assert largest_difference(trained, run(GRPOTrainer, model=random_model, **theirs, max_steps=2)) == 0.0
