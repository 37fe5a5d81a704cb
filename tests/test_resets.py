"""When resets are applied, what they leave in the log, and what they need."""

import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_record import read_events as events
from run_record import read_rows as metrics
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOTrainer

from trl_prorl import Periodic, ProRLTrainer, Reason, ReferenceResetCallback, Trigger
from trl_prorl.parts import Part


@pytest.mark.parametrize(
    "accumulation, per_generation, iterations, every, applied",
    [
        (1, 1, 1, 2, [(2, 2), (4, 4)]),
        (1, 1, 2, 3, [(3, 4)]),  # requested in the middle of a buffer
        (2, 4, 1, 3, [(3, 4)]),
        (2, 2, 3, 2, [(2, 3)]),  # 4 would be applied at 6, where the run ends
        (4, 2, 1, 2, [(2, 2), (4, 4)]),  # two generations in one step
    ],
)
def test_a_reset_waits_for_the_next_generation(run, accumulation, per_generation, iterations, every, applied):
    trainer = run(
        beta=0.1,
        ref_reset_every=every,
        max_steps=6,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=per_generation,
        num_iterations=iterations,
    )
    assert [(e["step_requested"], e["step_applied"]) for e in events(trainer)] == applied
    after = {e["step_applied"] + 1 for e in events(trainer)}
    assert all(row["time_reset"] > 0 for row in metrics(trainer) if row["step"] in after)


def test_an_event_says_what_happened(run):
    trainer = run(
        beta=0.1, ref_reset_every=2, optimizer_reset="soft", optimizer_reset_alpha=0.3, ref_reset_mix=0.5, max_steps=3
    )
    (event,) = events(trainer)
    assert event["event"] == "reset" and event["reason"] == "periodic"
    assert (event["value"], event["threshold"]) == (2, 2)
    assert (event["optimizer_reset"], event["alpha"], event["ref_reset_mix"]) == ("soft", 0.3, 0.5)
    assert event["kl_before"] == metrics(trainer)[1]["kl_ref"] > 0
    assert event["world_size"] == 1
    assert all(event[key] >= 0 for key in ("seconds_copy", "seconds_optimizer", "seconds_sync"))


@pytest.mark.parametrize("lora", [True, False])
def test_every_step_and_a_small_mix_make_the_reference_a_moving_average(make_trainer, lora):
    policies = []

    class Boundary(Part):
        def boundary(self, step):
            policies.append([policy.detach().clone() for _, policy in trainer.reference.pairs()])

    trainer = make_trainer(lora=lora, beta=0.1, ref_reset_every=1, ref_reset_mix=0.25, max_steps=6, learning_rate=1e-2)
    trainer.parts["boundary"] = Boundary()
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
    """A trigger of somebody else's."""

    def observe_step(self, step, kl_ref=None):
        return Reason("always", value=step, threshold=0.0, step=step)


def test_own_triggers_and_requests_that_wait_together_become_one_event(run):
    callback = ReferenceResetCallback([Always(), Periodic(every=2)])
    trainer = run(beta=0.1, max_steps=3, trainer_kwargs={"callbacks": [callback]})
    (event,) = events(trainer)
    assert event["reason"] == "always+periodic" and event["step_applied"] == 2
    assert [(r["reason"], r["step"]) for r in event["requests"]] == [("always", 1), ("always", 2), ("periodic", 2)]


def test_a_trainer_made_without_resets_refuses_them(make_trainer):
    trainer = make_trainer(beta=0.1)
    with pytest.raises(ValueError, match="ref_reset_every"):
        trainer.request_reset(Reason("by hand", 0.0, 0.0, 0))
    with pytest.raises(ValueError, match="callbacks="):
        trainer.add_callback(ReferenceResetCallback([]))


def test_optimizer_alone_is_reset_where_there_is_no_reference(run, largest_difference):
    shared = {"max_steps": 4, "num_iterations": 1}
    hard = run(ref_reset_every=2, ref_reset_mix=0.0, optimizer_reset="hard", **shared)
    none = run(**shared)
    assert [e["step_applied"] for e in events(hard)] == [2] and hard.reference is None
    assert largest_difference(hard, none) > 1e-5


