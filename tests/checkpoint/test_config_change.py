"""What a resume may change, key by key: it acts with `allow_config_change`, or is refused in one line."""

import datetime
import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, Features, Image, List, Value
from peft import LoKrConfig, LoraConfig
from run_record import read_events, read_rows
from tiny_run import LORA, constant, vowels
from tool_run import add
from torch.optim import lr_scheduler as schedules
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.optimization import Adafactor, AdafactorSchedule

from trl_prorl import KLSpike, ProRLConfig, ReferenceResetCallback, Stall, train
from trl_prorl.run import identity
from trl_prorl.run.identity import changing_keys, check_change, describe_schedule, differences


# Two steps a generation: checkpoint-2 is at a batch's end, and a reset waits there; checkpoint-3 is inside a batch.
KEYS = {
    "beta": 0.3,
    "ref_reset_every": 2,
    "num_iterations": 2,
    "max_steps": 4,
    "save_strategy": "steps",
    "save_steps": 1,
    "lr_scheduler_type": "linear",
    "warmup_steps": 2,
    "weight_decay": 0.1,
    "optim": "adamw_torch",
}


@pytest.fixture(scope="module")
def kept():
    return []


@pytest.fixture
def begun(kept, run, weights):
    """Output folder of a run of four steps, and its last weights."""
    if not kept:
        trainer = run(**KEYS)
        kept.extend([Path(trainer.args.output_dir), weights(trainer)])
    return kept


@pytest.fixture
def resumed(begun, make_trainer):
    """A function that resumes that run with other keys, in a folder of its own."""

    def resume(step=2, trainer_kwargs=None, **changed):
        trainer = make_trainer(**{**KEYS, **changed}, allow_config_change=True, trainer_kwargs=trainer_kwargs)
        trainer.train(resume_from_checkpoint=str(begun[0] / f"checkpoint-{step}"))
        return trainer

    return resume


def column(trainer, name):
    return [row[name] for row in read_rows(trainer)]


# Linear, two steps of warm-up, four in all, 5e-3: steps 3 and 4 are made with 5e-3 and 2.5e-3.
SCHEDULE = {
    "learning_rate": ({"learning_rate": 1e-3}, [1e-3, 5e-4]),
    "warmup_steps": ({"warmup_steps": 0}, [2.5e-3, 1.25e-3]),
    "max_steps": ({"max_steps": 6}, [5e-3, 3.75e-3, 2.5e-3, 1.25e-3]),
    "lr_scheduler_type": ({"lr_scheduler_type": "constant_with_warmup"}, [5e-3, 5e-3]),
    # Another key leaves the schedule alone.
    "max_grad_norm": ({"max_grad_norm": 0.5}, [5e-3, 2.5e-3]),
}


@pytest.mark.parametrize("case", SCHEDULE)
def test_the_rate_is_that_of_the_new_schedule_at_the_old_step(resumed, case):
    changed, expected = SCHEDULE[case]
    assert column(resumed(**changed), "lr") == pytest.approx(expected, rel=1e-9)


def test_a_restarted_schedule_starts_from_the_new_rate(resumed):
    assert column(resumed(learning_rate=1e-3, optimizer_reset="hard"), "lr") == [0.0, 5e-4]


def test_the_optimizer_has_the_new_hyperparameters_and_the_old_moments(resumed):
    changed = {"weight_decay": 0.3, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6}
    trainer = resumed(step=4, **changed, optim="adamw_torch_fused")  # its last: no step comes after the load
    groups = trainer.optimizer.param_groups
    (group,) = [group for group in groups if group["weight_decay"] and group["params"]]
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.3, (0.8, 0.95), 1e-6)
    assert group["fused"]
    (steps,) = {int(state["step"]) for state in trainer.optimizer.state.values()}
    assert steps == 4
    assert any(state["exp_avg"].any() for state in trainer.optimizer.state.values())


