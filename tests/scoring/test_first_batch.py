"""The two comparisons at the first batch: what they find, what follows, and that they leave nothing behind."""

import json
import random
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from run_record import read_rows, without_times
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.errors import InputError
from trl_prorl.fast import first_batch, packing
from trl_prorl.fast.batch_cache import RoomyLayer
from trl_prorl.fast.own_forward import coarsest_unit


FAST = {"pack_groups": "auto", "compact_generation": "auto", "max_steps": 2}


def leak(module, args, output):
    """Every token reads the whole row, so that a packed row gives other values than one alone."""
    return output + output.mean(dim=1, keepdim=True)


def leaking(path):
    model = AutoModelForCausalLM.from_pretrained(path)
    model.model.layers[1].mlp.register_forward_hook(leak)
    return model


def mixed_up(monkeypatch):
    """Completions whose rows change places as others end."""
    close_up = RoomyLayer.close_up
    wrong = lambda self, kept: close_up(self, kept._replace(movers=kept.movers - 1))  # noqa: E731
    monkeypatch.setattr(RoomyLayer, "close_up", wrong)


def shifted(monkeypatch, by=0.1):
    score = packing.PackedScorer.__call__

    def off(self, *args, **keys):
        logps, *others = score(self, *args, **keys)
        return logps + by, *others

    monkeypatch.setattr(packing.PackedScorer, "__call__", off)


def execution(trainer):
    return json.loads(Path(trainer.args.output_dir, "env.json").read_text())["execution"]


def test_what_is_right_stays_on_and_is_compared_once(run, monkeypatch):
    asked = []
    own = first_batch.own_logps
    monkeypatch.setattr(first_batch, "own_logps", lambda *args: asked.append(args) or own(*args))
    trainer = run(**FAST, num_iterations=1)
    assert len(asked) == 2  # a row's score, a prompt's samples
    assert trainer.first_batch.state_dict() == {"score": "", "samples": ""}
    assert execution(trainer)["packing"] == execution(trainer)["compact_generation"] == "on"


@pytest.mark.parametrize("keys", [{"lora": False}, {}, {"compact_merge": False}])
def test_autocast_is_rounding_and_no_difference(run, keys):
    """Accelerate wraps a full model's forward, by which it is sampled; an adapter's copy computes in fp32."""
    trainer = run(**FAST, **keys, beta=0.1, bf16=True)
    assert trainer.first_batch.state_dict() == {"score": "", "samples": ""}
    assert execution(trainer)["packing"] == execution(trainer)["compact_generation"] == "on"


def test_scores_that_are_off_are_found_and_trl_s_take_their_place(run, monkeypatch, largest_difference):
    plain = run(max_steps=2)
    shifted(monkeypatch)
    keys = {"pack_groups": "auto", "max_steps": 2}
    trainer = run(**keys)
    assert not trainer.acceleration.packs and "0.1 nats" in trainer.acceleration.packing.reason
    assert execution(trainer)["packing"] == str(trainer.acceleration.packing)
    assert largest_difference(plain, trainer) == 0.0
    with pytest.raises(InputError, match="pack_groups='on'.*0.1 nats") as caught:
        run(**keys | {"pack_groups": "on"})
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    shifted(monkeypatch, by=1e-5)
    assert run(**keys).acceleration.packs


def test_samples_that_are_off_are_drawn_again_by_generate(run, monkeypatch):
    plain = run(max_steps=2)
    draw = first_batch.FirstBatch.sample

    def off(self, prompts, sample):
        def wrong(logps_at):
            completions, logps = sample(logps_at)
            return completions, logps and [[value - 0.1 for value in row] for row in logps]

        return draw(self, prompts, wrong)

    monkeypatch.setattr(first_batch.FirstBatch, "sample", off)
    trainer = run(compact_generation="auto", max_steps=2)
    assert "0.1 nats" in trainer.acceleration.generation.reason
    assert trainer.compact is None
    assert execution(trainer)["compact_generation"] == str(trainer.acceleration.generation)
    assert without_times(read_rows(trainer)) == without_times(read_rows(plain))
    with pytest.raises(InputError, match="compact_generation='on'.*0.1 nats"):
        run(compact_generation="on", max_steps=2)