def test_an_optimizer_of_one_s_own_is_reset_too(run, trained_adapter):
    model = trained_adapter()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
    cleared = []

    class Witness(Trigger):
        def observe_step(self, step, kl_ref=None):
            cleared.append(all("momentum_buffer" not in state for state in optimizer.state.values()))

        def applied(self, step):
            cleared.append(all("momentum_buffer" not in state for state in optimizer.state.values()))

    run(
        model=model,
        lora=False,
        beta=0.1,
        ref_reset_every=2,
        optimizer_reset="asym",
        max_steps=3,
        num_iterations=1,
        trainer_kwargs={"optimizers": (optimizer, None), "callbacks": [ReferenceResetCallback([Witness()])]},
    )
    assert cleared == [False, False, True, False]


def test_a_full_model_made_in_memory_is_its_own_reference(run, tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.01)
    for name in ("", tiny_model):  # no path at all, and the path of what it was before
        model.config._name_or_path = name
        trainer = run(model=model, lora=False, beta=0.1, ref_reset_every=4, max_steps=1)
        assert metrics(trainer)[0]["kl_ref"] == pytest.approx(0.0, abs=1e-6)
        assert model.config._name_or_path == name


@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize(
    "every, applied",
    [(2, [(2, 2), (4, 4), (6, 6)]), (3, [(3, 3), (6, 6)])],
    ids=["a request waits", "the reference has moved"],
)
def test_a_moved_reference_and_a_waiting_request_survive_a_resume(
    make_trainer, run, largest_difference, lora, every, applied
):
    keys = {"lora": lora, "beta": 0.3, "ref_reset_every": every, "max_steps": 8, "num_iterations": 1}
    keys |= {"optimizer_reset": "hard", "save_strategy": "steps", "save_steps": 4}
    whole = run(**keys)
    again = make_trainer(output_dir=whole.args.output_dir, **keys)
    again.train(resume_from_checkpoint=str(Path(whole.args.output_dir, "checkpoint-4")))
    assert largest_difference(whole, again) < 1e-6
    assert [(e["step_requested"], e["step_applied"]) for e in events(again)] == applied
    assert [row["step"] for row in metrics(again)] == list(range(1, 9))


def test_a_resume_keeps_the_events_that_came_before_the_save(make_trainer, run):
    def poison(completions, trainer_state, **kwargs):
        return [math.inf if trainer_state.global_step == 3 and i == 0 else float(i) for i in range(len(completions))]

    keys = {"beta": 0.1, "ref_reset_every": 2, "elastic_reset_every": 4, "max_steps": 5, "num_iterations": 1}
    keys |= {"entropy_floor": 100.0, "entropy_patience": 4, "nonfinite": "skip", "reward": poison}
    keys |= {"save_strategy": "steps", "save_steps": 4}
    whole = run(**keys)
    shown = lambda trainer: [(e["event"], e["step_applied"]) for e in events(trainer)]  # noqa: E731
    expected = [("reset", 2), ("nonfinite", 4), ("entropy_collapse", 4), ("elastic_reset", 4), ("reset", 4)]
    assert shown(whole) == expected
    again = make_trainer(output_dir=whole.args.output_dir, **keys)
    again.train(resume_from_checkpoint=str(Path(whole.args.output_dir, "checkpoint-4")))
    assert shown(again) == expected


def test_args_must_be_ours(tiny_model):
    from trl import GRPOConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = GRPOConfig(use_cpu=True, bf16=False)
    with pytest.raises(TypeError, match="ProRLConfig"):
        ProRLTrainer(tiny_model, lambda **kwargs: [0.0], args)


@pytest.fixture
def validation(tiny_model):
    from datasets import Dataset

    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"hear {i}"}] for i in range(2)]})
    return {"eval_dataset": rows}


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8, "num_generations_eval": 4}


