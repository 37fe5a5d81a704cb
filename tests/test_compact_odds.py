"""Compact generation where something stands against it: odd adapters, replaced parts, broken weights, a resume."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from run_record import read_rows
from tiny_run import LORA
from transformers import AutoConfig, AutoModelForCausalLM

from trl_prorl.errors import NonFiniteError
from trl_prorl.launch import acceleration
from trl_prorl.rollout.compact import draw
from trl_prorl.rollout.compact_probe import probe
from trl_prorl.rollout.merged_copy import MergedCopy, why_not_merged


def disturb(policy):
    source = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, param in policy.named_parameters():
            if "lora_" in name:
                param.add_(torch.randn(param.shape, generator=source) * 0.05)
    return policy


def loaded(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


@torch.no_grad()
def not_the_policy_s(trainer):
    """Train with greedy rollouts, and count for each generation the tokens that a plain forward would not choose."""
    counts, sampling = [], trainer._generate_single_turn

    def watched(prompts, *args, **kwargs):
        completions, logps = sampling(prompts, *args, **kwargs)
        policy = trainer.accelerator.unwrap_model(trainer.model)
        training = policy.training
        policy.eval()
        wrong = 0
        for prompt, completion in zip(prompts, completions, strict=True):
            with torch.no_grad():
                logits = policy(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
            wrong += int((logits.argmax(-1) != torch.tensor(completion)).sum())
        policy.train(training)
        counts.append(wrong)
        return completions, logps

    trainer._generate_single_turn = watched
    trainer.generation_config.do_sample = False
    with torch.enable_grad():
        trainer.train()
    return counts


@pytest.mark.parametrize("lora", [True, False])
def test_a_model_that_is_given_with_gradient_checkpointing(make_trainer, tiny_model, lora):
    """Layers with checkpointing drop the cache in training mode."""
    model = loaded(tiny_model)
    model.gradient_checkpointing_enable()
    keys = {"compact_generation": "on", "gradient_checkpointing": True, "max_completion_length": 12}
    trainer = make_trainer(model=model, lora=lora, **keys)
    assert not_the_policy_s(trainer) == [0, 0]
    assert trainer.accelerator.unwrap_model(trainer.model).is_gradient_checkpointing


def test_an_adapter_of_another_name(make_trainer, tiny_model):
    policy = disturb(get_peft_model(loaded(tiny_model), LoraConfig(**LORA), adapter_name="mine"))
    trainer = make_trainer(model=policy, compact_generation="on", trainer_kwargs={"peft_config": None})
    assert trainer.parts["generation"].merged == "on"
    assert not_the_policy_s(trainer) == [0, 0]


def test_two_adapters_at_once_go_unmerged(make_trainer, tiny_model):
    policy = get_peft_model(loaded(tiny_model), LoraConfig(**LORA))
    policy.add_adapter("more", LoraConfig(**LORA))
    policy.base_model.set_adapter(["default", "more"])
    trainer = make_trainer(model=disturb(policy), compact_generation="on", trainer_kwargs={"peft_config": None})
    assert trainer.parts["generation"].merged == "off: not one adapter is active, but 2"
    assert not_the_policy_s(trainer) == [0, 0]


def test_embeddings_with_an_adapter_and_a_head_in_fp32(make_trainer, tiny_model):
    """The hook that casts the embeddings' output hangs on the adapter's layer, which the copy has not got."""
    lora = LoraConfig(**{**LORA, "target_modules": ["q_proj", "embed_tokens"]})
    keys = {"compact_generation": "on", "cast_lm_head_to_fp32": True, "trainer_kwargs": {"peft_config": lora}}
    trainer = make_trainer(model=loaded(tiny_model).bfloat16(), **keys)
    trainer.train()
    assert trainer.parts["generation"].merged == "on"
    rows = read_rows(trainer)
    assert 0.0 < rows[0]["mean_abs_dlogp_sampler"] < 0.05


def test_a_copy_with_other_numbers_is_not_sampled(tiny_model):
    """A new adapter changes nothing, so that a copy without it would look right at first."""
    policy = get_peft_model(loaded(tiny_model), LoraConfig(**LORA))
    assert why_not_merged(policy) is None
    before = {name: param.clone() for name, param in policy.named_parameters()}
    state = torch.get_rng_state()
    layer = policy.get_base_model().model.layers[1].self_attn.v_proj
    layer.merge = lambda *args, **kwargs: None
    assert why_not_merged(policy).startswith("merged, its log-probabilities differ by ")
    assert all(torch.equal(param, before[name]) for name, param in policy.named_parameters())
    assert torch.equal(state, torch.get_rng_state())
    del layer.merge
    # A closure computes with the policy's layers, wherever it is copied to.
    around = policy.get_base_model().model.layers[1]
    for replaced, name in ((layer.base_layer, "model.layers.1.self_attn.v_proj"), (around, "model.layers.1")):
        replaced.forward = replaced.forward
        assert why_not_merged(policy).endswith(f"merged (ValueError: the forward of {name} is replaced)")
        del replaced.forward
    around.forward = around.forward
    with pytest.raises(ValueError, match="is replaced"):
        MergedCopy(policy)


@pytest.mark.parametrize("lora", [True, False])
def test_nan_is_told_as_without_it(make_trainer, lora):
    trainer = make_trainer(lora=lora, compact_generation="on")
    with torch.no_grad():
        for name, param in trainer.model.named_parameters():
            if ("lora_B" if lora else "layers.1") in name:
                param.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="probabilities of the next token, while sampling, in a batch with"):
        trainer.train()


def test_a_new_training_forgets_that_the_last_went_on_unmerged(make_trainer):
    trainer = make_trainer(compact_generation="on", max_steps=2)
    trainer.train()
    generation = trainer.parts["generation"]
    assert generation.row(1, {"mean_abs_dlogp_sampler": 1.0}) is None  # the policy itself comes first
    assert generation.row(2, {"mean_abs_dlogp_sampler": 0.5})["reason"] == "copy_off_policy"
    assert generation.copy is None and generation.merged.startswith("off: the copy was 1 nats")
    generation.load_state_dict(generation.state_dict(), {})
    assert generation.copy is None
    trainer.train()
    assert generation.copy is not None and generation.merged == "on"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_what_has_no_distribution_is_not_drawn(value):
    probabilities = torch.ones(3, 300)
    assert len(draw(probabilities)) == 3
    probabilities[1] = value
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        draw(probabilities)


def test_a_run_with_auto_goes_on_where_it_is_possible(make_trainer, tmp_path, monkeypatch):
    """The run fell back where it began, and the machine that resumes it need not."""
    keys = {"compact_generation": "auto", "save_strategy": "steps", "save_steps": 2, "output_dir": str(tmp_path / "o")}
    with monkeypatch.context() as patch:
        patch.setattr(acceleration, "probe_generation", lambda *args: "it has no luck.")
        first = make_trainer(max_steps=2, **keys)
        first.train()
    assert first.acceleration.generation == "off: it has no luck."
    second = make_trainer(max_steps=4, **keys)
    second.train(resume_from_checkpoint=str(tmp_path / "o" / "checkpoint-2"))
    assert second.acceleration.generation == "on" and second.state.global_step == 4


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_depend_on_the_longest_row_are_refused(kind):
    """When that row ends and is dropped, the others' frequencies would change under them."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16, **factors}
    keys = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8}
    keys |= {"intermediate_size": 48, "max_position_embeddings": 16, "pad_token_id": 0, "rope_parameters": rope}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **keys))
    assert probe(model, 200) == f"rope_type='{kind}': its frequencies depend on the longest row, which may be dropped."
