"""Growth of the adapter's rank: the same function at that moment, and the run that had the rank from the start."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from run_record import read_events as events
from run_record import read_rows as rows
from tiny_run import BEST, LORA, QUESTIONS, AtBoundary, load_adapter, logits, set_evaluations
from transformers import AutoModelForCausalLM

from trl_prorl.extras.growth import Growth, check_growing_model, list_factors, random_state
from trl_prorl.reference import frozen_adapter
from trl_prorl.run.meter import StageTimer


# Two steps a generation, so that growth is requested at 2, and applied there.
GROWS = {"lora_growth_every": 2, "lora_growth_step": 2, "lora_growth_max_rank": 6}
ONE_BY_ONE = {**GROWS, "lora_growth_step": 1}


@pytest.fixture
def adapted(tiny_model):
    """A model with a policy that has been trained and a reference that has been left behind."""

    def make(**keys):
        torch.manual_seed(5)
        config = LoraConfig(**{**LORA, "init_lora_weights": True, **keys})
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config)
        for adapter, size in ((frozen_adapter(model, "ref"), 0.02), ("default", 0.05)):
            with torch.no_grad():
                for factor in list_factors(model):
                    if factor.adapter == adapter and factor.side == "B":
                        factor.linear.weight.normal_(std=size)
        return model

    return make


def settings(every=1, step=3, largest=9, seed=7, **other):
    keys = {"lora_growth_every": every, "lora_growth_step": step, "lora_growth_max_rank": largest, "seed": seed}
    return SimpleNamespace(**keys, **{"world_size": 1, "torch_compile": False} | other)


def growth(model, every=1, step=3, largest=9, seed=7, optimizer=None, copies=()):
    part = Growth(settings(every, step, largest, seed), model, copies, StageTimer(torch.device("cpu")))
    part.optimizer_made(optimizer)
    return part


def grown(model, step=1, **keys):
    part = growth(model, **keys)
    part.on_step_end(step, model)
    return part.on_generation(step)


KINDS = {
    "LoRA": {},
    "an uneven α": {"r": 3, "lora_alpha": 7},
    "rsLoRA": {"use_rslora": True},
    "gaussian": {"init_lora_weights": "gaussian"},
    "DoRA": {"use_dora": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_function_is_unchanged_and_so_is_what_is_saved(adapted, tiny_model, tmp_path, kind):
    model = adapted(**KINDS[kind])
    # From 3 to 6 ranks fp32 rounds a logit of 10 by 5e-6, because another kernel adds in another order; fp64 does not.
    model, close = (model.double(), 1e-12) if kind == "an uneven α" else (model, 1e-6)
    before = {name: logits(model, name) for name in ("default", "ref")}
    assert (before["default"] - before["ref"]).abs().max() > 1e-2
    scaling = {id(factor.layer): dict(factor.layer.scaling) for factor in list_factors(model)}
    trained = {name: param for name, param in model.named_parameters() if param.requires_grad}
    rank = KINDS[kind].get("r", 4)
    event = grown(model)
    assert (event["rank_before"], event["rank"]) == (rank, rank + 3)
    for name, theirs in before.items():
        assert (logits(model, name) - theirs).abs().max() < close
    for factor in list_factors(model):
        assert factor.linear.weight.shape[factor.axis] == factor.layer.r[factor.adapter] == rank + 3
        assert (factor.linear.in_features, factor.linear.out_features) == factor.linear.weight.shape[::-1]
        assert scaling[id(factor.layer)] == factor.layer.scaling
        new = factor.linear.weight.narrow(factor.axis, rank, 3)
        assert new.any() == (factor.side == "A")
    assert {name: param for name, param in model.named_parameters() if param.requires_grad} == trained  # the same ones

    model.save_pretrained(tmp_path)
    dtype = before["ref"].dtype
    saved = load_adapter(tiny_model, tmp_path, dtype)
    saved.load_adapter(tmp_path / "ref", "ref")
    for name, theirs in before.items():
        assert (logits(saved.to(dtype), name) - theirs).abs().max() < 1e-6
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["r"] == rank + 3
    # As it is written: α = 8 · 7/4, 7 · 6/3, and with rsLoRA 8 · √7/√4.
    assert str(config["lora_alpha"])[:6] == ("10.583" if kind == "rsLoRA" else "14")
    assert (logits(saved.merge_and_unload()) - before["default"]).abs().max() < 1e-5


def test_new_rows_follow_from_the_run_s_seed_and_the_step_alone(adapted):
    def rows(seed=7, step=1, **keys):
        model = adapted(**keys)
        torch.manual_seed(os.getpid())
        state = torch.get_rng_state()
        grown(model, step, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)  # TRL's random numbers are as before
        mine = {}
        theirs = {}
        for factor in (factor for factor in list_factors(model) if factor.side == "A"):
            (theirs if factor.adapter == "ref" else mine)[factor.place] = factor.linear.weight[4:]
        assert all(torch.equal(mine[place], theirs[place]) for place in mine)
        return torch.cat([mine[place] for place in mine if "down_proj" in place])

    first = rows()
    assert torch.equal(first, rows())
    assert not any(torch.equal(first, other) for other in (rows(seed=8), rows(step=2), rows(seed=2**32 + 7)))
    # Uniform within ±1/√48, as PEFT begins a factor A of 48 inputs; or normal with a deviation of 1/r'.
    assert first.shape == (6, 48)
    assert 0.9 < first.abs().max() * 48**0.5 <= 1
    assert first.std().item() == pytest.approx(1 / (3 * 48) ** 0.5, rel=0.1)
    assert rows(init_lora_weights="gaussian").std().item() == pytest.approx(1 / 7, rel=0.1)
    assert len(torch.unique(first)) == first.numel()  # layers get rows of their own
    assert random_state(1, 2).initial_seed() != random_state(2, 1).initial_seed()


def test_growth_ends_at_the_largest_rank(adapted):
    model = adapted()
    part = growth(model, every=2, step=3, largest=9)
    seen = []
    for step in range(1, 13):
        part.on_step_end(step, model)
        event = part.on_generation(step) if step % 3 == 0 else None  # three steps a generation
        seen += [(event["step_requested"], event["step_applied"], event["rank"])] if event else []
    assert seen == [(2, 3, 7), (6, 6, 9)]


# ------------------------------------------------------------------------------------------------------ in training


ARMS = {
    "control": {"beta": 0.3, "num_iterations": 2},
    "A, mixed": {"beta": 0.3, "ref_reset_every": 2, "ref_reset_mix": 0.5},
    "C": {"beta": 0.3, "ref_reset_every": 2, "optimizer_reset": "soft"},  # every treatment: test_growth_state.py
    "rsLoRA": {"beta": 0.3, "ref_reset_every": 2, "lora": {"use_rslora": True}},
    "SGD": {"optim": "sgd", "learning_rate": 0.5},
    "accumulation": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4},
    "Elastic Reset": {"elastic_reset_every": 2, "elastic_ema": 0.5},
    "packed, compact": {"beta": 0.3, "ref_reset_every": 2, "pack_groups": "on", "compact_generation": "on"},
}


@pytest.mark.parametrize("arm", ARMS)
def test_the_run_that_had_the_rank_from_the_start(make_trainer, largest_difference, arm):
    """
    Its last ranks have neither rows of A nor columns of B until the growth, so that nothing of them has a gradient;
    then A's rows are those that the growing run drew.
    """
    keys = dict(ARMS[arm])
    lora = {**LORA, **keys.pop("lora", {})}
    keys = {"max_steps": 6, "log_update_norm": True, **keys}
    factor = (6 / 4) ** (0.5 if lora.get("use_rslora") else 1)

    def trainer_of(config, **more):
        return make_trainer(lora=False, trainer_kwargs={"peft_config": LoraConfig(**config)}, **keys, **more)

    growing = trainer_of(lora, **GROWS)
    control = trainer_of({**lora, "r": 6, "lora_alpha": 8 * factor})
    small = growing.model
    large = control.model
    elastic = control.parts.get("elastic")
    copies = [elastic.average, elastic.initial] if elastic else []

    def weights_of(factor):
        return [factor.linear.weight, *(copied[factor.name] for copied in copies)]

    begun = {factor.name: factor.linear.weight.detach().clone() for factor in list_factors(small)}
    with torch.no_grad():
        for factor in list_factors(large):
            for weight in weights_of(factor):
                weight.zero_().narrow(factor.axis, 0, 4).copy_(begun[factor.name])
    drawn = {}

    def note(step):
        if events(growing) and not drawn:
            drawn.update({f.name: f.linear.weight[4:].detach().clone() for f in list_factors(small) if f.side == "A"})
            assert events(growing)[0]["step_applied"] == step == 2

    @torch.no_grad()
    def fill(step):
        for factor in list_factors(large):
            if step == 2 and factor.side == "A":
                for weight in weights_of(factor):
                    weight[4:] = drawn[factor.name]

    # After growth, and before the generation.
    growing.parts["note"] = AtBoundary(note)
    control.parts["fill"] = AtBoundary(fill)
    for trainer in (growing, control):
        torch.manual_seed(3)
        trainer.train()
    assert [event["rank"] for event in events(growing) if event["event"] == "growth"] == [6]
    assert largest_difference(growing, control) < 2e-6
    of_growing = rows(growing)
    of_control = rows(control)
    for key in ("grad_norm", "update_norm", "reward", "lr"):
        assert [row[key] for row in of_growing] == pytest.approx([row[key] for row in of_control], rel=1e-4), key
    new = [
        f.linear.weight.narrow(f.axis, 4, 2) for f in list_factors(small) if f.adapter == "default" and f.side == "B"
    ]
    assert all(part.any() for part in new)  # which were trained
    if arm == "packed, compact":
        assert growing.parts["generation"].merged.on and control.parts["generation"].merged.on


def test_at_a_common_boundary_growth_goes_first_and_resets_nothing(run):
    keys = {"beta": 0.3, "num_iterations": 2, "max_steps": 5, **ONE_BY_ONE}
    found = events(run(**keys, ref_reset_every=4, elastic_reset_every=2, elastic_ema=0.5))
    order = "growth 2, elastic_reset 2, growth 4, elastic_reset 4, reset 4"
    assert ", ".join(f"{event['event']} {event['step_applied']}" for event in found) == order
    assert (found[0]["rank_before"], found[0]["rank"]) == (4, 5)
    alone = run(**keys)
    assert [event["event"] for event in events(alone)] == ["growth", "growth"]


# ------------------------------------------------------------------------------------------ checkpoints and resumes


def test_a_resume_around_a_growth_is_exact(run, resume, largest_difference):
    """Requested at 3 in the middle of a batch and applied at 4; at 6 and applied there, after the checkpoint."""
    keys = {"beta": 0.3, "ref_reset_every": 3, "optimizer_reset": "hard", **GROWS}
    keys |= {"lora_growth_every": 3, "lora_growth_max_rank": 8, "num_iterations": 2, "max_steps": 8}
    keys |= {"save_strategy": "steps", "save_steps": 1}
    whole = run(**keys)
    growths = [[e[key] for key in ("step_requested", "step_applied", "rank")] for e in events(whole, "growth")]
    assert growths == [[3, 4, 6], [6, 6, 8]]
    for step, rank in ((3, 4), (6, 6)):  # the request waits; the second one is applied first of all
        adapter = Path(whole.args.output_dir, f"checkpoint-{step}", "adapter_config.json")
        assert json.loads(adapter.read_text())["r"] == rank
        again = resume(whole, step, **keys)
        assert largest_difference(whole, again) == 0.0, step


def test_the_best_checkpoint_has_a_smaller_rank_and_comes_with_its_own_reference(make_trainer, tiny_model):
    """The newest one, moved after a growth, has ranks that the best policy has not."""
    keys = {**BEST, **GROWS, "lora_growth_every": 3}
    keys |= {"num_iterations": 1, "beta": 0.3, "ref_reset_every": 1, "max_steps": 6}
    trainer = set_evaluations(make_trainer(**keys, trainer_kwargs=QUESTIONS), 9.0, 1.0, 1.0)
    trainer.train()
    out = Path(trainer.args.output_dir)
    best = out / "checkpoint-2"
    assert trainer.state.best_model_checkpoint == str(best)
    assert trainer.model.peft_config["default"].r == 4
    assert all(state["exp_avg"].shape == param.shape for param, state in trainer.optimizer.state.items())
    trainer.save_model()
    for folder, name in ((best, "default"), (best / "ref", "ref"), (out, "default"), (out / "ref", "ref")):
        theirs = load_adapter(tiny_model, folder)
        assert theirs.peft_config["default"].r == 4
        assert (logits(theirs) - logits(trainer.model, name)).abs().max() < 1e-6, folder
    assert (logits(trainer.model, "ref") - logits(trainer.model, "default")).abs().max() > 1e-3
    assert trainer.model.active_adapters == ["default"]


# -------------------------------------------------------------------------------------------------------- refusals


def lora(**keys):
    return {"peft_config": LoraConfig(**{**LORA, **keys})}


OF_A_PARAMETER = lora(target_modules=[], target_parameters=["down_proj.weight"])
REFUSED = [
    ({}, {}, "use_peft"),
    ({}, {"peft_config": IA3Config(task_type="CAUSAL_LM")}, "IA3"),
    ({}, lora(r=6), "rank 6"),
    ({}, lora(rank_pattern={"q_proj": 2}), "rank_pattern"),
    ({}, OF_A_PARAMETER, "down_proj"),
    ({}, lora(target_modules=["embed_tokens"]), "embed_tokens"),
    ({"optim": "adamw_8bit"}, lora(), "bitsandbytes"),
]


@pytest.mark.parametrize("keys, trainer_kwargs, named", REFUSED, ids=[named for *_, named in REFUSED])
def test_what_cannot_grow_is_refused(make_trainer, keys, trainer_kwargs, named):
    with pytest.raises(ValueError, match=named) as error:
        make_trainer(lora=False, **GROWS, **keys, trainer_kwargs=trainer_kwargs).train()
    assert "lora_growth_" in str(error.value)


@pytest.mark.parametrize("key, value", [("torch_compile", True), ("world_size", 2)])
def test_what_holds_on_to_shapes_is_refused(adapted, key, value):
    with pytest.raises(ValueError, match="lora_growth_every=.*process"):
        check_growing_model(adapted(), settings(**{key: value}))