def test_a_kl_spike_resets(run):
    keys = {"ref_reset_kl": 2e-3, "ref_reset_kl_window": 2, "ref_reset_cooldown": 4, "optimizer_reset": "hard"}
    trainer = run(beta=0.01, max_steps=12, **keys)
    fired = events(trainer)
    kl = {row["step"]: row["kl_ref"] for row in metrics(trainer)}
    assert fired and {e["reason"] for e in fired} == {"kl_spike"}
    for event in fired:
        step = event["step_requested"]
        assert event["value"] == pytest.approx((kl[step] + kl[step - 1]) / 2) and event["value"] > 2e-3
        assert event["threshold"] == 2e-3
    applied = [e["step_applied"] for e in fired]
    assert all(later - sooner >= 4 for sooner, later in zip(applied, applied[1:], strict=False))


def test_a_stalled_validation_resets(run, validation):
    # A reward that cannot improve: the first evaluation is the best, and every second one after it asks.
    trainer = run(
        beta=0.1,
        ref_reset_stall=2,
        max_steps=8,
        num_iterations=1,
        reward=lambda completions, **kwargs: [0.5] * len(completions),
        trainer_kwargs=validation,
        **EVALUATED,
    )
    assert [(e["reason"], e["step_applied"], e["value"], e["threshold"]) for e in events(trainer)] == [
        ("stall", 3, 0.5, 0.5),
        ("stall", 5, 0.5, 0.5),
        ("stall", 7, 0.5, 0.5),
    ]


def test_an_evaluation_outside_the_training_is_no_validation(make_trainer, validation):
    calls = []

    def reward(completions, **kwargs):
        calls.append(len(completions))
        return [0.9 if len(calls) == 1 else 0.5] * len(completions)

    trainer = make_trainer(
        beta=0.1, ref_reset_stall=2, max_steps=2, reward=reward, trainer_kwargs=validation, **EVALUATED
    )
    assert trainer.evaluate()["eval_reward"] == pytest.approx(0.9)
    (callback,) = trainer.resets.callbacks
    (stall,) = callback.triggers.triggers
    assert stall.best is None
    trainer.train()
    assert (stall.best, stall.without_improvement) == (0.5, 1)
    trainer.evaluate()
    assert (stall.without_improvement, callback.take_requests()) == (1, [])


def test_every_key_of_a_trigger_reaches_it(make_trainer, validation):
    trainer = make_trainer(
        beta=0.1,
        ref_reset_every=50,
        ref_reset_kl=0.5,
        ref_reset_kl_window=7,
        ref_reset_stall=3,
        ref_reset_drop=0.2,
        ref_reset_metric="eval_loss",
        ref_reset_metric_mode="min",
        ref_reset_min_delta=0.01,
        ref_reset_cooldown=9,
        trainer_kwargs=validation,
        **EVALUATED,
    )
    (callback,) = trainer.resets.callbacks
    periodic, spike, stall = callback.triggers.triggers
    assert callback.triggers.cooldown == 9 and periodic.every == 50
    assert (spike.threshold, spike.values.maxlen) == (0.5, 7)
    assert (stall.metric, stall.patience, stall.drop, stall.min_delta, stall.sign) == ("eval_loss", 3, 0.2, 0.01, -1.0)


def test_a_drop_of_the_validation_resets(run, validation):
    # Eight completions of training, eight of evaluation, and so on: the first evaluation is the best.
    falling = iter([1.0] * 8 + [0.9] * 8 + [0.2] * 80)
    trainer = run(
        beta=0.1,
        ref_reset_drop=0.3,
        max_steps=6,
        num_iterations=1,
        reward=lambda completions, **kwargs: [next(falling) for _ in completions],
        trainer_kwargs=validation,
        **EVALUATED,
    )
    fired = events(trainer)
    assert fired and {e["reason"] for e in fired} == {"drop"}
    assert all(e["value"] == pytest.approx(0.2) and e["threshold"] == pytest.approx(0.6) for e in fired)


def test_a_metric_that_no_evaluation_has_is_named(make_trainer, validation):
    trainer = make_trainer(
        beta=0.1, ref_reset_stall=1, ref_reset_metric="eval_rewrad", trainer_kwargs=validation, **EVALUATED
    )
    with pytest.raises(ValueError, match="eval_rewrad.*eval_reward"):
        trainer.train()


