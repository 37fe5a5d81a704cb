"""Bad configurations are refused at once, in a line that names the key."""

import re
import warnings

import numpy as np
import pytest
import yaml
from datasets import Dataset
from trl.trainer.base_config import _BaseConfig

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.config import CHECKED
from trl_prorl.keys import A_RESET, KEYS, TASK_KEYS, TRIGGER_KEYS
from trl_prorl.launch.command_line import launcher_keys
from trl_prorl.launch.recipe import parse_recipe
from trl_prorl.refusals import REFUSALS, check_combinations
from trl_prorl.train import TaskArguments


CPU = {"output_dir": "run", "use_cpu": True, "bf16": False}


def refused(**keys):
    """The line that a configuration is refused with, and the configuration as it was then."""
    kept = []

    class Kept(ProRLConfig):
        def __post_init__(self):
            kept.append(self)
            super().__post_init__()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError) as error:
            Kept(**{**CPU, **keys})
    return str(error.value), kept[0]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: " ".join(refusal.example))
def test_each_example_is_refused_for_its_own_reason_in_a_line_that_names_a_key(refusal):
    line, args = refused(**refusal.example)
    assert next(other for other in REFUSALS if other.when(args)) is refusal
    assert set(refusal.example) & set(re.findall(r"\w+", line))
    assert "\n" not in line


RESTARTS = {"beta": 0.1, "ref_reset_every": 100, "adapter_restart": "merge"}
IN_VLLM = {"vllm_enable_lora": True, "use_vllm": True, "vllm_mode": "colocate"}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"compact_generation": "on", "use_transformers_continuous_batching": True}, "continuous_batching=True"),
        (RESTARTS | {"lora_growth_every": 100}, "lora_growth_every=100"),
        (RESTARTS | {"elastic_reset_every": 100}, "elastic_reset_every=100"),
        ({"beta": 0.1, "ref_reset_drop": 0.1}, "ref_reset_drop=0.1"),
        ({"beta_old": 0.1, "gradient_accumulation_steps": 4, "steps_per_generation": 2}, "beta_old=0.1"),
        (IN_VLLM | {"vllm_enable_sleep_mode": True}, "vllm_enable_sleep_mode=True"),
        (IN_VLLM | RESTARTS, "adapter_restart='merge'"),
        ({"loss_mode": "no_ratio", "delta": 2.0}, "delta=2.0"),
        ({"rollback": 2, "save_strategy": "steps", "save_only_model": True}, "save_only_model=True"),
        ({"rollback": 2, "lr_scheduler_type": "greedy", "eval_strategy": "steps"}, "lr_scheduler_type='greedy'"),
    ],
)
def test_a_refusal_for_several_keys_applies_to_each(keys, named):
    assert named in refused(**keys)[0]


def test_whatever_requests_a_reset_is_named_where_none_is_requested():
    assert all(key in A_RESET.line for key in TRIGGER_KEYS)


NEEDS = {name: key for name, key in (KEYS | TASK_KEYS).items() if key.need is not None}


@pytest.mark.parametrize("name", NEEDS)
def test_a_key_without_the_one_it_needs_is_refused(name):
    key = NEEDS[name]
    cls, base = (ProRLConfig, CPU) if name in KEYS else (TaskArguments, {})
    with pytest.raises(ValueError, match=f"^{name}={re.escape(repr(key.example))} "):
        cls(**base, **{name: key.example})
    assert not key.need.is_met({}.get)  # of a record that lacks keys of newer versions


def test_every_key_refuses_a_value_of_another_kind():
    for name, key in (CHECKED | TASK_KEYS).items():
        if key.choices or key.values.words:
            assert key.wrong(name, object()).startswith(f"{name}="), name


NAN = float("nan")
INF = float("inf")
# A key of each range, values in it and values outside.
RANGES = [
    ("beta", [0, 1.5, np.float32(0.5)], [-0.5, INF, NAN, True, "1", None]),
    ("epsilon_high", [None, INF], [-0.5, NAN, True]),
    ("length_least", [-2.0], [-INF, NAN]),
    ("max_steps", [-1], [-2, 2.5, INF]),
    ("ref_reset_every", [0, 7], [-1, 2.5, True, "1", None]),
    ("kl_horizon", [1], [0, 2.5, True]),
    ("kl_target", [None, 1e-9], [0.0, -1.0, INF, NAN, True]),
    ("ref_reset_mix", [0, 1.0], [-0.1, 1.1, NAN, True]),
    ("elastic_ema", [0], [1, -0.1]),
    ("optimizer_reset_alpha", [1], [0, 1.1]),
    ("rollback_rate", [1], [0, 1.1]),
    ("pad_to_multiple_of", [None, 8], [0, 2.5]),
    ("reward_weights", [None, [0.0, 1.0]], [[NAN], [0.0], [], 1.0]),
    ("optimizer_reset", ["keep", "soft"], ["sometimes", None]),
    ("loss_type", ["dapo"], ["evil"]),
]


