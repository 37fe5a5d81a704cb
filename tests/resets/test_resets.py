"""When resets are applied, what they leave in the log, what they need, and the learning rates after them."""

import json
import math
import warnings

import pytest
import torch
from datasets import Dataset
from run_record import read_events as events
from run_record import read_rows as metrics
from run_record import without_times
from tiny_run import AtBoundary
from transformers import (
    AutoModelForCausalLM,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from trl_prorl import (
    KLSpike,
    Periodic,
    ProRLTrainer,
    Reason,
    ReferenceResetCallback,
    Trigger,
)
from trl_prorl.treatments import TREATMENTS


def steps(trainer):
    return [(event["step_requested"], event["step_applied"]) for event in events(trainer)]


@pytest.mark.parametrize(
    "accumulation, per_generation, iterations, every, applied",
    [
        (1, 1, 1, 2, [(2, 2), (4, 4)]),
        (1, 1, 1, 6, []),  # README's first command was this
        pytest.param(1, 1, 2, 1, [(1, 2), (3, 4)], marks=pytest.mark.slow),
        (1, 1, 2, 3, [(3, 4)]),  # requested in the middle of a buffer
        pytest.param(1, 1, 2, 5, [], marks=pytest.mark.slow),  # the next generation would be at 6
        (1, 4, 1, 1, [(1, 4)]),
        (2, 4, 1, 3, [(3, 4)]),
        pytest.param(2, 4, 1, 5, [], marks=pytest.mark.slow),
        (2, 2, 3, 2, [(2, 3)]),  # 4 would be applied at 6, where the run ends
        pytest.param(2, 1, 1, 3, [(3, 3)], marks=pytest.mark.slow),
        (4, 2, 1, 2, [(2, 2), (4, 4)]),  # two generations in one step
    ],
)
def test_a_reset_waits_for_the_next_generation(run, accumulation, per_generation, iterations, every, applied):
    keys = {
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": per_generation,
        "num_iterations": iterations,
        "per_device_train_batch_size": 4,
        "max_steps": 6,
    }
    trainer = run(beta=0.1, ref_reset_every=every, **keys)
    assert steps(trainer) == applied
    after = {step + 1 for _, step in applied}
    assert all(row["time_reset"] > 0 for row in metrics(trainer) if row["step"] in after)


def test_an_event_says_what_happened(run):
    keys = {"optimizer_reset": "soft", "optimizer_reset_alpha": 0.3, "ref_reset_mix": 0.5, "max_steps": 3}
    trainer = run(beta=0.1, ref_reset_every=2, **keys)
    (event,) = events(trainer)
    assert (event["event"], event["reason"], event["value"], event["threshold"]) == ("reset", "periodic", 2, 2)
    assert (event["optimizer_reset"], event["alpha"], event["ref_reset_mix"]) == ("soft", 0.3, 0.5)
    assert event["kl_before"] == metrics(trainer)[1]["kl_ref"] > 0
    assert all(event[key] >= 0 for key in ("seconds_copy", "seconds_optimizer", "seconds_sync"))


@pytest.mark.parametrize("lora", [True, False])
def test_every_step_and_a_small_mix_make_the_reference_a_moving_average(make_trainer, lora):
    policies = []
    trainer = make_trainer(lora=lora, beta=0.1, ref_reset_every=1, ref_reset_mix=0.25, max_steps=6, learning_rate=1e-2)
    pairs = trainer.reference.pairs
    keep = AtBoundary(lambda step: policies.append([policy.detach().clone() for _, policy in pairs()]))
    trainer.parts["keep"] = keep
    trainer.train()
    assert [(e["step_applied"], len(e["requests"])) for e in events(trainer)] == [(2, 2), (4, 2)]
    average, *others = policies
    for policy in others:
        average = [0.25 * new + 0.75 * old for new, old in zip(policy, average, strict=True)]
    found = [ref for ref, _ in trainer.reference.pairs()]
    for one, other in zip(found, average, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)
    assert any(not torch.equal(one, base) for one, base in zip(found, policies[0], strict=True))


class Always(Trigger):
    def observe_step(self, step, kl_ref=None):
        return Reason("always", value=step, threshold=0.0, step=step)


def test_own_triggers_and_requests_that_wait_together_become_one_event(run):
    callback = ReferenceResetCallback([Always(), Periodic(every=2)])
    trainer = run(beta=0.1, max_steps=3, trainer_kwargs={"callbacks": [callback]})
    (event,) = events(trainer)
    assert event["reason"] == "always+periodic"
    assert event["step_applied"] == 2
    assert [(r["reason"], r["step"]) for r in event["requests"]] == [("always", 1), ("always", 2), ("periodic", 2)]


@pytest.mark.parametrize(
    "metric, named",
    [("kl_reff", "did you mean 'kl_ref'"), ("reward/parity", None)],
)
def test_a_step_s_metric_that_no_row_has_is_refused(make_trainer, metric, named):
    trigger = Always()
    trigger.watches = metric
    keys = {"beta": 0.1, "trainer_kwargs": {"callbacks": [ReferenceResetCallback([trigger])]}}
    if named is None:
        make_trainer(**keys)
        return
    with pytest.raises(ValueError, match=f"Always.watches='{metric}'.*{named}"):
        make_trainer(**keys)


def test_own_triggers_need_what_the_keys_triggers_need(make_trainer):
    with pytest.raises(ValueError, match="sync_ref_model=True"):
        make_trainer(beta=0.1, sync_ref_model=True, trainer_kwargs={"callbacks": [ReferenceResetCallback([Always()])]})


def test_a_trainer_made_without_resets_refuses_them(make_trainer):
    trainer = make_trainer(beta=0.1)
    with pytest.raises(ValueError, match="ref_reset_every"):
        trainer.request_reset(Reason("by hand", 0.0, 0.0, 0))
    with pytest.raises(ValueError, match="callbacks="):
        trainer.add_callback(ReferenceResetCallback([]))


def test_optimizer_alone_is_reset_where_there_is_no_reference(run, largest_difference):
    alone = {"ref_reset_every": 2, "ref_reset_mix": 0.0, "optimizer_reset": "hard"}
    hard, none = (run(max_steps=4, num_iterations=1, **keys) for keys in (alone, {}))
    assert [e["step_applied"] for e in events(hard)] == [2]
    assert hard.reference is None
    assert largest_difference(hard, none) > 1e-5


def test_an_optimizer_of_one_s_own_is_reset_too(run, trained_adapter):
    model = trained_adapter()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
    cleared = []

    class Witness(Trigger):
        def observe_step(self, step, kl_ref=None):
            cleared.append(all("momentum_buffer" not in state for state in optimizer.state.values()))

        applied = observe_step

    given = {"optimizers": (optimizer, None), "callbacks": [ReferenceResetCallback([Witness()])]}
    keys = {"beta": 0.1, "ref_reset_every": 2, "optimizer_reset": "asym", "max_steps": 3, "num_iterations": 1}
    run(model=model, lora=False, trainer_kwargs=given, **keys)
    assert cleared == [False, False, True, False]


@torch.no_grad()
def changed_in_memory(path):
    """A model, and the path of what it was before."""
    model = AutoModelForCausalLM.from_pretrained(path)
    for param in model.parameters():
        param.add_(0.01)
    return model


def with_other_settings(path):
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    return AutoModelForCausalLM.from_pretrained(path, rope_parameters=rope)


def untied(path):
    model = AutoModelForCausalLM.from_pretrained(path)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


@pytest.mark.parametrize("make", [changed_in_memory, with_other_settings, untied])
def test_a_full_model_that_is_not_its_path_s_is_its_own_reference(run, tiny_model, make):
    keys = {"beta": 0.1, "ref_reset_every": 2, "max_steps": 3, "num_iterations": 1}
    trainer = run(model=make(tiny_model), lora=False, **keys)
    began, trained, moved = (row["kl_ref"] for row in metrics(trainer))
    assert trained > 1e-4
    assert [began, moved] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_a_full_model_without_a_path_has_a_starting_model(make_trainer, tiny_model):
    model = changed_in_memory(tiny_model)
    model.config._name_or_path = ""
    make_trainer(model=model, lora=False, beta=0.0, beta_base=0.1)


def poison(completions, trainer_state, **kwargs):
    return [math.inf if trainer_state.global_step == 3 and i == 0 else float(i) for i in range(len(completions))]


def at(kind, *steps):
    return [(kind, step) for step in steps]


WAITS = {"ref_reset_every": 2, "optimizer_reset": "hard"}
# The counts differ from the number of the step, so that a resume could lose them; the schedule goes on.
COUNTS = {"ref_reset_every": 3, "lr_scheduler_type": "linear", "optimizer_reset": "step"}
EVERY_EVENT = {
    "beta": 0.1,
    "ref_reset_every": 2,
    "elastic_reset_every": 4,
    "max_steps": 5,
    "reward": poison,
    "entropy_floor": 100.0,
    "entropy_patience": 4,
    "nonfinite": "skip",
}
# What the killed trainings of scripts/yardstick.yaml lack.
RESUMED = {
    "a request waits": (WAITS, at("reset", 2, 4, 6)),
    "step counts, 8 bits": (COUNTS | {"optim": "adamw_8bit"}, at("reset", 3, 6)),
    "TRL averages the reference": ({"lora": False, "sync_ref_model": True, "ref_model_sync_steps": 3}, []),
    "events before the save": (
        EVERY_EVENT,
        at("reset", 2) + at("nonfinite", 4) + at("entropy_collapse", 4) + at("elastic_reset", 4) + at("reset", 4),
    ),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_resumed_run_is_the_run_that_was_not_broken_off(run, resume, largest_difference, case):
    keys, expected = RESUMED[case]
    keys = {"beta": 0.3, "max_steps": 8, "num_iterations": 1, "save_strategy": "steps", "save_steps": 4} | keys
    whole = run(**keys)
    told = events(whole)
    rows = metrics(whole)
    again = resume(whole, 4, output_dir=whole.args.output_dir, **keys)
    assert largest_difference(whole, again) == 0.0
    assert [(event["event"], event["step_applied"]) for event in told] == expected
    assert without_times(events(again)) == without_times(told)
    assert without_times(metrics(again)) == without_times(rows)


def test_args_must_be_ours(tiny_model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = GRPOConfig(use_cpu=True, bf16=False)
    with pytest.raises(TypeError, match="ProRLConfig"):
        ProRLTrainer(tiny_model, lambda **kwargs: [0.0], args)


HEARD = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"hear {i}"}] for i in range(2)]})
VALIDATION = {"trainer_kwargs": {"eval_dataset": HEARD}, "per_device_eval_batch_size": 8, "num_generations_eval": 4}
EVALUATED = {**VALIDATION, "eval_strategy": "steps", "eval_steps": 1}