def test_evaluating_something_else_by_hand_is_no_error(make_trainer, validation):
    trainer = make_trainer(beta=0.1, ref_reset_stall=1, trainer_kwargs=validation, **EVALUATED)
    assert "test_loss" in trainer.evaluate(metric_key_prefix="test")


def test_how_often_one_evaluates_does_not_change_the_training(run, validation, largest_difference):
    shared = {"beta": 0.1, "ref_reset_every": 2, "max_steps": 4, "trainer_kwargs": validation}
    never = run(**shared)
    often = run(**shared, **EVALUATED)
    assert largest_difference(never, often) == 0.0


def test_hard_starts_the_schedule_again_and_a_key_of_its_own_decides_otherwise(run):
    shared = {"beta": 0.1, "ref_reset_every": 2, "max_steps": 6, "lr_scheduler_type": "linear", "num_iterations": 1}
    hard, soft = {"optimizer_reset": "hard"}, {"optimizer_reset": "soft", "optimizer_reset_schedule": "restart"}
    arms = ({"optimizer_reset": "keep"}, hard | {"optimizer_reset_schedule": "keep"}, hard, soft)
    plain, kept, *restarted = ([row["lr"] for row in metrics(run(**shared, **arm))] for arm in arms)
    assert plain == sorted(plain, reverse=True) and len(set(plain)) == 6 and kept == pytest.approx(plain)
    assert restarted == [pytest.approx(plain[:2] * 3)] * 2


def test_rewarmup_scales_the_rates_after_a_reset(run):
    trainer = run(beta=0.1, ref_reset_every=2, max_steps=8, num_iterations=2, optimizer_reset_rewarmup_steps=4)
    rates = [row["lr"] / 5e-3 for row in metrics(trainer)]
    assert rates == pytest.approx([1, 1, 0.25, 0.5, 0.25, 0.5, 0.25, 0.5])


def test_update_norm_is_the_distance_that_the_weights_moved(make_trainer, weights):
    trainer = make_trainer(beta=0.1, ref_reset_every=2, max_steps=1, log_update_norm=True)
    before = weights(trainer)
    trainer.train()
    after = weights(trainer)
    moved = sum(((after[name] - before[name]) ** 2).sum() for name in before) ** 0.5
    assert metrics(trainer)[0]["update_norm"] == pytest.approx(moved.item(), rel=1e-5)


class AdamWitness(TrainerCallback):
    """Every parameter's moments and step count as each step leaves them, and its gradients as they are used."""

    def __init__(self):
        self.states, self.gradients = [], []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self.gradients.append([p.grad.double() for group in optimizer.param_groups for p in group["params"]])

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        entries = [optimizer.state[p] for p in params]
        self.states.append([(e["exp_avg"].double(), e["exp_avg_sq"].double(), int(e["step"])) for e in entries])