def test_coefficients_and_where_they_are_adapted(resumed, run, resume):
    assert column(resumed(beta=0.1), "beta") == [0.1, 0.1]
    whole = run(**KEYS, kl_target=1e-4, kl_horizon=3)
    adapted = column(whole, "beta")[-1]
    assert adapted != 0.3
    for changed, expected in (({"kl_target": None}, 0.3), ({"kl_target": 2e-4, "kl_horizon": 3}, adapted)):
        again = resume(whole, 4, **KEYS, **changed, allow_config_change=True)
        assert again.beta == pytest.approx(expected, rel=1e-12)


def test_an_adaptive_entropy_coefficient_starts_from_a_changed_key_and_else_from_where_it_was(run, resume):
    adaptive = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_coef_delta": 0.01, "entropy_target": 1e9}
    keys = KEYS | adaptive | {"entropy_coef_max": 1.0, "allow_config_change": True}
    whole = run(**keys)
    for changed, expected in (({"entropy_coef": 0.5}, [0.51, 0.52]), ({"max_grad_norm": 0.5}, [0.04, 0.05])):
        again = resume(whole, 2, **keys | changed)
        assert column(again, "entropy_coef") == pytest.approx(expected)


def test_intervals_of_saves_and_logs_are_those_of_now(resumed):
    trainer = resumed(save_steps=2, logging_steps=2, max_steps=6, lr_scheduler_type="constant")
    assert (trainer.state.save_steps, trainer.state.logging_steps) == (2, 2)
    out = Path(trainer.args.output_dir)
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-6"}


