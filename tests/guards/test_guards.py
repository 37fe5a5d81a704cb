"""Guards: NaN and infinity wherever they come up, reward hacking, a policy that collapses."""

import json
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_record import read_events, read_rows
from slow import slow_but
from tiny_run import constant
from transformers import TrainerCallback

from trl_prorl import ProRLConfig
from trl_prorl.errors import NonFiniteError
from trl_prorl.guards.finite import FiniteGuard, all_finite, first_nonfinite
from trl_prorl.parts import MicroBatch
from trl_prorl.train import main
from trl_prorl.watch import GUARD_WINDOW, configured_alarms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_value_counts(dtype):
    largest = torch.full((100,), torch.finfo(dtype).max, dtype=dtype)  # whose sum of squares overflows
    assert all_finite([largest, -largest, torch.zeros(0, dtype=dtype), torch.arange(3)])
    for bad in (math.nan, math.inf, -math.inf):
        spoiled = largest.clone()
        spoiled[57] = bad
        assert not all_finite([largest, spoiled])
        assert not all_finite([spoiled, largest])
        assert first_nonfinite({"good": largest, "bad": spoiled, "worse": spoiled}) == "bad"
    assert first_nonfinite({"good": largest}) is None
    assert all_finite([])


class At(TrainerCallback):
    """Do something to the model when a step begins."""

    def __init__(self, step, what):
        self.step = step
        self.what = what

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == self.step:
            self.what(model)


def parameter(model, part):
    return next(param for name, param in model.named_parameters() if part in name)


@torch.no_grad()
def spoil(part, model):
    parameter(model, part).view(-1)[3] = math.nan


def spoil_gradient_once(model):
    trained = parameter(model, "layers.1.self_attn.v_proj.lora_B.default")
    handle = trained.register_hook(lambda gradient: (handle.remove(), gradient * math.nan)[1])


def test_the_first_micro_batch_of_a_step_that_is_not_finite_is_named_before_the_update():
    """The second of three, by its KL; the third has a loss of NaN. The next step begins without either."""

    def micro_batch(number, loss=0.0, reference=0.0):
        ones = torch.ones(1, 2)
        batch = {"prompt_ids": torch.tensor([[number]]), "completion_mask": ones, "advantages": torch.ones(1)}
        batch["ref_per_token_logps"] = ones * reference
        return MicroBatch(batch=batch, loss=torch.tensor(loss), logps=ones, entropies=ones)

    accelerator = SimpleNamespace(scaler=None, num_processes=1, reduce=lambda tensor, reduction: tensor)
    recorder = SimpleNamespace(on_event=lambda event: None)
    decoder = SimpleNamespace(batch_decode=lambda ids, **keys: [f"prompt {number}" for (number,) in ids.tolist()])
    guard = FiniteGuard(SimpleNamespace(nonfinite="stop"), accelerator, None, recorder, decoder)
    model = torch.nn.Linear(1, 1)
    model.weight.grad = torch.ones(1, 1)

    def update(step, *micro_batches):
        for micro_batch in micro_batches:
            guard.on_loss(micro_batch)
        guard.on_backward(dict(model.named_parameters()))
        guard.on_pre_optimizer_step(step, 1.0, 0.1)

    with pytest.raises(NonFiniteError, match="at step 1: kl_ref in a batch with the prompts 'prompt 2'"):
        update(1, micro_batch(1), micro_batch(2, math.inf, reference=1e3), micro_batch(3, loss=math.nan))
    update(2, micro_batch(4))


KEYS = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1, "beta": 0.1, "ref_reset_every": 100}
REFERENCE = "layers.0.self_attn.q_proj.lora_B.ref"
BASE = "layers.0.mlp.down_proj.base"
GRADIENT = "gradient of base_model.model.model.layers.1.self_attn.v_proj.lora_B.default"