@pytest.mark.parametrize("mode", ["keep", "hard", "soft", "asym", "step"])
def test_the_update_after_a_reset_by_hand(run, mode):
    """From what the step before left of the moments, and this step's gradients."""
    witness, alpha = AdamWitness(), 0.1
    keys = {"optimizer_reset_alpha": alpha} if mode == "soft" else {}
    keys |= {"beta": 0.1, "ref_reset_every": 3, "max_steps": 4, "num_iterations": 1, "log_update_norm": True}
    trainer = run(optimizer_reset=mode, trainer_kwargs={"callbacks": [witness]}, **keys)
    factors = {"keep": (1, 1), "hard": (0, 0), "soft": (alpha, alpha), "asym": (0, 1), "step": (1, 1)}
    on_first, on_second = factors[mode]
    square = 0.0
    for (m, v, t), gradient in zip(witness.states[2], witness.gradients[3], strict=True):
        assert t == 3
        t = 1 if mode in ("hard", "step") else 4
        m, v = 0.9 * on_first * m + 0.1 * gradient, 0.999 * on_second * v + 0.001 * gradient**2
        update = 5e-3 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        square += update.square().sum().item()
    assert [e["step_applied"] for e in events(trainer)] == [3]
    assert metrics(trainer)[3]["update_norm"] == pytest.approx(square**0.5, rel=1e-4)


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_8bit"])
def test_step_counts_from_the_reset_and_goes_on_after_a_resume(run, make_trainer, largest_difference, optim):
    """The counts differ from the number of the step, so that a resume could lose them; the schedule goes on."""

    class Counts(TrainerCallback):
        def __init__(self):
            self.seen = []

        def on_step_end(self, args, state, control, optimizer=None, **kwargs):
            (count,) = {int(entry["step"]) for entry in optimizer.state.values()}
            self.seen.append(count)

    keys = {"beta": 0.3, "ref_reset_every": 3, "max_steps": 8, "num_iterations": 1, "lr_scheduler_type": "linear"}
    keys |= {"optimizer_reset": "step", "optim": optim, "save_strategy": "steps", "save_steps": 4}
    first, second = Counts(), Counts()
    whole = run(trainer_kwargs={"callbacks": [first]}, **keys)
    before = metrics(whole)
    again = make_trainer(output_dir=whole.args.output_dir, trainer_kwargs={"callbacks": [second]}, **keys)
    again.train(resume_from_checkpoint=str(Path(whole.args.output_dir, "checkpoint-4")))
    assert first.seen == [1, 2, 3, 1, 2, 3, 1, 2] and second.seen == [2, 3, 1, 2]
    assert largest_difference(whole, again) == 0.0
    assert [row["lr"] for row in metrics(again)] == [row["lr"] for row in before]
    assert [row["lr"] for row in before] == pytest.approx([5e-3 * (8 - i) / 8 for i in range(8)])
    assert [e["optimizer_reset"] for e in events(again) if e["event"] == "reset"] == ["step", "step"]


def test_run_dir_takes_the_record_and_output_dir_the_model(make_trainer, tmp_path):
    trainer = make_trainer(beta=0.1, ref_reset_every=2, max_steps=3, run_dir=str(tmp_path / "record"))
    trainer.train()
    written = {path.name for path in (tmp_path / "record").iterdir()}
    assert written == {"config.yaml", "env.json", "metrics.jsonl", "events.jsonl"}
    assert not Path(trainer.args.output_dir, "metrics.jsonl").exists()


def test_elastic_average_and_adapted_coefficient_survive_a_resume(make_trainer, run, largest_difference):
    keys = {"beta": 0.3, "kl_target": 1e-3, "kl_horizon": 5, "elastic_reset_every": 3, "elastic_ema": 0.5}
    keys |= {"max_steps": 8, "num_iterations": 1, "save_strategy": "steps", "save_steps": 4}
    whole = run(**keys)
    again = make_trainer(output_dir=whole.args.output_dir, **keys)
    before = metrics(whole)
    again.train(resume_from_checkpoint=str(Path(whole.args.output_dir, "checkpoint-4")))
    assert largest_difference(whole, again) < 1e-6
    assert [row["beta"] for row in metrics(again)] == pytest.approx([row["beta"] for row in before])
    assert len({row["beta"] for row in before}) > 4
    assert [(e["event"], e["step_applied"]) for e in events(again)] == [("elastic_reset", 3), ("elastic_reset", 6)]