def test_a_kl_spike_resets(run):
    keys = {"ref_reset_kl": 2e-3, "ref_reset_kl_window": 2, "ref_reset_cooldown": 4, "optimizer_reset": "hard"}
    trainer = run(beta=0.01, max_steps=12, **keys)
    fired = events(trainer)
    kl = [row["kl_ref"] for row in metrics(trainer)]
    assert fired
    assert {(event["reason"], event["threshold"]) for event in fired} == {("kl_spike", 2e-3)}
    for event in fired:
        step = event["step_requested"]
        assert event["value"] == pytest.approx(sum(kl[step - 2 : step]) / 2)
        assert event["value"] > 2e-3
    applied = [e["step_applied"] for e in fired]
    assert all(later - sooner >= 4 for sooner, later in zip(applied, applied[1:], strict=False))


@pytest.mark.parametrize(
    "keys, rewards, expected",
    [
        # A reward that cannot improve: the first evaluation is the best, and every second one after it asks.
        ({"ref_reset_stall": 2, "max_steps": 8}, [0.5] * 128, [("stall", step, 0.5, 0.5) for step in (3, 5, 7)]),
        # Eight completions of training, eight of evaluation, and so on: the first evaluation is the best.
        (
            {"ref_reset_drop": 0.3, "max_steps": 6},
            [1.0] * 8 + [0.9] * 8 + [0.2] * 80,
            [("drop", step, pytest.approx(0.2), pytest.approx(0.6)) for step in (2, 3, 4, 5)],
        ),
    ],
    ids=["stall", "drop"],
)
def test_a_stalled_or_fallen_validation_resets(run, keys, rewards, expected):
    given = iter(rewards)
    keys |= {"beta": 0.1, "num_iterations": 1, **EVALUATED}
    trainer = run(reward=lambda completions, **kwargs: [next(given) for _ in completions], **keys)
    found = [(e["reason"], e["step_applied"], e["value"], e["threshold"]) for e in events(trainer)]
    assert found == expected