@pytest.mark.parametrize(
    "what, compact, tensor",
    [
        pytest.param(partial(spoil, REFERENCE), "off", "log-probabilities of the reference", marks=pytest.mark.gpu),
        pytest.param(partial(spoil, BASE), "on", "next-token probabilities", marks=pytest.mark.gpu),
        (partial(spoil, BASE), "off", "next-token probabilities"),  # an assertion on a GPU: see test_on_gpu.py
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
    (event,) = read_events(trainer, "nonfinite")
    assert (event["step_applied"], event["action"]) == (3, "stop")
    assert event["tensor"].startswith(tensor)
    if "gradient" not in tensor:  # which comes from all micro-batches of a step
        assert "say" in str(caught.value)
        assert len(event["prompts"]) == 2


def test_weights_are_looked_at_after_the_update(make_trainer):
    class Late(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            if state.global_step == 5:  # the last step: nothing comes after it that would notice
                spoil("lora_A.default", model)

    trainer = make_trainer(**KEYS, nonfinite="skip", trainer_kwargs={"callbacks": [Late()]})
    with pytest.raises(NonFiniteError, match="at step 6: weights .*lora_A.default"):
        trainer.train()
    assert not Path(trainer.args.output_dir, "checkpoint-6").exists()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "lora, of",
    slow_but([(True, "reward"), (False, "reward"), (True, "gradient")], (True, "reward"), (True, "gradient")),
)
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

    callbacks = [Watch()]
    if of == "gradient":
        callbacks.append(At(3, spoil_gradient_once))
    keys = KEYS | {"num_iterations": 1, "nonfinite": "skip", "weight_decay": 0.1}
    trainer = make_trainer(**keys, lora=lora, reward=reward, trainer_kwargs={"callbacks": callbacks})
    trainer.train()
    same = lambda a, b: all(torch.equal(seen[a][0][k], seen[b][0][k]) for k in seen[a][0])  # noqa: E731
    assert same(2, 3)
    assert not same(1, 2)
    assert not same(3, 4)
    assert [seen[step][1] for step in (2, 3, 4)] == [{2}, {2}, {3}]
    rows = read_rows(trainer)
    assert [row["nonfinite_skips"] for row in rows] == [0, 0, 1, 1, 1, 1]
    (event,) = read_events(trainer, "nonfinite")
    assert event["tensor"].startswith(GRADIENT if of == "gradient" else "advantages")
    assert (event["step_applied"], event["action"]) == (3, "skip")
    assert all(math.isfinite(value) for row in rows for value in row.values())


@pytest.mark.parametrize(
    "keys",
    [
        {"scale_rewards": "batch"},
        {"multi_objective_aggregation": "normalize_then_sum"},
        {"advantage_estimator": "global_normalized"},
    ],
    ids=str,
)
def test_an_infinite_reward_spoils_each_update_of_a_batch_that_is_scaled_as_a_whole(make_trainer, keys):
    """The group's two rows are in two of the four updates at most; the others would step on advantages of 0."""

    def reward(completions, trainer_state, **kwargs):
        rewards = [float(place) for place in range(len(completions))]
        if trainer_state.global_step == 0:
            rewards[0] = math.inf
        return rewards

    schedule = {"steps_per_generation": 4, "gradient_accumulation_steps": 1, "num_iterations": 1, "max_steps": 5}
    rows = {"per_device_train_batch_size": 4, "num_generations": 2}
    trainer = make_trainer(nonfinite="skip", reward=reward, **schedule, **rows, **keys)
    trainer.train()
    assert [row["nonfinite_skips"] for row in read_rows(trainer)] == [1, 2, 3, 4, 4]


RECIPES = Path(__file__).parents[2] / "recipes" / "tiny" / "gamed"


def make_alarm(name, **keys):
    return configured_alarms(ProRLConfig(use_cpu=True, bf16=False, **keys), request=None)[name]


def make_guard():
    return make_alarm("guard_gap", guard_gap=0.2)


def find_events(guard, series, start=0):
    """The places of a series of (accuracy, reward) at which a guard fires."""
    places = range(start, start + len(series))
    rows = [{"accuracy": accuracy, "reward": reward} for accuracy, reward in series]
    return [place for place, row in zip(places, rows, strict=True) if guard.on_row(place, row) is not None]


RISE = [(0.5, 0.5)] * GUARD_WINDOW


@pytest.mark.parametrize(
    "after, places",
    [
        # One value of 0 among 40 lowers the average by 0.0125, so the 17th passes 0.2: 17 · 0.0125 = 0.2125.
        # After it has fired, the best is 0.2875: a further fall of 0.2 takes as long.
        ([(0.0, 0.9)] * 40, [GUARD_WINDOW + 16, GUARD_WINDOW + 33]),
        ([(0.0, 0.5)] * 24, [GUARD_WINDOW + 16]),  # a reward that stays counts as one that does not fall
        ([(0.0, 0.4)] * 40, []),  # both fall: the policy got worse
        ([(0.4, 0.9)] * 80, []),  # a fall of 0.1
        ([(None, 0.9)] * 80, []),
    ],
)
def test_it_fires_when_gold_falls_and_the_reward_does_not(after, places):
    assert find_events(make_guard(), RISE + after) == places


def test_its_memory_goes_on_in_another_process():
    series = RISE + [(0.0, 0.9)] * 20
    for cut in range(len(series)):
        first = make_guard()
        second = make_guard()
        before = find_events(first, series[:cut])
        second.load_state_dict(json.loads(json.dumps(first.state_dict())), {})
        assert before + find_events(second, series[cut:], cut) == [GUARD_WINDOW + 16]


def test_gold_is_the_share_that_the_verifier_accepts(run):
    quarter = constant(0.25, lambda completions, **columns: [i % 4 == 0 for i in range(len(completions))])
    rows = read_rows(run(reward=quarter, max_steps=2), "metrics.jsonl")
    assert [(row["accuracy"], row["reward"]) for row in rows] == [(0.25, 0.25)] * 2
    assert all("accuracy" not in row for row in read_rows(run(reward=constant(0.25), max_steps=1), "metrics.jsonl"))


@pytest.mark.parametrize("action", ["event", "reset", "stop"])
def test_reward_hacking_is_an_event_and_may_reset_or_stop_the_run(run, monkeypatch, action):
    monkeypatch.setattr("trl_prorl.watch.GUARD_WINDOW", 2)
    verdicts = iter([1.0, 1.0] + [0.0] * 20)
    reward = constant(1.0, lambda completions, **columns: [next(verdicts)] * len(completions))
    keys = {"beta": 0.1, "guard_gap": 0.6, "guard_gap_action": action, "num_iterations": 1, "save_strategy": "steps"}
    trainer = run(reward=reward, max_steps=6, **keys)
    events = read_rows(trainer, "events.jsonl")
    # Averages of two steps: 1, 0.5 after step 3, 0 after step 4.
    kinds = ["guard_gap", "reset"] if action == "reset" else ["guard_gap"]
    assert [(event["event"], event["step_applied"]) for event in events] == [(kind, 4) for kind in kinds]
    assert {"value": 1.0, "threshold": 0.6, "action": action}.items() <= events[0].items()
    assert trainer.state.global_step == (4 if action == "stop" else 6)
    assert action != "reset" or events[1]["reason"] == "guard_gap"


@pytest.mark.slow
@pytest.mark.parametrize("arm, fires", [("plain", True), ("control", False)])
def test_reward_hacking_of_the_recipe_plain_is_caught_and_the_control_is_not(tmp_path, arm, fires):
    main(argv=["--config", str(RECIPES / f"{arm}.yaml"), "--output_dir", str(tmp_path), "--report_to", "none"])
    events, rows = (read_rows(tmp_path, file) for file in ("events.jsonl", "metrics.jsonl"))
    assert [event["event"] for event in events if event["event"] == "guard_gap"][:1] == ["guard_gap"] * fires
    accuracy, reward = [sum(row[key] for row in rows[-20:]) / 20 for key in ("accuracy", "reward")]
    assert reward > 0.95
    assert accuracy < 0.45 if fires else accuracy > 0.5


def test_a_collapse_is_told_once_and_again_only_after_a_recovery():
    """In another process, too, from the fifth step on."""
    watch, later = [make_alarm("entropy_watch", entropy_floor=0.5, entropy_patience=2) for _ in range(2)]
    told = []
    for step, value in enumerate([0.4, 0.6, 0.4, None, 0.3, 0.2, 0.1, 0.5, 0.4, 0.4]):
        if step == 4:
            later.load_state_dict(watch.state_dict(), {})
            watch = later
        told += [step] if watch.on_row(step, {"entropy": value}) else []
    assert told == [4, 9]


def test_with_another_key_a_collapse_that_goes_on_is_told_again():
    """A run whose collapse was only logged goes on with `entropy_stop`, or with another patience."""
    watch = make_alarm("entropy_watch", entropy_floor=0.5, entropy_patience=3)
    assert [step for step in range(1, 6) if watch.on_row(step, {"entropy": 0.1})] == [3]
    later = make_alarm("entropy_watch", entropy_floor=0.5, entropy_patience=2, entropy_stop=True)
    later.load_state_dict(watch.state_dict(), {"entropy_stop": [False, True], "entropy_patience": [3, 2]})
    assert later.on_row(6, {"entropy": 0.1}) is None
    assert later.on_row(7, {"entropy": 0.1})["action"] == "stop"
