"""Bad configurations are refused at once, in a line that names key, value and cure."""

import itertools
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from trl_prorl import ProRLConfig
from trl_prorl.cli import command_line
from trl_prorl.cli.plan import check_whole_weights
from trl_prorl.cli.recipe import parse_recipe
from trl_prorl.keys import KEYS, TASK_KEYS
from trl_prorl.train import TaskArguments


BASE = {"bf16": False, "use_cpu": True, "report_to": "none", "per_device_train_batch_size": 8, "num_generations": 4}
NAN = float("nan")
INF = float("inf")


def config(**keys):
    return ProRLConfig(**{**BASE, **keys})


def objection(make=config, **keys):
    """The line that a configuration is refused with; `None` if it is taken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            make(**keys)
        except ValueError as error:
            return str(error)
    return None


A = {"beta": 0.1, "ref_reset_every": 100}
IN_REWARD = {"kl_in": "reward", "beta_base": 0.1, "advantage_estimator": "rloo"}
ROUNDS = {"dynamic_sampling_rounds": 2}
IN_VLLM = {"vllm_enable_lora": True, "use_vllm": True, "vllm_mode": "colocate"}
ALONE = {"num_generations": 1, "advantage_estimator": "global_normalized"}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 5}
CUT = {"gradient_accumulation_steps": 4, "steps_per_generation": 3, "num_iterations": 2, "num_generations": 2}
SUM_LATER = {"multi_objective_aggregation": "normalize_then_sum"}
SYNCED = {"beta": 0.1, "sync_ref_model": True, "ref_compute": "naive_epoch", "num_iterations": 2}
TAUGHT = {"beta": 0.1, "ref_model": "embedded"}
REGION = {"trust_region": "dppo_tv", "num_iterations": 2}
RESTARTED = A | {"optimizer_reset": "soft", "optimizer_reset_schedule": "restart"}
# Keys that contradict one another, and one of them left out or changed so that they do not.
CONTRADICTIONS = [
    ({"beta": 0.1, "kl_estimator": "k1", "use_bias_correction_kl": False}, {"kl_estimator": "k3"}),
    (SYNCED, {"ref_compute": "cached"}),
    (IN_REWARD | {"beta": 0.1, "ref_compute": "naive_epoch"}, {"ref_compute": "cached"}),
    (IN_REWARD | {"advantage_estimator": None}, {"advantage_estimator": "rloo"}),
    (A | {"optimizer_reset": "sometimes"}, {"optimizer_reset": "soft"}),
    (
        {"beta": 0.1, "ref_reset_stall": 2, "ref_reset_metric": "reward"} | EVALUATED,
        {"ref_reset_metric": "eval_reward"},
    ),
    ({"beta": 0.1, "ref_reset_drop": 0.1}, EVALUATED),
    (A | {"sync_ref_model": True}, {"sync_ref_model": False}),
    (A | TAUGHT, {"ref_reset_mix": 0.0, "optimizer_reset": "hard"}),
    (TAUGHT | {"sync_ref_model": True}, {"sync_ref_model": False}),
    (TAUGHT | {"elastic_reset_every": 100}, {"elastic_reset_every": 0}),
    (A | CUT, {"steps_per_generation": 2}),
    ({"lora_growth_every": 100, "lora_growth_step": 1} | CUT, {"steps_per_generation": 2}),
    ({"num_generations": 1, "advantage_estimator": "rloo"}, {"num_generations": 2}),
    (ALONE | ROUNDS, {"dynamic_sampling_rounds": 0}),
    (ALONE | {"prompt_pool": True}, {"prompt_pool": False}),
    (ALONE | {"drop_zero_rows": True, "beta": 0.1}, {"drop_zero_rows": False}),
    (SUM_LATER | {"advantage_estimator": "rloo"}, {"advantage_estimator": None}),
    (ROUNDS | {"scale_rewards": "batch"}, {"advantage_estimator": "batch_normalized", "scale_rewards": "group"}),
    (ROUNDS | SUM_LATER, {"dynamic_sampling_rounds": 0}),
    (ROUNDS | {"use_vllm": True}, {"vllm_importance_sampling_correction": False}),
    (IN_VLLM | {"vllm_mode": "server"}, {"vllm_mode": "colocate"}),
    (IN_VLLM | {"vllm_enable_sleep_mode": True}, {"vllm_enable_sleep_mode": False}),
    ({"loss_mode": "unclipped", "loss_type": "cispo"}, {"loss_type": "dapo"}),
    (REGION | {"loss_type": "cispo"}, {"loss_type": "grpo"}),
    (REGION | {"loss_mode": "clipped"}, {"loss_mode": None}),
    (REGION | {"importance_sampling_level": "sequence"}, {"importance_sampling_level": "token"}),
    (REGION | {"use_vllm": True, "top_p": 0.9}, {"top_p": 1.0}),
    ({"skip_zero_rows": True, "top_entropy_quantile": 0.2}, {"top_entropy_quantile": 1.0}),
    (IN_REWARD | {"skip_zero_rows": True, "kl_target": 0.1}, {"skip_zero_rows": False}),
    (IN_REWARD | {"beta": 0.1, "skip_zero_rows": True, "ref_reset_kl": 0.1}, {"skip_zero_rows": False}),
    ({"nonfinite": "skip", "fp16": True}, {"nonfinite": "stop"}),
    ({"guard_gap": 0.1, "prompt_pool": True}, {"prompt_pool": False}),
    ({"enable_jit_checkpoint": True}, {"enable_jit_checkpoint": False}),
    ({"stop_stall": 2}, EVALUATED),
    (EVALUATED | {"stop_stall": 2, "save_strategy": "no"}, {"save_strategy": "best"}),
    (EVALUATED | {"stop_stall": 2, "save_total_limit": 1}, {"save_total_limit": 2}),
    (EVALUATED | {"stop_stall": 2, "metric_for_best_model": "pass@1"}, {"ref_reset_metric": "eval_pass@1"}),
    (EVALUATED | {"stop_stall": 2, "greater_is_better": False}, {"greater_is_better": None}),
    ({"fast": True, "model_init_kwargs": {"use_kernels": True}}, {"fast": False}),
    ({"fast": True, "torch_compile": True}, {"torch_compile": False}),
    ({"pack_groups": "on", "torch_compile_backend": "eager"}, {"torch_compile_backend": None}),
    ({"compact_generation": "auto", "torch_compile_mode": "default"}, {"torch_compile_mode": None}),
]


@pytest.mark.parametrize(("keys", "cure"), CONTRADICTIONS, ids=str)
def test_keys_that_contradict_one_another_are_refused_in_one_line(keys, cure):
    line = objection(**keys)
    assert any(f"{key}={value!r}" in line for key, value in keys.items())
    assert next(iter(cure)) in line
    assert "\n" not in line
    assert objection(**keys | cure) is None


# Keys of which the first has no effect, and one changed so that it has; of those that need one other key two are here.
USELESS = [
    ({"kl_estimator": "k2"}, {"beta": 0.1}),
    ({"use_bias_correction_kl": False} | IN_REWARD, {"kl_in": "loss"}),
    ({"beta_old": 0.1}, {"num_iterations": 2}),
    ({"beta_old": 0.1, "gradient_accumulation_steps": 2}, {"steps_per_generation": 4}),
    ({"beta_old": 0.1, "num_iterations": 2} | IN_REWARD, {"kl_in": "loss"}),
    ({"ref_reset_every": 100, "beta": 0.0}, {"beta": 0.1}),
    ({"ref_reset_every": 100, "beta": 0.0, "ref_reset_mix": 0.0}, {"optimizer_reset": "hard"}),
    ({"ref_reset_kl": 0.1, "ref_reset_mix": 0.0, "optimizer_reset": "hard"}, {"beta": 0.1}),
    ({"ref_reset_min_delta": 0.1}, {"stop_stall": 2, **EVALUATED}),
    ({"optimizer_reset_schedule": "restart", **RESTARTED, "lr_scheduler_type": "constant"}, {"warmup_steps": 5}),
    ({"trust_region": "dppo_tv"}, {"num_iterations": 2}),
    ({"delta": 2.0, "loss_mode": "unclipped"}, {"loss_mode": "clipped"}),
    ({"epsilon": 0.3, "loss_mode": "no_ratio"}, {"loss_mode": None}),
    ({"epsilon_high": 0.28} | REGION, {"trust_region": None}),
    ({"scale_rewards": "batch", "advantage_estimator": "rloo"}, {"advantage_estimator": None}),
]
CHANGED = {"optimizer_reset_schedule": {"lr_scheduler_type": "constant_with_warmup"}}


def unused(caplog, keys):
    """The warning that a configuration's keys have no effect; `None` without one."""
    caplog.clear()
    with caplog.at_level("WARNING"):
        made = config(**keys)
    lines = [message for message in caplog.messages if "no effect" in message]
    return made, lines


