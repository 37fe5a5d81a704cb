"""Restarts of the adapter: the same function at that moment, one adapter in every file, and a run begun from there."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from run_record import read_events
from run_record import read_rows as rows
from tiny_run import (
    BEST,
    LORA,
    QUESTIONS,
    AtBoundary,
    disturb_adapter,
    load_adapter,
    load_with_new_adapter,
    logits,
    set_evaluations,
)
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

from trl_prorl.extras.growth import list_factors
from trl_prorl.extras.restart import Restart
from trl_prorl.launch.plan import Plan


RESTARTS = {"ref_reset_every": 2, "adapter_restart": "merge"}
ARMS = {
    "C, packed and compact": {"beta": 0.3, **RESTARTS, "optimizer_reset": "hard", "fast": True},
    "without KL": {**RESTARTS, "optimizer_reset": "soft"},
}


def far(one, other):
    """Nats a token."""
    return (one.log_softmax(-1) - other.log_softmax(-1)).abs().mean()


@pytest.mark.parametrize(
    "kind, dtype, close",
    [
        ({}, torch.float64, 1e-12),
        ({}, torch.float32, 1e-5),
        ({"r": 3, "lora_alpha": 7}, torch.float64, 1e-12),
        ({"use_rslora": True}, torch.float64, 1e-12),
        ({"init_lora_weights": "gaussian"}, torch.float32, 1e-5),
    ],
    ids=str,
)
def test_the_function_stays_and_every_file_holds_one_adapter(tiny_model, tmp_path, kind, dtype, close):
    model = load_with_new_adapter(tiny_model, 0.0, dtype, **kind).to(dtype)
    begun = logits(model)
    rank = kind.get("r", 4)
    trained = {name: param for name, param in model.named_parameters() if param.requires_grad}
    part = Restart(model, SimpleNamespace(seed=7))
    for count in (1, 2):
        disturb_adapter(model)
        before = logits(model)
        state = torch.get_rng_state()
        facts = part.apply()
        assert torch.equal(torch.get_rng_state(), state)  # TRL's random numbers are as before
        assert facts["adapter_restarts"] == count
        assert facts["merged_bytes"] == count * sum(param.nbytes for param in trained.values())
        assert far(logits(model), before) < close < 1e-3 < far(before, begun)
        assert torch.equal(logits(model), logits(model, None))  # the reference is the policy
        for factor in list_factors(model):
            assert factor.linear.weight.any() == (factor.side == "A")
            assert factor.linear.weight.shape[factor.axis] == rank
    disturb_adapter(model)
    with part.written():
        model.save_pretrained(tmp_path)
    assert {name: param for name, param in model.named_parameters() if param.requires_grad} == trained  # the same ones
    assert model.peft_config["default"].r == rank
    assert json.loads((tmp_path / "adapter_config.json").read_text())["r"] == 3 * rank
    saved = load_adapter(tiny_model, tmp_path, dtype).to(dtype)
    assert far(logits(saved), logits(model)) < 1e-5
    assert far(logits(saved.merge_and_unload()), logits(model)) < 1e-5
    with part.undone():
        assert torch.equal(logits(model, None), begun)
    assert far(logits(saved), logits(model)) < 1e-5


def test_weights_that_are_stored_transposed_are_merged_so():
    """GPT-2's linear layers hold the transpose, and this one is not square."""
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    adapter = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = get_peft_model(GPT2LMHeadModel(config).eval().double(), adapter).double()
    disturb_adapter(model)
    tokens = torch.arange(8)[None]
    before = model(tokens).logits
    Restart(model, SimpleNamespace(seed=7)).apply()
    assert (model(tokens).logits - before).abs().max() < 1e-12


def test_new_factors_follow_from_the_run_s_seed_and_the_count_alone(tiny_model):
    def drawn(seed, count):
        model = load_with_new_adapter(tiny_model, 0.0)
        part = Restart(model, SimpleNamespace(seed=seed))
        for _ in range(count):
            part.apply()
        return torch.cat([factor.linear.weight.flatten() for factor in list_factors(model) if factor.side == "A"])

    assert torch.equal(drawn(7, 1), drawn(7, 1))
    assert len({tuple(drawn(*which)[:8].tolist()) for which in ((7, 1), (7, 2), (8, 1))}) == 3