def test_a_script_s_own_optimizer_is_compared_and_a_change_acts(make_trainer, tiny_model):
    def own(rate, make=torch.optim.AdamW, schedule=None, **keys):
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        optimizer = make(model.parameters(), lr=rate)
        given = {"optimizers": (optimizer, schedule and schedule(optimizer))}
        return make_trainer(model=model, lora=False, **KEYS | {"save_steps": 2} | keys | {"trainer_kwargs": given})

    def resume(first, *args, **keys):
        return column(go_on(own(*args, **keys), first), "lr")

    def go_on(trainer, first):
        trainer.train(resume_from_checkpoint=str(Path(first.args.output_dir, "checkpoint-2")))
        return trainer

    def adafactor(parameters, lr):
        return Adafactor(parameters, lr=None, relative_step=True)

    def halving(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    for schedule, rates in ((None, [1e-3, 5e-4]), (halving, [2.5e-4, 1.25e-4])):
        first = own(1e-3, schedule=schedule)
        first.train()
        assert resume(first, 1e-3, schedule=schedule) == column(first, "lr")[2:] == pytest.approx(rates)
        with pytest.raises(ValueError, match=r"lr of the optimizer \(optimizers\): \[0.001\] -> \[0.0001\]"):
            resume(first, 1e-4, schedule=schedule)
        with pytest.raises(ValueError, match="class of the optimizer .* cannot be changed"):
            resume(first, 1e-3, torch.optim.SGD, schedule=schedule, allow_config_change=True)
    allowed = {"allow_config_change": True}
    for schedule in (halving, torch.optim.lr_scheduler.ReduceLROnPlateau):
        first = own(1e-3, schedule=schedule)
        first.train()
        trainer = own(1e-4, schedule=schedule, **allowed)
        with pytest.raises(ValueError, match=r"^lr .* \[0.001\] -> \[0.0001\] cannot be changed .*(StepLR|OnPlateau)"):
            go_on(trainer, first)
        assert not list(Path(trainer.args.output_dir).glob("*"))  # before the folder is touched
        assert resume(first, 1e-3, schedule=schedule, entropy_floor=1e-9, **allowed) == column(first, "lr")[2:]
    assert resume(first, 1e-3, schedule=halving, entropy_floor=1e-9, **allowed)  # from a plateau's, which has no start
    with pytest.raises(ValueError, match="AdamW' -> None cannot be changed"):
        go_on(make_trainer(lora=False, **KEYS, **allowed), first)
    linear = own(1e-3)
    linear.train()
    assert resume(linear, 1e-4, **allowed) == pytest.approx([1e-4, 5e-5])
    rates = {"make": adafactor, "schedule": AdafactorSchedule}
    first = own(0.0, **rates)
    first.train()
    assert resume(first, 0.0, entropy_floor=1e-9, **rates, **allowed) == column(first, "lr")[2:]


SHAPE = {"r": 4, "target_modules": ["q_proj", "v_proj"]}


@pytest.mark.parametrize(
    "then, now",
    [
        (
            LoraConfig(**SHAPE, alpha_pattern={"q_proj": 8, "v_proj": 32}),
            LoraConfig(**SHAPE, alpha_pattern={"q_proj": 32, "v_proj": 8}),
        ),
        pytest.param(LoKrConfig(**SHAPE, alpha=8), LoKrConfig(**SHAPE, alpha=32), marks=pytest.mark.slow),
        (LoraConfig(**SHAPE, lora_alpha=8), LoraConfig(**SHAPE, lora_alpha=16)),
    ],
)
def test_the_scaling_of_every_module_of_an_adapter_is_compared_and_a_change_acts(make_trainer, then, now):
    keys = {**KEYS, "max_steps": 2, "lr_scheduler_type": "constant", "warmup_steps": 0}

    def make(config, **more):
        return make_trainer(trainer_kwargs={"peft_config": config}, **keys, **more)

    trained = make(then)
    trained.train()
    saved = str(Path(trained.args.output_dir, "checkpoint-1"))
    make(then).train(resume_from_checkpoint=saved)
    with pytest.raises(ValueError, match="scaling of every module"):
        make(now).train(resume_from_checkpoint=saved)
    other = make(now, allow_config_change=True)
    other.train(resume_from_checkpoint=saved)
    assert column(other, "entropy")[-1] != column(trained, "entropy")[-1]


TABLE = [1.0, 0.5, 0.25, 0.125]  # of factors; it ends with the run
STEP_LR = {"step_size": 1, "gamma": 0.5}


@pytest.mark.parametrize(
    ("then", "now", "line", "acts"),
    [
        (lambda step: 1 / (1 + step), lambda step: 1 / (1 + step), None, True),
        pytest.param(lambda step: TABLE[step], lambda step: TABLE[step], None, True, marks=pytest.mark.slow),
        (
            lambda step: 1 / (1 + step),
            lambda step: 1 / (2 + step),
            "factors of the schedule (optimizers): [[1.0, 0",
            True,
        ),
        pytest.param(lambda step: 1.0, STEP_LR, "class of the schedule (optimizers): ", True, marks=pytest.mark.slow),
        (STEP_LR, {"step_size": 1, "gamma": 0.5}, None, True),
        (STEP_LR, {"step_size": 1, "gamma": 0.1}, "gamma of the schedule (optimizers): 0.5 -> 0.1", False),
        pytest.param(STEP_LR, None, "class of the schedule (optimizers): ", False, marks=pytest.mark.slow),
        (STEP_LR, lambda step: 1.0, "class of the schedule (optimizers): ", False),
    ],
)
def test_a_script_s_own_schedule_is_compared(make_trainer, tiny_model, then, now, line, acts):
    """A LambdaLR takes the new function; a state that a checkpoint has would take the place of new settings."""

    def own(of, **keys):
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = None
        if isinstance(of, dict):
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, **of)
        elif of is not None:
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, of)
        given = {"optimizers": (optimizer, schedule)}
        return make_trainer(
            model=model, lora=False, **{**KEYS, "max_steps": 3, "save_steps": 2, **keys}, trainer_kwargs=given
        )

    first = own(then)
    first.train()
    last = str(Path(first.args.output_dir, "checkpoint-2"))
    with pytest.raises(ValueError, match=re.escape(line)) if line else nullcontext():
        own(now).train(resume_from_checkpoint=last)
    if line:
        with nullcontext() if acts else pytest.raises(ValueError, match=f"^{re.escape(line)}.*cannot be changed"):
            own(now, allow_config_change=True).train(resume_from_checkpoint=last)