@pytest.mark.parametrize(("keys", "cure"), USELESS, ids=str)
def test_a_key_without_effect_is_at_its_default_and_one_line_names_it(caplog, keys, cure):
    name = next(iter(keys))
    made, (line,) = unused(caplog, keys)
    assert f"{name}={keys[name]!r}" in line
    assert getattr(made, name) == getattr(config(), name)
    made, lines = unused(caplog, keys | CHANGED.get(name, {}) | cure)
    assert not any(f"{name}=" in line for line in lines)
    assert getattr(made, name) == keys[name]


def test_every_key_takes_its_default_and_refuses_a_value_of_another_kind():
    for name, key in (KEYS | TASK_KEYS).items():
        assert key.error_for(name, key.default) is None
        assert key.error_for(name, object()).startswith(f"{name}="), name
        assert not (key.free and key.changes), name


# A key of each range, values in it and values outside.
BOUNDS = [
    ("length_least", [-2.0], [-INF, NAN]),
    ("ref_reset_every", [0, 7], [-1, 2.5, True, "1", None]),
    ("kl_horizon", [1, 2.0], [0, 2.5, True, 10**400]),
    ("kl_target", [None, 1e-9, np.float32(0.5)], [0.0, -1.0, INF, NAN, True]),
    ("ref_reset_mix", [0, 1.0], [-0.1, 1.1, NAN, True]),
    ("elastic_ema", [0], [1, -0.1]),
    ("kl_estimator", ["k2"], ["k4", None]),
    ("loss_mode", [None, "clipped"], ["evil"]),
    ("fast", [True], [1, "true", None]),
    ("task_options", [None, "{}", {}], [1]),
]