def test_200_restarts_of_a_bf16_model_lose_nothing(tiny_model):
    """Each product is a small part of a rounding step of the weights. In place, all of them would be lost."""
    model = load_with_new_adapter(tiny_model, 0.0, torch.bfloat16)
    layer = list_factors(model)[0].layer
    weight = layer.get_base_layer().weight
    part = Restart(model, SimpleNamespace(seed=1))
    exact = weight.double()
    in_place = weight.detach().clone()
    for _ in range(200):
        disturb_adapter(model, 1e-3)
        a, b = (next(f.linear.weight for f in list_factors(model) if f.layer is layer and f.side == s) for s in "AB")
        product = 2.0 * (b.double() @ a.double())
        exact = exact + product
        in_place = in_place + product.to(torch.bfloat16)
        part.apply()
    right = exact.to(torch.bfloat16)
    assert (weight == right).double().mean() > 0.999  # but where fp32 and fp64 round to two sides
    assert (in_place == right).double().mean() < 0.9


@pytest.mark.parametrize("arm", ARMS)
def test_a_resume_at_any_step_is_exact(run, resume, tiny_model, arm):
    keys = {**ARMS[arm], "max_steps": 6, "save_strategy": "steps", "save_steps": 1}
    whole = run(**keys)
    found = [(event["step_applied"], event["adapter_restarts"]) for event in read_events(whole, "reset")]
    assert found == [(2, 1), (4, 2)]
    assert list(whole.model.peft_config) == ["default"]  # no second adapter
    if keys.get("beta"):
        assert [row["kl_ref"] for row in rows(whole)][2::2] == pytest.approx([0, 0], abs=1e-9)
        assert rows(whole)[3]["kl_ref"] > 1e-6
    end = dict(whole.model.named_parameters())  # the frozen ones too
    for step in (2, 3):
        adapter = Path(whole.args.output_dir, f"checkpoint-{step}", "adapter_config.json")
        # What was applied at the checkpoint's own step comes after it was written.
        assert json.loads(adapter.read_text())["r"] == 4 * (1 + (step - 1) // 2)
        again = resume(whole, step, **keys)
        found = dict(again.model.named_parameters())
        assert found.keys() == end.keys() and all(torch.equal(found[name], end[name]) for name in end), step
    whole.save_model()
    theirs = load_adapter(tiny_model, whole.args.output_dir)
    assert far(logits(theirs), logits(whole.model)) < 1e-5
    assert theirs.peft_config["default"].r == 12


def test_a_resume_with_another_rank_is_refused(run, make_trainer):
    """At step 3 the checkpoint has rank 8: one restart of rank 4, or none of rank 8."""
    keys = {**RESTARTS, "max_steps": 3, "save_strategy": "steps", "save_steps": 3, "lora": False}
    out = run(**keys, trainer_kwargs={"peft_config": LoraConfig(**LORA)}).args.output_dir
    wide = {"peft_config": LoraConfig(**LORA | {"r": 8, "lora_alpha": 16})}
    other = make_trainer(**keys, output_dir=out, allow_config_change=True, trainer_kwargs=wide)
    with pytest.raises(ValueError, match="rank of the adapter"):
        other.train(resume_from_checkpoint=True)


def test_a_restart_is_a_new_run_from_the_merged_weights(make_trainer, tiny_model, tmp_path, largest_difference):
    """With a cleared optimizer, the same prompts and the same random numbers."""
    keys = {"beta": 0.3, "shuffle_dataset": False, "ref_reset_every": 100, "adapter_restart": "merge"}
    one = make_trainer(**{**keys, "ref_reset_every": 2}, optimizer_reset="hard", prompts=4)
    kept = {}

    def note(step):
        if step == 2:
            kept["random"] = torch.get_rng_state()
            kept["factors"] = {f.name: f.linear.weight.detach().clone() for f in list_factors(one.model)}
            merged = AutoModelForCausalLM.from_pretrained(tiny_model)
            state = {}
            for name, value in one.model.state_dict().items():
                if "lora_" not in name:
                    state[name.replace("base_model.model.", "").replace("base_layer.", "")] = value
            merged.load_state_dict(state)
            merged.save_pretrained(tmp_path / "merged")

    one.parts["note"] = AtBoundary(note)
    one.train()

    two = make_trainer(**keys, model=str(tmp_path / "merged"), max_steps=2, prompts=4)
    two.train_dataset = two.train_dataset.select([2, 3, 0, 1])
    with torch.no_grad():
        for factor in list_factors(two.model):
            factor.linear.weight.copy_(kept["factors"][factor.name])
    two.parts["note"] = AtBoundary(lambda step: torch.set_rng_state(kept["random"]) if step == 0 else None)
    two.train()
    assert len(read_events(one, "reset")) == 1
    assert not read_events(two, "reset")
    assert largest_difference(one, two) < 1e-6
    assert [row["kl_ref"] for row in rows(one)[2:]] == pytest.approx([row["kl_ref"] for row in rows(two)], abs=1e-6)


def test_the_best_checkpoint_may_have_fewer_restarts(make_trainer, tiny_model):
    keys = {**BEST, **RESTARTS, "beta": 0.3, "max_steps": 6}
    trainer = set_evaluations(make_trainer(**keys, trainer_kwargs=QUESTIONS), 1.0, 9.0, 1.0)
    trainer.train()
    theirs = load_adapter(tiny_model, Path(trainer.args.output_dir, "checkpoint-4"))
    assert theirs.peft_config["default"].r == 8
    assert far(logits(theirs), logits(trainer.model)) < 1e-6
    trainer.save_model()
    assert far(logits(theirs), logits(load_adapter(tiny_model, trainer.args.output_dir))) < 1e-6


def test_training_again_goes_on_from_the_best_checkpoint_with_an_adapter_of_the_same_rank(make_trainer, tiny_model):
    """The best one, of step 4, holds one restart, so an adapter of rank 8 in place of 4."""
    keys = {**BEST, **RESTARTS, "beta": 0.3, "max_steps": 6}
    trainer = set_evaluations(make_trainer(**keys, trainer_kwargs=QUESTIONS), 0.1, 0.3, 0.2, 0.1, 0.1, 0.1)
    trainer.train()
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-4"
    best = logits(trainer.model)
    seen = []

    def look(step):
        ranks = {factor.linear.weight.shape[factor.axis] for factor in list_factors(trainer.model)}
        seen.append((step, ranks, far(logits(trainer.model), best)))

    trainer.parts["looks"] = AtBoundary(look)
    trainer.train()
    assert [(step, ranks) for step, ranks, _ in seen] == [(0, {4}), (2, {4}), (4, {4})]
    assert seen[0][2] < 1e-5


REFUSED = {
    "full fine-tuning": ({}, {"peft_config": None}, "use_peft"),
    "IA3": ({}, {"peft_config": IA3Config()}, "IA3"),
    "DoRA": ({}, {"peft_config": LoraConfig(use_dora=True)}, "use_dora"),
    "a trained module": ({}, {"peft_config": LoraConfig(modules_to_save=["lm_head"])}, "modules_to_save"),
    "a bias": ({}, {"peft_config": LoraConfig(bias="all")}, "bias"),
    "a bias of its own": ({}, {"peft_config": LoraConfig(lora_bias=True)}, "lora_bias"),
    "another beginning": ({}, {"peft_config": LoraConfig(init_lora_weights=False)}, "init_lora_weights"),
    "trained tokens": ({}, {"peft_config": LoraConfig(trainable_token_indices=[60])}, "trainable_token_indices"),
    "4 bits": ({}, {"quantization_config": BitsAndBytesConfig(load_in_4bit=True)}, "quantised"),
    "torch.compile": ({"torch_compile": True}, {}, "torch_compile"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_restart_is_refused_before_a_model_is_loaded(make_trainer, monkeypatch, case):
    keys, trainer_kwargs, named = REFUSED[case]
    monkeypatch.setattr(Plan, "wrap", lambda plan: pytest.fail("a model would be loaded"))
    with pytest.raises(ValueError, match=f"adapter_restart.*{named}"):
        make_trainer(beta=0.3, **RESTARTS, **keys, trainer_kwargs=trainer_kwargs)


def test_a_trained_adapter_is_refused(make_trainer, trained_adapter):
    with pytest.raises(ValueError, match="adapter_restart"):
        make_trainer(beta=0.3, **RESTARTS, model=trained_adapter(), lora=False)