def in_sequence(optimizer, at=4, gamma=0.9):
    parts = [schedules.ConstantLR(optimizer), schedules.ExponentialLR(optimizer, gamma)]
    return schedules.SequentialLR(optimizer, parts, [at])


def chained(optimizer, gamma):
    return schedules.ChainedScheduler([schedules.ExponentialLR(optimizer, gamma)])


# Schedules of torch that keep their settings in lists, functions or other schedules: two of a kind.
ALIKE = [
    (schedules.MultiStepLR, {"milestones": [100, 200]}, {"milestones": [50]}),
    (schedules.CyclicLR, {"base_lr": 1e-4, "max_lr": 1e-3}, {"base_lr": 1e-4, "max_lr": 1e-2}),
    (schedules.OneCycleLR, {"max_lr": 1e-3, "total_steps": 20}, {"max_lr": 1e-3, "total_steps": 20, "pct_start": 0.5}),
    (schedules.MultiplicativeLR, {"lr_lambda": lambda step: 0.9}, {"lr_lambda": lambda step: 0.8}),
    (in_sequence, {"at": 4}, {"at": 5}),
    (in_sequence, {"gamma": 0.9}, {"gamma": 0.8}),
    (chained, {"gamma": 0.9}, {"gamma": 0.8}),
]


@pytest.mark.parametrize("kind, then, now", ALIKE)
def test_schedules_of_a_kind_differ_by_their_settings(kind, then, now):
    def described(settings):
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
        return describe_schedule(kind(optimizer, **settings))

    assert described(then) == json.loads(json.dumps(described(then)))
    assert described(then) != described(now)


def test_keys_of_the_optimizer_that_a_script_changes_after_a_training_act_in_the_next(run, resume, largest_difference):
    keys = {**KEYS, "ref_reset_every": 0, "warmup_steps": 0, "lr_scheduler_type": "constant", "save_steps": 2}
    other = {"learning_rate": 1e-5, "weight_decay": 0.2, "max_steps": 6, "allow_config_change": True}
    trainer = run(**keys)
    for key, value in other.items():
        setattr(trainer.args, key, value)
    whole = resume(trainer, 4, **keys | other)
    trainer.train(resume_from_checkpoint=True)
    assert [row["lr"] for row in read_rows(trainer)][4:] == [1e-5] * 2
    assert largest_difference(whole, trainer) == 0.0


class Halves:
    calls = 0

    def __call__(self, step):
        self.calls += 1
        return 0.5**self.calls