def test_an_evaluation_outside_the_training_is_no_validation(make_trainer):
    calls = []

    def reward(completions, **kwargs):
        calls.append(len(completions))
        return [0.9 if len(calls) == 1 else 0.5] * len(completions)

    trainer = make_trainer(beta=0.1, ref_reset_stall=2, max_steps=2, reward=reward, **EVALUATED)
    assert trainer.evaluate()["eval_reward"] == pytest.approx(0.9)
    (callback,) = trainer.resets.callbacks
    (stall,) = callback.triggers
    assert stall.best is None
    trainer.train()
    assert (stall.best, stall.streak) == (0.5, 1)
    trainer.evaluate()
    assert "test_loss" in trainer.evaluate(metric_key_prefix="test")  # of something else by hand
    assert (stall.streak, callback.requests) == (1, [])


def test_hard_starts_the_schedule_again_and_a_key_of_its_own_decides_otherwise(run):
    shared = {"beta": 0.1, "ref_reset_every": 2, "max_steps": 4, "lr_scheduler_type": "linear", "num_iterations": 1}
    hard = {"optimizer_reset": "hard"}
    soft = {"optimizer_reset": "soft", "optimizer_reset_schedule": "restart"}
    kept = ({"optimizer_reset": "keep"}, hard | {"optimizer_reset_schedule": "keep"}, {"optimizer_reset": "step"})
    plain, *rates = ([row["lr"] for row in metrics(run(**shared, **arm))] for arm in (*kept, hard, soft))
    assert plain == sorted(plain, reverse=True)
    assert len(set(plain)) == 4
    assert rates == [pytest.approx(plain)] * 2 + [pytest.approx(plain[:2] * 2)] * 2