@pytest.mark.parametrize(("name", "right", "wrong"), RANGES)
def test_the_bounds_of_a_range(name, right, wrong):
    key = (CHECKED | TASK_KEYS)[name]
    assert [value for value in right if key.wrong(name, value) is not None] == []
    assert [value for value in wrong if key.wrong(name, value) is None] == []


@pytest.mark.parametrize(
    "keys",
    [
        {"beta": -0.5},
        {"optimizer_reset": "sometimes"},
        {"loss_type": "evil"},
        {"entropy_coef": NAN},
        {"lr_scheduler_kwargs": {"num_cycles": [NAN]}, "lr_scheduler_type": "cosine"},
    ],
)
def test_a_wrong_value_is_refused_by_the_configuration(keys):
    assert refused(**keys)[0].startswith(f"{next(iter(keys))}=")


@pytest.mark.parametrize("value, kept", [(True, "group"), (False, "none")])
def test_scale_rewards_may_be_true_or_false_as_in_trl(value, kept):
    assert ProRLConfig(**CPU, scale_rewards=value).scale_rewards == kept


@pytest.mark.parametrize(
    "keys",
    [
        {"lora_target_modules": "("},
        {"lora_r": 0},
        {"lora_dropout": NAN},
        {"dtype": "int8"},
        {"bnb_4bit_quant_type": "evil"},
        {"length_margin": 9, "length_reward": "overlong"},
        {"length_target": 9, "length_reward": "target"},
    ],
)
def test_what_a_recipe_says_beside_the_configuration_is_checked_as_it_is_read(tmp_path, keys):
    recipe = {"use_cpu": True, "bf16": False, "max_completion_length": 8, **keys}
    (tmp_path / "arm.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(ValueError, match=f"^{next(iter(keys))}="):
        parse_recipe(["--config", str(tmp_path / "arm.yaml")])


def test_a_length_of_the_longest_completion_is_taken(tmp_path):
    recipe = {"use_cpu": True, "bf16": False, "max_completion_length": 8, "length_reward": "overlong"}
    (tmp_path / "arm.yaml").write_text(yaml.safe_dump({**recipe, "length_margin": 8}))
    assert parse_recipe(["--config", str(tmp_path / "arm.yaml")])[0].length_margin == 8


BASE = {"bf16": False, "use_cpu": True, "report_to": "none", "per_device_train_batch_size": 8, "num_generations": 4}


def config(**keys):
    return ProRLConfig(**{**BASE, **keys})


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
    "keys, warned",
    [
        ({"beta": 0.1}, []),
        ({"beta": 0.1, "kl_estimator": "k2", "use_bias_correction_kl": False}, []),
        ({"beta": 0.1, "kl_estimator": "k2", "use_bias_correction_kl": False, "num_iterations": 2}, ["beta"]),
        ({"beta": 0.1, "beta_old": 0.1, "kl_estimator": "k2", "num_iterations": 2}, ["beta", "beta_old"]),
        ({"beta_old": 0.1, "num_iterations": 2, "importance_sampling_level": "sequence"}, ["beta_old"]),
    ],
)
def test_biased_gradients_warn_for_each_anchor(keys, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config(**keys)
    messages = [str(w.message) for w in caught if "penalty is biased" in str(w.message)]
    assert [message.split()[4] for message in messages] == warned


@pytest.mark.parametrize(
    "keys, named",
    [
        ({}, ""),
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_k": 20, "min_p": 0.1, "vllm_importance_sampling_mode": "token_mask"}, "top_k=20 and min_p=0.1"),
        ({"top_k": 0, "min_p": 0.0}, ""),
        ({"top_p": 0.9, "vllm_importance_sampling_correction": False}, ""),
        ({"top_p": 0.9, "use_vllm": False}, ""),
    ],
)
def test_a_cut_softmax_of_vllm_warns_where_trl_s_ratio_would_scale_the_loss(keys, named):
    """huggingface/trl#6789: log p − log(p / S) is log S, for every token."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config(**{"use_vllm": True, **keys})
    messages = [str(w.message) for w in caught if "trl#6789" in str(w.message)]
    assert len(messages) == bool(named)
    assert all(named in message for message in messages)


def test_a_tracker_that_is_not_installed_is_refused_in_a_script_before_a_model_is_loaded(monkeypatch):
    """transformers finds it missing when the model is there; `mlflow` stands for any tracker without its package."""
    monkeypatch.setattr("trl_prorl.launch.checks.get_available_reporting_integrations", lambda: ["tensorboard"])
    args = config(report_to=["tensorboard", "mlflow"])
    rows = Dataset.from_list([{"prompt": "1 2 3"}] * 8)
    with pytest.raises(ValueError, match="report_to='mlflow'"):
        ProRLTrainer("no/such/model", lambda completions, **columns: [0.0], args, train_dataset=rows)


@pytest.mark.parametrize("keys", [{}, {"bf16": True}, {"bf16": False, "bf16_full_eval": True}])
def test_bf16_without_a_gpu_is_refused_with_its_key(monkeypatch, keys):
    for module in ("utils", "training_args"):
        monkeypatch.setattr(f"transformers.{module}.is_torch_bf16_gpu_available", lambda: False)
    key = "bf16_full_eval" if "bf16_full_eval" in keys else "bf16"
    with pytest.raises(ValueError, match=f"^{key}=True.*use_cpu: true"):
        ProRLConfig(**keys)

    def on_a_cpu(config, checked=_BaseConfig.__post_init__):  # as the fixture of TRL's own suite
        config.use_cpu = True
        checked(config)

    monkeypatch.setattr(_BaseConfig, "__post_init__", on_a_cpu)
    ProRLConfig(**keys)  # transformers accepts it


@pytest.mark.parametrize("key", ["bf16", "fp16"])
def test_a_launcher_whose_precision_is_not_the_keys_is_refused(monkeypatch, key):
    """`accelerate launch --config_file accelerate_configs/single_gpu.yaml` of a recipe in float32."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", key)
    with pytest.raises(ValueError, match=f"^{key}=False.*mixed_precision={key}"):
        ProRLConfig(**BASE)
    assert ProRLConfig(**BASE | {key: True}).mixed_precision == key
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert ProRLConfig(**BASE | {"bf16": True}).mixed_precision == "bf16"
    assert ProRLConfig(**BASE).mixed_precision == "no"