def test_the_way_to_compute_a_reference_changes_no_number(run, tiny_model, largest_difference):
    """A model changed in memory, whose reference TRL loads from its path."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.01)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = []
    for keys in ({"cls": GRPOTrainer}, {"ref_compute": "cached"}, {"ref_compute": "naive_epoch"}):
        model.load_state_dict(before)
        trainer = run(model=model, lora=False, beta=0.1, max_steps=3, learning_rate=1e-3, **keys)
        found.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
    for theirs, cached, naive in zip(*(each.values() for each in found), strict=True):
        assert torch.equal(theirs, cached) and torch.allclose(cached, naive, atol=1e-6)


def test_a_second_training_counts_from_the_beginning(run):
    keys = {"beta": 0.1, "ref_reset_every": 3, "num_iterations": 1, "max_steps": 8}
    keys |= {"kl_target": 1e-4, "kl_horizon": 1}
    trainer = run(**keys)
    first = [(event["step_requested"], event["step_applied"]) for event in events(trainer)]
    adapted = trainer.beta
    trainer.train()
    assert [(event["step_requested"], event["step_applied"]) for event in events(trainer)] == first == [(3, 3), (6, 6)]
    assert adapted != 0.1 and metrics(trainer)[0]["beta"] == 0.1


class Interrupt(TrainerCallback):
    """Breaks off in the middle of an optimizer step, once."""

    armed = True

    def on_substep_end(self, args, state, control, **kwargs):
        if self.armed and state.global_step == 5:
            self.armed = False
            raise RuntimeError("broken off")


def test_a_run_broken_off_and_resumed_in_the_same_process_is_exact(run, make_trainer, largest_difference):
    keys = {"beta": 0.1, "ref_reset_every": 2, "max_steps": 8, "gradient_accumulation_steps": 2}
    keys |= {"per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 4}
    whole = run(**keys)
    broken = make_trainer(trainer_kwargs={"callbacks": [Interrupt()]}, **keys)
    with pytest.raises(RuntimeError, match="broken off"):
        broken.train()
    broken.train(resume_from_checkpoint=True)
    assert largest_difference(whole, broken) == 0.0
    for mine, theirs in zip(metrics(broken), metrics(whole), strict=True):
        for name in ("policy_forward_calls", "tokens_generated", "kl_ref", "entropy", "reward"):
            assert mine[name] == theirs[name], (mine["step"], name)


def test_an_evaluation_with_a_reward_of_nan_is_that_of_the_others(make_trainer, validation):
    """As TRL's: one bad reward neither makes the metric infinite nor its best unreachable."""

    def reward(completions, prompts, **kwargs):
        rewards = [len(completion[-1]["content"]) / 7 for completion in completions]
        return [float("nan"), *rewards[1:]] if prompts[0][-1]["content"].startswith("hear") else rewards

    found = []
    for keys in ({"cls": GRPOTrainer}, {"nonfinite": "skip"}):
        torch.manual_seed(0)
        trainer = make_trainer(reward=reward, trainer_kwargs=validation, per_device_eval_batch_size=8, **keys)
        found.append(trainer.evaluate()["eval_reward"])
    assert found[0] == found[1] and 0 < found[0] < 2


def test_what_a_model_is_loaded_with_reaches_all_that_trl_gives_it_to(make_trainer, monkeypatch, tiny_model, caplog):
    """The revision of the tokenizer, and a reward model's dtype, where A wraps the model itself."""
    asked = []

    def load(name, **kwargs):
        asked.append((name, kwargs["revision"]))
        return AutoTokenizer.from_pretrained(tiny_model, padding_side="left")

    monkeypatch.setattr("trl_prorl.launch.plan.AutoProcessor", SimpleNamespace(from_pretrained=load))
    init = {"revision": "main", "dtype": "bfloat16"}
    given = {"processing_class": None}
    with caplog.at_level("WARNING"):
        trainer = make_trainer(beta=0.1, ref_reset_every=2, model_init_kwargs=init, trainer_kwargs=given)
    assert asked == [(tiny_model, "main")]
    assert trainer.args.model_init_kwargs == init
    assert not [record for record in caplog.records if "model_init_kwargs" in record.getMessage()]
    rewarded = make_trainer(beta=0.1, ref_reset_every=2, model_init_kwargs={"dtype": "bfloat16"}, reward=tiny_model)
    assert rewarded.reward_funcs[0].dtype == torch.bfloat16


def test_several_validation_sets_are_refused_where_one_decides(make_trainer, validation):
    sets = {"easy": validation["eval_dataset"], "hard": validation["eval_dataset"]}
    given = {"trainer_kwargs": {"eval_dataset": sets}, **EVALUATED}
    with pytest.raises(ValueError, match="'eval_reward' is watched.*easy, hard"):
        make_trainer(beta=0.1, ref_reset_stall=2, **given)
    make_trainer(beta=0.1, ref_reset_every=2, **given)  # no validation decides here