def test_a_schedule_s_object_is_not_called_to_compare_it(make_trainer, tiny_model):
    """A call changes its next rates, which are TRL's."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    halves = Halves()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, halves)
    calls = halves.calls
    make_trainer(model=model, lora=False, trainer_kwargs={"optimizers": (optimizer, schedule)})
    assert halves.calls == calls


def resets(trainer):
    return [(event["step_applied"], event["reason"]) for event in read_events(trainer, "reset")]


def test_triggers_that_come_and_go(resumed, run, resume):
    # The request that waits at step 2 is kept; a trigger that was not there remembers nothing.
    assert resets(resumed(ref_reset_every=4, max_steps=8)) == [(2, "periodic"), (4, "periodic")]
    spike = resumed(ref_reset_every=0, ref_reset_kl=1e-9, ref_reset_kl_window=2, max_steps=6)
    assert resets(spike)[0] == (2, "periodic")
    assert {reason for _, reason in resets(spike)[1:]} == {"kl_spike"}
    for lora in (True, False):
        keys = {**KEYS, "ref_reset_every": 0, "save_steps": 2, "lora": lora}
        changed = keys | {"ref_reset_every": 3, "max_steps": 6, "allow_config_change": True}
        trainer = resume(run(**keys), 2, **changed)
        assert resets(trainer) == [(4, "periodic")]
        assert column(trainer, "kl_ref")[0] > 0  # until then the reference is the policy as the run began


def test_the_best_of_another_metric_is_forgotten():
    old = ReferenceResetCallback([KLSpike(1.0, 3), Stall("eval_reward", 2)])
    old.in_training = True
    old.observe_row(1, {"kl_ref": 0.5})
    evaluated = {"eval_reward": 0.9, "eval_loss": 3.0}
    old.on_evaluate(None, SimpleNamespace(global_step=1), None, metrics=evaluated)
    state = json.loads(json.dumps(old.state_dict()))
    for stall, best in ((Stall("eval_reward", 5), 0.9), (Stall("eval_loss", 2, mode="min"), None)):
        spike = KLSpike(0.6, 2)
        ReferenceResetCallback([stall, spike]).load_state_dict(state)
        assert stall.best == best
        assert spike.observe_step(2, kl_ref=0.9).value == 0.7  # the mean of 0.5 and 0.9


# What nothing in a checkpoint brings back: it is read where it acts.
LIVE = {
    "beta": 3.0,
    "beta_old": 0.5,
    "beta_base": 0.5,
    "kl_estimator": "k2",
    "epsilon": 1e-4,
    "max_grad_norm": 1e-3,
    "ref_reset_mix": 0.5,
    "optimizer_reset": "hard",
    "temperature": 0.5,
    "scale_rewards": "none",
    "advantage_estimator": "raw",
    "loss_mode": "no_ratio",
    "max_completion_length": 3,
    "num_generations": 2,
    "num_iterations": 1,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "optimizer_reset_rewarmup_steps": 5,
    "use_bias_correction_kl": False,
    "top_k": 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("key", LIVE)
def test_what_is_read_where_it_acts(begun, resumed, weights, key):
    ours = weights(resumed(**{key: LIVE[key], "max_steps": 4}))
    assert any(not torch.equal(ours[name], begun[1][name]) for name in ours)


# Key: then and now.
REFUSED = {
    "seed": (7, 8),
    "eval_on_start": (False, True),
    "optim": ("adamw_torch", "sgd"),
    "lora_r": (4, 8),
    "use_peft": (True, False),
    "lr_scheduler_type": ("linear", "reduce_lr_on_plateau"),
    "learning_rate": (1e-2, 1e-3),
    identity.OWN_RATES: ([1e-2], [1e-3]),
    "elastic_reset_every": (0, 3),
    "lora_growth_every": (2, 0),
    "ref_reset_every": (2, 0),
}
# In the middle of a generation batch alone.
INSIDE = {
    "per_device_train_batch_size": (8, 4),
    "gradient_accumulation_steps": (1, 2),
    "steps_per_generation": (1, 2),
    "generation_batch_size": (8, 16),
    "num_generations": (4, 2),
    "num_iterations": (2, 1),
    "processes": (1, 2),
    "beta": (0.0, 0.3),
    # π_old of skipped rows is unknown.
    "beta_old": (0.0, 0.3),
    "drop_zero_rows": (True, False),
    "skip_zero_rows": (None, False),
    "entropy_floor": (None, 0.1),
    "kl_in": ("reward", "loss"),
}


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [("__main__.Lion", "mine.Lion", False), ("__main__.Lion", "mine.Tiger", True), ("torch.AdamW", "bnb.AdamW", True)],
)
def test_an_optimizer_s_class_may_move_out_of_the_script(tmp_path, old, new, refused):
    with pytest.raises(ValueError, match="class of the optimizer") if refused else nullcontext():
        check_change({identity.OPTIMIZER_CLASS: [old, new]}, {"beta": 0.0}, tmp_path)


@pytest.mark.parametrize("key", [*REFUSED, *INSIDE])
def test_what_cannot_act_is_refused(tmp_path, key):
    old, new = (REFUSED | INSIDE)[key]
    now = {"beta": 0.3, key: new}
    if key in ("learning_rate", identity.OWN_RATES):
        now["lr_scheduler_type"] = "reduce_lr_on_plateau"
    now["reuse_old_logps"] = True
    if key in INSIDE:
        check_change({key: [old, new]}, now, tmp_path / "checkpoint-2")  # at its end it acts
        (tmp_path / "buffer-0.safetensors").touch()
    with pytest.raises(ValueError, match=re.escape(f"{key}: ")):
        check_change({key: [old, new]}, now, tmp_path)


def test_resets_may_come_from_a_guard_alone(tmp_path):
    changed = {"ref_reset_every": [2, 0]}
    check_change(changed, {"beta": 0.3, "guard_gap_action": "reset"}, tmp_path)
    with pytest.raises(ValueError, match="ref_reset_every: 2 -> 0"):
        check_change(changed, {"beta": 0.3, "guard_gap_action": "event"}, tmp_path)


def test_a_half_used_batch_that_was_scored_whole_gets_an_anchor_at_pi_old(tmp_path):
    (tmp_path / "buffer-0.safetensors").touch()
    for now in ({"reuse_old_logps": True, "skip_zero_rows": False}, {"reuse_old_logps": False}):
        check_change({"beta_old": [0.0, 0.3]}, {"beta_old": 0.3, **now}, tmp_path)


def test_a_refusal_comes_before_a_model_is_loaded_and_in_own_scripts_too(begun, make_trainer):
    keys = {**KEYS, "allow_config_change": True, "seed": 8, "output_dir": str(begun[0])}
    config = ProRLConfig(use_cpu=True, bf16=False, resume_from_checkpoint="True", **keys)
    with pytest.raises(ValueError, match="seed: 7 -> 8"):
        train.check_folder(config, ())
    with pytest.raises(ValueError, match="seed: 7 -> 8"):
        make_trainer(**keys).train(resume_from_checkpoint=True)


SAME_RUN = {"beta": 0.3, "ref_reset_every": 3, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}


def config_of(**keys):
    return ProRLConfig(use_cpu=True, bf16=False, output_dir="a", **keys)


NUMBERS_DEPEND = {
    "beta": 0.1,
    "seed": 1,
    "max_steps": 9,
    "kl_estimator": "k2",
    "optim": "sgd",
}
NONE_DEPENDS = {
    "save_steps": 3,
    "logging_steps": 3,
    "overwrite": True,
    "save_total_limit": 1,
    "reward_timeout": 1.0,
}


def test_arguments_on_which_numbers_depend_and_others():
    begun = changing_keys(config_of(beta=0.2))  # the estimator acts only with a KL
    for key, value in NUMBERS_DEPEND.items():
        assert key in differences(begun, changing_keys(config_of(**{"beta": 0.2, key: value})))
    for key, value in NONE_DEPENDS.items():
        assert not differences(begun, changing_keys(config_of(**{"beta": 0.2, key: value}))), key


def test_datasets_are_told_apart_by_content():
    rows = {"prompt": ["a", "b", "c"], "answer": ["1", "2", "3"]}
    same = Dataset.from_dict(rows)
    first = identity.dataset_hash(Dataset.from_dict(rows))
    assert identity.dataset_hash(same) == identity.dataset_hash(same.map(lambda row: row)) == first
    assert identity.dataset_hash(Dataset.from_dict({**rows, "answer": ["1", "2", "4"]})) != first
    assert identity.dataset_hash(same.select([1, 0, 2])) != first
    assert identity.dataset_hash(same.select([0, 1])) != first


@pytest.mark.parametrize(
    ("values", "others"),
    [
        (list(range(40_000)), [number + number % 2 for number in range(40_000)]),
        ([datetime.date(2026, 1, 1)], [datetime.date(2026, 1, 2)]),
        ([b"a"], [b"b"]),
    ],
)
def test_every_row_and_value_of_a_dataset_counts(values, others):
    first, second = (identity.dataset_hash(Dataset.from_dict({"a": column})) for column in (values, others))
    assert first != second


def test_a_dataset_s_format_hides_no_value():
    """Tensors count by their values, and so do the rows that a transform makes."""
    rows, others = (Dataset.from_dict({"a": [1, number]}) for number in (2, 3))
    hashes = [identity.dataset_hash(each.with_format("torch")) for each in (rows, others)]
    assert hashes[0] == identity.dataset_hash(rows) != hashes[1]
    moved = rows.with_transform(lambda batch: {"a": [number + 1 for number in batch["a"]]})
    assert identity.dataset_hash(moved) != hashes[0]


def test_no_image_of_a_dataset_is_decoded():
    """An image's file is not read, and the other columns count."""
    rows = {"a": [1, 2], "image": ["no file"] * 2, "images": [["no file"]] * 2}
    features = Features({"a": Value("int64"), "image": Image(), "images": List(Image())})
    first = identity.dataset_hash(Dataset.from_dict(rows, features=features))
    assert first != identity.dataset_hash(Dataset.from_dict({**rows, "a": [1, 3]}, features=features))


