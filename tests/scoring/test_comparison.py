"""The comparison before the first batch: what it finds, what follows, and that it leaves nothing behind."""

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
from trl_prorl.fast import packing
from trl_prorl.fast.batch_cache import RoomyLayer
from trl_prorl.fast.comparison import coarsest_unit, find_differences
from trl_prorl.fast.prefix import SeenStates


FAST = {"pack_groups": "auto", "compact_generation": "auto", "max_steps": 2}


def leaking(monkeypatch):
    """Packed rows in which each sequence also sees what its neighbour wrote."""
    forward = SeenStates.forward

    def leak(ctx, states, layout):
        return forward(ctx, states + states.mean(dim=0, keepdim=True), layout)

    monkeypatch.setattr(SeenStates, "forward", staticmethod(leak))


def mixed_up(monkeypatch):
    """Completions whose rows change places as others end."""
    close_up = RoomyLayer.close_up
    wrong = lambda self, kept: close_up(self, kept._replace(movers=kept.movers - 1))  # noqa: E731
    monkeypatch.setattr(RoomyLayer, "close_up", wrong)


def shifted(monkeypatch, by):
    score = packing.PackedScorer.__call__

    def off(self, *args, **keys):
        logps, *others = score(self, *args, **keys)
        return logps + by, *others

    monkeypatch.setattr(packing.PackedScorer, "__call__", off)


def execution(trainer):
    return json.loads(Path(trainer.args.output_dir, "env.json").read_text())["execution"]


@pytest.mark.parametrize("keys", [{"lora": False}, {}])
def test_autocast_is_rounding_and_no_difference(run, keys):
    """Accelerate wraps a full model's forward, by which it is sampled; an adapter's copy computes in fp32."""
    trainer = run(**FAST, **keys, beta=0.1, bf16=True)
    assert execution(trainer)["packing"] == execution(trainer)["compact_generation"] == "on"
    trainer._compare_scores()  # as in a training after a preflight, whose forward is wrapped already
    assert trainer.acceleration.packs and trainer.compact is not None


FAULTS = {"pack_groups": (leaking, "packing"), "compact_generation": (mixed_up, "compact_generation")}


@pytest.mark.parametrize("key", FAULTS)
def test_what_differs_is_off_with_auto_and_an_error_with_on(run, monkeypatch, largest_difference, key):
    plain = run(max_steps=2)
    fault, entry = FAULTS[key]
    fault(monkeypatch)
    trainer = run(**{key: "auto"}, max_steps=2)
    assert execution(trainer)[entry].startswith("off: ")
    assert without_times(read_rows(trainer)) == without_times(read_rows(plain))
    assert largest_difference(plain, trainer) == 0.0
    with pytest.raises(ValueError, match=f"{key}='on'"):
        run(**{key: "on"}, max_steps=2)


@pytest.mark.parametrize("by, stays", [(0.1, False), (1e-5, True)])
def test_rounding_is_no_difference(run, monkeypatch, by, stays):
    shifted(monkeypatch, by)
    assert run(pack_groups="auto", max_steps=1).acceleration.packs == stays


@pytest.mark.parametrize("by", [0.0, 0.1])
def test_a_resume_decides_as_the_start(run, resume, monkeypatch, largest_difference, by):
    """The policy has moved since: what is compared is the policy before a checkpoint is loaded."""
    shifted(monkeypatch, by)
    keys = {**FAST, "max_steps": 4, "save_strategy": "steps", "save_steps": 2, "num_iterations": 1}
    whole = run(**keys)
    resumed = resume(whole, 2, **keys)
    assert str(resumed.acceleration.packing) == str(whole.acceleration.packing)
    assert largest_difference(whole, resumed) == 0.0


def test_what_another_process_finds_is_this_one_s_decision_too(run, monkeypatch):
    answers = iter([{"pack_groups": "another process found a difference."}])  # the first question
    monkeypatch.setattr("trl_prorl.trainer.first_of_processes", lambda value: value or next(answers, None))
    trainer = run(**FAST)
    assert not trainer.acceleration.packs
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
    assert find_differences(policy, trainer.acceleration, trainer._trl_score, trainer.temperature, None) == {}
    assert state() == before
    assert all(torch.equal(value, weights[name]) for name, value in policy.state_dict().items())


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