def test_rewarmup_scales_the_rates_after_a_reset(run):
    trainer = run(beta=0.1, ref_reset_every=2, max_steps=8, num_iterations=2, optimizer_reset_rewarmup_steps=4)
    rates = [row["lr"] / 5e-3 for row in metrics(trainer)]
    assert rates == pytest.approx([1, 1, 0.25, 0.5, 0.25, 0.5, 0.25, 0.5])


class AdamWitness(TrainerCallback):
    """Of each step: every parameter's gradient as it is used, and its moments and step count as they are left."""

    def __init__(self):
        self.gradients = []
        self.states = []

    def on_pre_optimizer_step(self, args, state, control, optimizer, **kwargs):
        self.gradients.append([param.grad.double() for param in optimizer.param_groups[0]["params"]])

    def on_step_end(self, args, state, control, optimizer, **kwargs):
        entries = [optimizer.state[param] for param in optimizer.param_groups[0]["params"]]
        self.states.append([(e["exp_avg"].double(), e["exp_avg_sq"].double(), int(e["step"])) for e in entries])


ALPHA = 0.1
# What is left of m and of v, and the step count of the next update.
LEFT = {"keep": (1, 1, 4), "hard": (0, 0, 1), "soft": (ALPHA, ALPHA, 4), "asym": (0, 1, 4), "step": (1, 1, 1)}


@pytest.mark.parametrize("mode", TREATMENTS)
def test_the_update_after_a_reset_by_hand(run, mode):
    """From what the step before left of the moments, and this step's gradients."""
    witness = AdamWitness()
    keys = {"optimizer_reset_alpha": ALPHA} if mode == "soft" else {}
    keys |= {"beta": 0.1, "ref_reset_every": 3, "max_steps": 4, "num_iterations": 1, "log_update_norm": True}
    trainer = run(optimizer_reset=mode, trainer_kwargs={"callbacks": [witness]}, **keys)
    on_first, on_second, t = LEFT[mode]
    square = 0.0
    for (m, v, before), gradient in zip(witness.states[2], witness.gradients[3], strict=True):
        assert before == 3
        m = 0.9 * on_first * m + 0.1 * gradient
        v = 0.999 * on_second * v + 0.001 * gradient**2
        update = 5e-3 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        square += update.square().sum().item()
    assert [e["step_applied"] for e in events(trainer)] == [3]
    assert metrics(trainer)[3]["update_norm"] == pytest.approx(square**0.5, rel=1e-4)