@pytest.mark.parametrize(
    ("env", "gpu", "keys"),
    [
        ({}, True, []),  # no launcher: the recipe decides
        ({"MIXED_PRECISION": "no", "USE_CPU": "True"}, True, ["--bf16 false", "--fp16 false", "--use_cpu true"]),
        ({"MIXED_PRECISION": "bf16", "USE_CPU": "False"}, False, ["--bf16 true", "--fp16 false", "--use_cpu true"]),
        ({"MIXED_PRECISION": "bf16", "USE_CPU": "False"}, True, ["--bf16 true", "--fp16 false", "--use_cpu false"]),
        ({"MIXED_PRECISION": "fp16", "USE_CPU": "True"}, True, "mixed_precision=fp16"),
        ({"MIXED_PRECISION": "bf16"}, False, "several GPUs"),
    ],
)
def test_a_default_recipe_takes_precision_and_device_from_the_launcher(monkeypatch, env, gpu, keys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("trl_prorl.launch.command_line.torch_finds_no_gpu", lambda: False)
    for key in ("MIXED_PRECISION", "USE_CPU"):
        monkeypatch.delenv(f"ACCELERATE_{key}", raising=False)
    for key, value in env.items():
        monkeypatch.setenv(f"ACCELERATE_{key}", value)
    if isinstance(keys, str):
        with pytest.raises(ValueError, match=keys):
            launcher_keys()
    else:
        assert launcher_keys() == " ".join(keys).split()


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, True),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, False),  # one process was asked for
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, False),  # a cluster's shell, no launcher
    ],
)
def test_processes_that_the_launcher_did_not_start_are_told_of(monkeypatch, caplog, env, told):
    for key in ("ACCELERATE_MIXED_PRECISION", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        monkeypatch.delenv(key, raising=False)
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    config()
    assert ("asked for several processes, and has started one" in caplog.text) == told


def test_deepspeed_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr("transformers.integrations.is_deepspeed_available", lambda: False)
    with pytest.raises(ValueError, match=r"^deepspeed='zero.json' needs .*trl-prorl\[deepspeed\]"):
        config(deepspeed="zero.json")


def test_deepspeed_that_skips_steps_by_itself_is_refused():
    args = config(nonfinite="skip")
    args.deepspeed = "zero.json"  # which a configuration takes only where DeepSpeed is installed
    with pytest.raises(ValueError, match="^nonfinite='skip'"):
        check_combinations(args)