def test_models_are_told_apart_by_their_weights():
    tensors = {"a": torch.arange(1000.0).view(10, 100), "b": torch.zeros(3, dtype=torch.bfloat16)}
    first = identity.weights_hash(tensors.items())
    assert identity.weights_hash({name: tensor.clone() for name, tensor in tensors.items()}.items()) == first
    inner = {**tensors, "a": tensors["a"].clone()}
    inner["a"][5, 50] += 1  # of these, `evaluate` reads all values
    whole = [identity.weights_hash(named.items(), trained_whole=True) for named in (tensors, inner)]
    assert whole[0] == whole[1] == first
    for named in (tensors, inner):
        named["a"] = torch.nn.Parameter(named["a"])
    assert len({identity.weights_hash(named.items(), trained_whole=True) for named in (tensors, inner)}) == 2
    tensors["a"] = tensors["a"].detach()
    tensors["a"][9, 99] += 1
    assert identity.weights_hash(tensors.items()) != first
    assert identity.weights_hash({"a": torch.arange(1000.0), "b": tensors["b"]}.items()) != first


def test_another_run_is_refused_and_an_allowed_change_is_an_event(run, make_trainer, tiny_model, tmp_path):
    out = run(**SAME_RUN).args.output_dir
    log = Path(out, "metrics.jsonl").read_text()
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 0.5
    model.save_pretrained(tmp_path / "other")
    whole = AutoModelForCausalLM.from_pretrained(tiny_model)
    whole.config.rms_norm_eps = 0.1
    whole.save_pretrained(tmp_path / "settings")
    middle = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        middle.model.layers[0].mlp.up_proj.weight.flatten()[64:-64] *= 0.5
    adapter = LoraConfig(**LORA | {"lora_alpha": 32})
    brief, special, other_end = (AutoTokenizer.from_pretrained(tiny_model) for _ in range(3))
    brief.chat_template = "{{ messages[-1]['content'] }}"
    special.bos_token = special.convert_ids_to_tokens(65)  # which no text of a completion then has
    other_end.eos_token = other_end.convert_ids_to_tokens(65)
    for change, message in (
        ({"trainer_kwargs": {"processing_class": brief}}, "the chat template: "),
        ({"trainer_kwargs": {"processing_class": special}}, "the tokenizer "),
        ({"trainer_kwargs": {"processing_class": other_end}}, r"tokens that end a completion: .*, 65"),
        ({"beta": 0.2, "num_generations": 8}, "beta: 0.3 -> 0.2; num_generations: 4 -> 8"),
        ({"prompts": 15}, "rows of the training set"),
        ({"reward": constant(0.0)}, "reward functions"),
        ({"model": str(tmp_path / "other")}, "weights of the model"),
        ({"model": middle}, "change the run: weights within the model's tensors: [^;]*Restore"),
        ({"model": str(tmp_path / "settings")}, "rms_norm_eps of the model's config: 1e-06 -> 0.1"),
        (
            {"model": AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)},
            "torch.float32'.*bfloat16",
        ),
        ({"trainer_kwargs": {"rollout_func": vowels}}, r"rollout \(rollout_func\): None -> 'vowels'"),
        ({"lora": False, "trainer_kwargs": {"peft_config": adapter}}, r"lora_alpha.*\[2.0\] -> \[8.0\]"),
    ):
        with pytest.raises(ValueError, match=message):
            make_trainer(output_dir=out, **{**SAME_RUN, **change}).train(resume_from_checkpoint=True)
    assert Path(out, "metrics.jsonl").read_text() == log
    known = json.loads(Path(out, "checkpoint-4", "identity.json").read_text())
    of_earlier_version = {key: value for key, value in known.items() if "model" not in key}
    assert not differences(of_earlier_version, known)

    saved = {"processing_class": AutoTokenizer.from_pretrained(Path(out, "checkpoint-2"))}  # the same
    changed = {"beta": 0.2, "max_steps": 6, "trainer_kwargs": saved}
    trainer = make_trainer(output_dir=out, allow_config_change=True, **SAME_RUN | changed)
    trainer.train(resume_from_checkpoint=True)
    assert read_events(out, "resume")[-1]["changed"] == {"beta": [0.3, 0.2]}
    assert [row["beta"] for row in read_rows(out)] == [0.3] * 4 + [0.2] * 2


