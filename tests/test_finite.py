"""NaN and infinity, wherever they come up."""

import math
from pathlib import Path

import pytest
import torch
from run_record import read_rows
from transformers import TrainerCallback

from trl_prorl.errors import NonFiniteError, RewardError
from trl_prorl.guards.finite import all_finite, first_nonfinite


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_value_counts(dtype):
    largest = torch.full((100,), torch.finfo(dtype).max, dtype=dtype)  # whose sum of squares overflows
    assert all_finite([largest, -largest, torch.zeros(0, dtype=dtype), torch.arange(3)])
    for bad in (math.nan, math.inf, -math.inf):
        spoiled = largest.clone()
        spoiled[57] = bad
        assert not all_finite([largest, spoiled]) and not all_finite([spoiled, largest])
        assert first_nonfinite({"none": None, "good": largest, "bad": spoiled, "worse": spoiled}) == "bad"
    assert first_nonfinite({"good": largest}) is None and all_finite([])


class At(TrainerCallback):
    """Do something to the model when a step begins."""

    def __init__(self, step, what):
        self.step, self.what = step, what

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == self.step:
            self.what(model)


def parameter(model, part):
    return next(param for name, param in model.named_parameters() if part in name)


def spoil(part):
    def what(model):
        with torch.no_grad():
            parameter(model, part).view(-1)[3] = math.nan

    return what


def spoil_gradient_once(model):
    handle = parameter(model, "layers.1.self_attn.v_proj.lora_B.default").register_hook(
        lambda gradient: (handle.remove(), gradient * math.nan)[1]
    )


def events(trainer, kind="nonfinite"):
    rows = read_rows(trainer, "events.jsonl")
    return [row for row in rows if row["event"] == kind]


KEYS = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1, "beta": 0.1, "ref_reset_every": 100}
REFERENCE, BASE = "layers.0.self_attn.q_proj.lora_B.ref", "layers.0.mlp.down_proj.base"
GRADIENT = "gradient of base_model.model.model.layers.1.self_attn.v_proj.lora_B.default"


@pytest.mark.parametrize(
    "what, compact, tensor",
    [
        pytest.param(spoil(REFERENCE), "off", "log-probabilities of the reference", marks=pytest.mark.gpu),
        pytest.param(spoil(BASE), "on", "probabilities of the next token", marks=pytest.mark.gpu),
        (spoil(BASE), "off", "probabilities of the next token"),  # an assertion on a GPU: see test_on_gpu.py
        pytest.param(spoil_gradient_once, "off", GRADIENT, marks=pytest.mark.gpu),
    ],
)
def test_the_run_stops_before_the_update_and_names_step_tensor_and_prompts(make_trainer, what, compact, tensor):
    trainer = make_trainer(**KEYS, compact_generation=compact, trainer_kwargs={"callbacks": [At(3, what)]})
    with pytest.raises(NonFiniteError, match=f"at step 3: {tensor}") as caught:
        trainer.train()
    out = Path(trainer.args.output_dir)
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
    (event,) = events(trainer)
    assert (event["step_applied"], event["action"]) == (3, "stop") and event["tensor"].startswith(tensor)
    if "gradient" not in tensor:  # which comes from all micro-batches of a step
        assert "say" in str(caught.value) and len(event["prompts"]) == 2


def test_weights_are_looked_at_after_the_update(make_trainer):
    class Late(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            if state.global_step == 5:  # the last step: nothing comes after it that would notice
                spoil("lora_A.default")(model)

    trainer = make_trainer(**KEYS, nonfinite="skip", trainer_kwargs={"callbacks": [Late()]})
    with pytest.raises(NonFiniteError, match="at step 6: weights .*lora_A.default.* after the update"):
        trainer.train()
    assert not Path(trainer.args.output_dir, "checkpoint-6").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("lora, of", [(True, "reward"), (False, "reward"), (True, "gradient")])
def test_skip_leaves_the_update_out_and_counts_it(make_trainer, weights, lora, of):
    seen = {}

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
            counts = [int(s["step"]) for s in optimizer.state.values()]
            seen[state.global_step] = ({k: v.clone() for k, v in weights(trainer).items()}, set(counts))

    def reward(completions, prompts, trainer_state, **kwargs):
        rewards = [float(len(c[-1]["content"])) for c in completions]
        if trainer_state.global_step == 2 and of == "reward":
            rewards[1] = math.inf
        return rewards

    callbacks = [Watch(), *([At(3, spoil_gradient_once)] if of == "gradient" else [])]
    keys = KEYS | {"num_iterations": 1, "nonfinite": "skip", "weight_decay": 0.1}
    trainer = make_trainer(**keys, lora=lora, reward=reward, trainer_kwargs={"callbacks": callbacks})
    trainer.train()
    same = lambda a, b: all(torch.equal(seen[a][0][k], seen[b][0][k]) for k in seen[a][0])  # noqa: E731
    assert same(2, 3) and not same(1, 2) and not same(3, 4)
    assert [seen[step][1] for step in (2, 3, 4)] == [{2}, {2}, {3}]
    rows = read_rows(trainer)
    assert [row["nonfinite_skips"] for row in rows] == [0, 0, 1, 1, 1, 1]
    (event,) = events(trainer)
    assert event["tensor"].startswith(GRADIENT if of == "gradient" else "advantages (a reward is not finite)")
    assert (event["step_applied"], event["action"]) == (3, "skip")
    assert all(math.isfinite(value) for row in rows for value in row.values())


def test_an_assertion_on_a_gpu_while_sampling(make_trainer):
    """On a GPU `torch.multinomial` of NaN says no more than this."""
    trainer = make_trainer(**KEYS)

    def fail(*args):
        raise RuntimeError("CUDA error: device-side assert triggered")

    trainer._generate_single_turn = fail
    with pytest.raises(NonFiniteError, match="at step 1: probabilities of the next token.*or an index.*sampling") as e:
        trainer.train()
    assert "device-side assert" in str(e.value.__cause__)


def test_an_infinite_reward_stops_and_names_function_and_prompt(make_trainer):
    def endless(completions, **kwargs):
        return [math.inf] + [0.0] * (len(completions) - 1)

    with pytest.raises(RewardError, match="'endless' returned inf for the prompt 'say"):
        make_trainer(reward=endless).train()