@pytest.mark.parametrize(("name", "right", "wrong"), BOUNDS)
def test_the_bounds_of_a_range(name, right, wrong):
    key = (KEYS | TASK_KEYS)[name]
    assert [value for value in right if key.error_for(name, value) is not None] == []
    assert [value for value in wrong if key.error_for(name, value) is None] == []


def test_a_number_is_python_s_own_however_it_is_written(tmp_path):
    """As `2.0` in a recipe, or NumPy's. An integer is needed where rows are counted, and by JSON."""
    path = tmp_path / "arm.yaml"
    path.write_text("use_cpu: true\nbf16: false\ntrain_rows: 64.0\n")
    task_args, _, _ = parse_recipe(["--config", str(path)])
    given = config(beta=np.float32(0.5), ref_reset_kl=0.1, ref_reset_kl_window=2.0)
    found = [task_args.train_rows, given.ref_reset_kl_window, given.beta]
    assert found == [64, 2, 0.5]
    assert [type(number) for number in found] == [int, int, float]


# Values of TRL's keys with which code of ours would be wrong.
WRONG = [
    {"beta": -0.5},  # `kl_target` would raise it without end
    {"beta": NAN},
    {"output_dir": ""},  # a variable of the shell that is not set
    {"resume_from_checkpoint": ""},
]


@pytest.mark.parametrize("keys", WRONG, ids=str)
def test_a_value_of_trl_s_that_ours_would_be_wrong_with_is_refused(keys):
    name, value = next(iter(keys.items()))
    assert f"{name}={value!r}" in objection(**keys)


SWITCHED = {"length_reward": "cosine", "length_on": 2, "length_off": 4}