def test_a_script_s_dropout_is_compared(make_trainer):
    def trainer(rate):
        adapter = LoraConfig(**LORA | {"lora_dropout": rate})
        return make_trainer(trainer_kwargs={"peft_config": adapter}, save_strategy="steps", save_steps=2)

    first = trainer(0.1)
    first.train()
    checkpoint = str(Path(first.args.output_dir, "checkpoint-2"))
    with pytest.raises(ValueError, match=r"change the run: dropout of the model: \[0.1\] -> \[0.3\]\. Restore"):
        trainer(0.3).train(resume_from_checkpoint=checkpoint)
    trainer(0.1).train(resume_from_checkpoint=checkpoint)


def test_a_rate_that_a_script_sets_in_args_is_compared_and_a_change_acts(make_trainer):
    def trainer(rate, **keys):
        made = make_trainer(**{**KEYS, "lr_scheduler_type": "constant", "warmup_steps": 0, **keys})
        made.args.learning_rate = rate
        return made

    first = trainer(1e-4)
    first.train()
    checkpoint = str(Path(first.args.output_dir) / "checkpoint-2")
    with pytest.raises(ValueError, match=r"learning_rate: 0\.0001 -> 0\.002"):
        trainer(2e-3).train(resume_from_checkpoint=checkpoint)
    for rate, keys in ((1e-4, {}), (2e-3, {"allow_config_change": True})):
        resumed = trainer(rate, **keys)
        resumed.train(resume_from_checkpoint=checkpoint)
        assert column(resumed, "lr")[-2:] == [rate] * 2


def test_a_run_is_not_resumed_with_another_tool(make_trainer, tools_model):
    def halve(a: int) -> int:
        """
        Halve a number.

        Args:
            a: The number.
        """
        return a // 2

    def trainer(*tools, **keys):
        given = {"tools": [*tools], "processing_class": AutoTokenizer.from_pretrained(tools_model)}
        return make_trainer(model=tools_model, trainer_kwargs=given, save_strategy="steps", save_steps=1, **keys)

    first = trainer(add, max_steps=1)
    first.train()
    with pytest.raises(ValueError, match=r"tools: \['add'\] -> \['halve'\]"):
        trainer(halve, max_steps=2, output_dir=first.args.output_dir).train(resume_from_checkpoint=True)