def test_the_way_to_compute_a_reference_changes_no_number(run, tiny_model):
    """A model changed in memory, whose reference TRL loads from its path."""
    found = [
        run(model=changed_in_memory(tiny_model), lora=False, beta=0.1, max_steps=3, learning_rate=1e-3, **keys).model
        for keys in ({"cls": GRPOTrainer}, {"ref_compute": "cached"}, {"ref_compute": "naive_epoch"})
    ]
    for theirs, cached, naive in zip(*(model.parameters() for model in found), strict=True):
        assert torch.equal(theirs, cached)
        assert torch.allclose(cached, naive, atol=1e-6)


def test_triggers_of_a_script_and_of_the_keys_each_keep_their_memory(make_trainer, tmp_path):
    """Whichever callback was added first: a resume gives each the values that it has seen."""

    def seen_by(callback):
        """The one KL that a callback's trigger has seen."""
        (kl,) = callback.triggers[0].values
        return kl

    def made(name):
        trainer = make_trainer(beta=0.1, ref_reset_kl=9.0, ref_reset_kl_window=3, output_dir=str(tmp_path / name))
        own = ReferenceResetCallback([KLSpike(threshold=8.0, window=3)])
        trainer.add_callback(own)
        return trainer, own

    trainer, own = made("one")
    trainer.resets.configured.observe_row(1, {"kl_ref": 0.1})
    own.observe_row(1, {"kl_ref": 0.2})
    state = json.loads(json.dumps(trainer.resets.state_dict()))
    again, own_again = made("two")
    again.resets.load_state_dict(state, {})
    assert [seen_by(one) for one in (again.resets.configured, own_again)] == [0.1, 0.2]
    without = make_trainer(beta=0.1, trainer_kwargs={"callbacks": [ReferenceResetCallback([KLSpike(8.0, window=3)])]})
    without.resets.load_state_dict(state, {})
    (left,) = without.resets.callbacks
    assert seen_by(left) == 0.2


def test_a_reference_that_a_script_has_moved_is_not_replaced_by_the_starting_model(run, resume):
    """The callback of the run is missing in the resume."""
    keys = {"beta": 0.1, "save_strategy": "steps", "save_steps": 2, "num_iterations": 1}
    callback = {"callbacks": [ReferenceResetCallback([Periodic(every=1)])]}
    moved = run(max_steps=2, trainer_kwargs=callback, **keys)
    with pytest.raises(ValueError, match="callbacks"):
        resume(moved, 2, max_steps=3, allow_config_change=True, **keys)


def test_an_evaluation_with_a_reward_of_nan_is_that_of_the_others(make_trainer):
    """As TRL's: one bad reward neither makes the metric infinite nor its best unreachable."""

    def reward(completions, prompts, **kwargs):
        rewards = [len(completion[-1]["content"]) / 7 for completion in completions]
        return [float("nan"), *rewards[1:]] if prompts[0][-1]["content"].startswith("hear") else rewards

    given = {"trainer_kwargs": VALIDATION["trainer_kwargs"], "per_device_eval_batch_size": 8}
    made = (make_trainer(reward=reward, **given, **keys) for keys in ({"cls": GRPOTrainer}, {"nonfinite": "skip"}))
    theirs, ours = (trainer.evaluate()["eval_reward"] for trainer in made)
    assert theirs == ours
    assert 0 < ours < 2


def test_several_validation_sets_are_refused_where_one_decides(make_trainer):
    given = EVALUATED | {"trainer_kwargs": {"eval_dataset": {"easy": HEARD, "hard": HEARD}}}
    with pytest.raises(ValueError, match="'eval_reward'.*easy, hard"):
        make_trainer(beta=0.1, ref_reset_stall=2, **given)
    with pytest.raises(ValueError, match="'eval_reward'.*easy, hard"):
        make_trainer(stop_stall=2, save_strategy="best", **given)
    make_trainer(beta=0.1, ref_reset_every=2, **given)  # no validation decides here