def objection_to_lengths(**keys):
    """As of a recipe with a length reward that is switched."""
    task = TaskArguments(**SWITCHED | {key: value for key, value in keys.items() if key in TASK_KEYS})
    args = config(**{key: value for key, value in keys.items() if key not in TASK_KEYS})
    return objection(lambda: task.check_lengths(args))


def test_a_length_reward_is_switched_only_between_generation_batches():
    """Refused are periods with which a micro-batch of a step with the penalty has a batch without, or the reverse."""
    taken = set()
    for accumulation, per_generation, iterations in itertools.product((1, 2, 4), (1, 2, 3, 4, 5), (1, 2)):
        every = per_generation * iterations
        for on, off in itertools.product(range(1, 6), range(1, 6)):
            is_right = True
            for micro_batch in range(accumulation * (on + off) * every * 2):
                sampled_at = micro_batch // every * every // accumulation
                is_on = [step % (on + off) < on for step in (sampled_at, micro_batch // accumulation)]
                is_right &= is_on[0] == is_on[1]
            schedule = dict(zip(OF_A_GENERATION, (accumulation, per_generation, iterations), strict=False))
            line = objection_to_lengths(length_on=on, length_off=off, **schedule)
            assert (line is None) is is_right, (schedule, on, off)
            assert is_right or line.startswith(("length_on=", "length_off=")), line
            taken.add(is_right)
    assert taken == {True, False}


OF_A_GENERATION = ("gradient_accumulation_steps", "steps_per_generation", "num_iterations", "reuse_old_logps")
SOURCES = {
    "policy": [(1, 1, 1, True), (4, 2, 2, True)],
    "first_pass": [(1, 1, 2, True), (2, 2, 3, True)],
    "forward": [(1, 1, 2, False), (1, 4, 1, True), (2, 4, 2, True)],
}


@pytest.mark.parametrize("source", SOURCES)
def test_where_old_log_probabilities_come_from(source):
    for values in SOURCES[source]:
        assert config(**dict(zip(OF_A_GENERATION, values, strict=True))).old_logps_source == source, values


@pytest.mark.parametrize(
    ("precision", "asks_cpu", "gpu", "keys"),
    [
        (None, None, True, ""),  # no launcher: the recipe decides
        ("no", "True", True, "--bf16=False --fp16=False --use_cpu=True"),
        ("bf16", "False", False, "--bf16=True --fp16=False --use_cpu=True"),
        ("bf16", "False", True, "--bf16=True --fp16=False --use_cpu=False"),
    ],
)
def test_a_default_recipe_takes_precision_and_device_from_the_launcher(monkeypatch, precision, asks_cpu, gpu, keys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    for key, value in (("MIXED_PRECISION", precision), ("USE_CPU", asks_cpu)):
        monkeypatch.delenv(f"ACCELERATE_{key}", raising=False)
        if value is not None:
            monkeypatch.setenv(f"ACCELERATE_{key}", value)
    assert command_line.launcher_keys() == keys.split()


@pytest.mark.parametrize("keys", [{"prompt_pool": True, "prompt_pool_retire": 0.5}, {"guard_gap": 0.1}])
def test_keys_that_need_to_know_what_is_correct_need_a_verifier(make_trainer, keys):
    *_, key = keys
    with pytest.raises(ValueError, match=f"^{key}={keys[key]} .*batch_verifier"):
        make_trainer(model="no model is loaded", **keys)


@pytest.mark.parametrize(("engine", "value"), [("fsdp", True), ("deepspeed_plugin", SimpleNamespace(zero_stage=2))])
@pytest.mark.parametrize(
    ("keys", "is_taken"),
    [
        ({}, True),
        ({"beta": 0.1, "num_iterations": 2}, True),
        ({"overwrite": True}, True),
        ({"ref_reset_every": 2, "beta": 0.1}, False),
        ({"log_update_norm": True}, False),
    ],
    ids=str,
)
def test_keys_of_ours_need_whole_weights(engine, value, keys, is_taken):
    args = config(**keys)
    check_whole_weights(args)
    setattr(args, engine, value)
    with nullcontext() if is_taken else pytest.raises(ValueError, match=f"^{next(iter(keys))}=.* DDP or one process"):
        check_whole_weights(args)