def test_a_resume_keeps_the_decision(run, resume, monkeypatch, largest_difference):
    keys = {**FAST, "max_steps": 4, "save_strategy": "steps", "save_steps": 2, "num_iterations": 1}
    shifted(monkeypatch)
    whole = run(**keys)
    monkeypatch.undo()
    resumed = resume(whole, 2, **keys)
    assert str(resumed.acceleration.packing) == str(whole.acceleration.packing)
    assert largest_difference(whole, resumed) == 0.0


def test_packed_rows_that_a_resume_switches_on_are_compared(run, resume, monkeypatch):
    keys = {**FAST, "pack_groups": "off", "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = run(**keys, num_iterations=1)
    shifted(monkeypatch)
    resumed = resume(whole, 2, **keys | {"pack_groups": "auto", "allow_config_change": True}, num_iterations=1)
    assert not resumed.acceleration.packing.on


def test_what_another_process_finds_is_this_one_s_decision_too(run, monkeypatch):
    def gathered(found):
        if isinstance(found[0], tuple):
            return [*found, (True, None, "another process found a difference.")]
        return found

    monkeypatch.setattr(first_batch, "gather_object", gathered)
    trainer = run(**FAST)
    assert str(trainer.acceleration.packing) == "off: another process found a difference."
    assert trainer.acceleration.generation.on


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(()).item()])
def test_what_is_random_in_training_mode_by_any_generator_is_found(run, tiny_model, draw, largest_difference):
    def model():
        made = AutoModelForCausalLM.from_pretrained(tiny_model)
        made.model.norm.register_forward_hook(
            lambda module, args, output: output * (1 + 0.1 * draw()) if module.training else output
        )
        return made

    with pytest.raises(ValueError, match="random in training mode"):
        run(model=model(), beta_old=0.1, max_steps=2)
    run(model=model(), max_steps=2)  # plain TRL keeps its own
    fast = run(model=model(), fast=True, max_steps=2)
    assert fast.args.is_trl and not fast.acceleration.packs and fast.compact is None


def test_nothing_is_left_behind(make_trainer):
    trainer = make_trainer(**FAST)
    trainer.model.train()
    policy = trainer.accelerator.unwrap_model(trainer.model)
    policy.get_submodule("base_model.model.model.layers.0").eval()  # a part that somebody froze

    def state():
        modules = [(id(module), type(module), module.training) for module in policy.modules()]
        numbers = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
        return modules, numbers, [param.grad for param in policy.parameters()]

    weights = {name: value.clone() for name, value in policy.state_dict().items()}
    before = state()
    trainer.first_batch.compare_score([[3, 4, 5]] * 2, [[6, 7], [8, 9, 10]])
    assert trainer.first_batch.score == ""
    assert state() == before
    assert all(torch.equal(value, weights[name]) for name, value in policy.state_dict().items())


def test_a_batch_of_empty_completions_decides_nothing(make_trainer):
    trainer = make_trainer(**FAST)
    trainer.first_batch.compare_score([[3, 4, 5]], [[]])
    assert trainer.first_batch.score is None


@pytest.mark.parametrize(
    "device, dtype, precision, unit",
    [
        ("cuda", torch.float32, "tf32", 2**-10),
        ("cuda", torch.float32, "ieee", 2**-23),
        ("cpu", torch.float32, "tf32", 2**-23),
        ("cuda", torch.bfloat16, "tf32", 2**-7),
    ],
)
def test_a_gpu_s_products_round_fp32_where_transformers_tf32_is_on(monkeypatch, device, dtype, precision, unit):
    """TensorFloat-32 keeps ten bits behind the point: a gradient then differs by more than fp32 explains."""
    parameter = Mock(dtype=dtype, device=torch.device(device))
    model = Mock(parameters=lambda: iter([parameter]))
    monkeypatch.setattr(torch.backends.cuda, "matmul", Mock(fp32_precision=precision))
    assert coarsest_unit(model, None) == unit


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_token_ids_of_a_rollout_may_be_tensors_as_with_trl(run, largest_difference, kind):
    def rollout(prompts, trainer):
        ids = trainer._tokenize_prompts(prompts)[0]
        completions = [[65 + row, 66, 67] for row in range(len(ids))]
        return {"prompt_ids": [*map(kind, ids)], "completion_ids": [*map(kind, completions)], "logprobs": None}

    theirs, ours = (
        run(cls, trainer_kwargs={"rollout_func": rollout}, max_steps=1) for cls in (GRPOTrainer, ProRLTrainer)
    )
    assert largest_difference(theirs, ours) == 0.0
