"""Bad configurations are refused at once, in a line that names the key."""

import warnings

import numpy as np
import pytest
import yaml
from datasets import Dataset

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.keys import KEYS, TASK_KEYS
from trl_prorl.launch.command_line import launcher_keys
from trl_prorl.launch.recipe import parse_recipe
from trl_prorl.refusals import NOT_NEGATIVE, POSITIVE, SHARES, WHOLE_FROM_1, refuse_losses
from trl_prorl.train import TaskArguments


CPU = {"output_dir": "run", "use_cpu": True, "bf16": False}
NAN = float("nan")
INF = float("inf")


def objection(cls=ProRLConfig, **keys):
    """The line that a configuration is refused with; `None` if it is taken."""
    base = CPU if cls is ProRLConfig else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cls(**{**base, **keys})
        except ValueError as error:
            return str(error)
    return None


A = {"beta": 0.1, "ref_reset_every": 100}
RESTARTS = A | {"adapter_restart": "merge"}
IN_REWARD = {"kl_in": "reward", "beta_base": 0.1, "advantage_estimator": "rloo"}
ROUNDS = {"dynamic_sampling_rounds": 2}
IN_VLLM = {"vllm_enable_lora": True, "use_vllm": True, "vllm_mode": "colocate"}
ALONE = {"num_generations": 1, "advantage_estimator": "global_normalized"}
GREEDY = {"lr_scheduler_type": "greedy", "eval_strategy": "steps", "eval_steps": 5}
CUT = {"gradient_accumulation_steps": 4, "steps_per_generation": 3, "num_iterations": 2}
# Keys that contradict one another, one of them left out or changed so that they do not, and a piece of the line.
CONTRADICTIONS = [
    ({"beta": 0.1, "kl_estimator": "k1", "use_bias_correction_kl": False}, {"kl_estimator": "k3"}, "zero expected"),
    ({"beta_old": 0.1}, {"num_iterations": 2}, "beta_old=0.1"),
    ({"beta_old": 0.1, "gradient_accumulation_steps": 2}, {"steps_per_generation": 4}, "beta_old=0.1"),
    (IN_REWARD | {"beta_old": 0.1, "num_iterations": 2}, {"beta_old": 0.0}, "beta_old=0.1"),
    (IN_REWARD | {"advantage_estimator": None}, {"advantage_estimator": "rloo"}, "kl_in='reward'"),
    (IN_REWARD | {"kl_clamp": 10.0}, {"kl_clamp": None}, "kl_clamp=10.0"),
    (A | {"beta": 0.0}, {"beta": 0.1}, "ref_reset_every=100"),
    ({"ref_reset_kl": 0.1, "ref_reset_mix": 0.0, "optimizer_reset": "hard"}, {"beta": 0.1}, "ref_reset_kl=0.1"),
    (A | {"ref_reset_mix": 0.0}, {"optimizer_reset": "hard"}, "resets nothing"),
    (A | {"optimizer_reset": "sometimes"}, {"optimizer_reset": "soft"}, "optimizer_reset='sometimes'"),
    (
        {"beta": 0.1, "ref_reset_stall": 2, "ref_reset_metric": "reward", "eval_strategy": "steps", "eval_steps": 5},
        {"ref_reset_metric": "eval_reward"},
        "ref_reset_metric='reward'",
    ),
    ({"beta": 0.1, "ref_reset_drop": 0.1}, {"eval_strategy": "steps", "eval_steps": 5}, "ref_reset_drop=0.1"),
    (A | {"sync_ref_model": True}, {"sync_ref_model": False}, "sync_ref_model=True"),
    (RESTARTS | {"ref_reset_mix": 0.5}, {"ref_reset_mix": 1.0}, "ref_reset_mix=0.5"),
    (RESTARTS | {"beta_base": 0.1}, {"beta_base": 0.0}, "beta_base=0.1"),
    (RESTARTS | {"lora_growth_every": 100}, {"lora_growth_every": 0}, "lora_growth_every=100"),
    (RESTARTS | {"elastic_reset_every": 100}, {"elastic_reset_every": 0}, "elastic_reset_every=100"),
    (A | CUT, {"steps_per_generation": 2}, "steps_per_generation=3"),
    ({"lora_growth_every": 5} | CUT, {"steps_per_generation": 2}, "steps_per_generation=3"),
    ({"num_generations": 1, "advantage_estimator": "rloo"}, {"num_generations": 2}, "num_generations=1"),
    (ALONE | ROUNDS, {"dynamic_sampling_rounds": 0}, "dynamic_sampling_rounds=2"),
    (ALONE | {"drop_zero_rows": True, "beta": 0.1}, {"drop_zero_rows": False}, "drop_zero_rows=True"),
    (
        {"advantage_estimator": "rloo", "multi_objective_aggregation": "normalize_then_sum"},
        {"advantage_estimator": None},
        "multi_objective_aggregation='normalize_then_sum'",
    ),
    (ROUNDS | {"scale_rewards": "batch"}, {"advantage_estimator": "batch_normalized"}, "scale_rewards='batch'"),
    (ROUNDS | {"multi_objective_aggregation": "normalize_then_sum"}, {"dynamic_sampling_rounds": 0}, "each round"),
    (ROUNDS | {"use_vllm": True}, {"vllm_importance_sampling_correction": False}, "correction=True"),
    (IN_VLLM | {"vllm_mode": "server"}, {"vllm_mode": "colocate"}, "vllm_mode='server'"),
    (IN_VLLM | {"vllm_enable_sleep_mode": True}, {"vllm_enable_sleep_mode": False}, "vllm_enable_sleep_mode=True"),
    (IN_VLLM | RESTARTS, {"adapter_restart": "off"}, "adapter_restart='merge'"),
    ({"compact_generation": "on", "use_vllm": True}, {"compact_generation": "auto"}, "use_vllm=True"),
    (
        {"compact_generation": "on", "use_transformers_continuous_batching": True},
        {"compact_generation": "auto"},
        "continuous_batching=True",
    ),
    ({"loss_mode": "unclipped", "loss_type": "cispo"}, {"loss_type": "dapo"}, "loss_type='cispo'"),
    ({"loss_mode": "unclipped", "delta": 2.0}, {"loss_mode": "clipped"}, "delta=2.0"),
    ({"loss_mode": "no_ratio", "delta": 2.0}, {"delta": None}, "delta=2.0"),
    ({"skip_zero_rows": True, "top_entropy_quantile": 0.2}, {"top_entropy_quantile": 1.0}, "top_entropy_quantile=0.2"),
    ({"nonfinite": "skip", "fp16": True}, {"fp16": False}, "nonfinite='skip'"),
    ({"rollback": 2, "save_strategy": "no"}, {"save_strategy": "steps"}, "save_strategy='no'"),
    ({"rollback": 2, "save_only_model": True}, {"save_only_model": False}, "save_only_model=True"),
    (GREEDY | {"rollback": 2}, {"rollback": 0}, "lr_scheduler_type='greedy'"),
]


@pytest.mark.parametrize(("keys", "cure", "named"), CONTRADICTIONS, ids=lambda value: str(value))
def test_keys_that_contradict_one_another_are_refused_in_one_line(keys, cure, named):
    line = objection(**keys)
    assert named in line
    assert "\n" not in line
    assert objection(**keys | cure) is None


# A key that another one has to switch on, with a value.
USELESS = {
    ProRLConfig: [
        {"base_anchor_every": 4},
        {"kl_clamp": 10.0},
        {"kl_in": "reward"},
        {"ref_compute": "naive_epoch"},
        {"kl_horizon": 50},
        {"ref_reset_metric_mode": "min"},
        {"ref_reset_cooldown": 20},
        {"optimizer_reset": "hard"},
        {"optimizer_reset_alpha": 0.25},
        {"pack_max_tokens": 8192},
        {"compact_merge": False},
        {"vllm_enable_lora": True},
        {"guard_gap_action": "reset"},
        {"hub_push_reference": True},
    ],
    TaskArguments: [{"length_on": 100}, {"length_cost": 0.01, "length_reward": "cosine"}, {"thinking_text": "So"}],
}


@pytest.mark.parametrize(("cls", "keys"), [(cls, keys) for cls, several in USELESS.items() for keys in several])
def test_a_key_without_the_one_it_needs_is_refused(cls, keys):
    name, value = next(iter(keys.items()))
    assert objection(cls, **keys).startswith(f"{name}={value!r} has no effect without ")


def test_a_record_that_lacks_keys_of_newer_versions_has_none_that_others_need():
    assert not any(key.needs.is_met({}.get) for key in (KEYS | TASK_KEYS).values() if key.needs is not None)


def test_every_key_refuses_a_value_of_another_kind():
    for name, key in (KEYS | TASK_KEYS).items():
        assert key.objection(name, object()).startswith(f"{name}="), name


# A key of each range of ours, values in it and values outside.
RANGES = [
    ("length_least", [-2.0], [-INF, NAN]),
    ("ref_reset_every", [0, 7], [-1, 2.5, True, "1", None]),
    ("kl_horizon", [1, 2.0], [0, 2.5, True]),
    ("kl_target", [None, 1e-9, np.float32(0.5)], [0.0, -1.0, INF, NAN, True]),
    ("ref_reset_mix", [0, 1.0], [-0.1, 1.1, NAN, True]),
    ("elastic_ema", [0], [1, -0.1]),
    ("optimizer_reset_alpha", [1], [0, 1.1]),
    ("kl_estimator", ["k2"], ["k4", None]),
    ("loss_mode", [None, "clipped"], ["evil"]),
    ("fast", [True], [1, "true", None]),
    ("dynamic_sampling_rewards", [None, ["a"]], [[], ["a", 1], "a"]),
    ("task_options", [None, "{}", {}], [1]),
]


@pytest.mark.parametrize(("name", "right", "wrong"), RANGES)
def test_the_bounds_of_a_range(name, right, wrong):
    key = (KEYS | TASK_KEYS)[name]
    assert [value for value in right if key.objection(name, value) is not None] == []
    assert [value for value in wrong if key.objection(name, value) is None] == []


# Values that bare TRL 1.16 takes, and with which it trains something else, or nothing.
WRONG = [
    {"beta": -0.5},
    {"beta": "0.1"},
    {"epsilon_high": NAN},
    {"temperature": INF},
    {"delta": 0.0},
    {"top_p": 0.0},
    {"top_entropy_quantile": 20},
    {"ref_model_mixup_alpha": 1.5},
    {"num_iterations": 1.5},
    {"num_iterations": 0},
    {"num_generations": 0},
    {"max_completion_length": 2.5},
    {"pad_to_multiple_of": 0},
    {"reward_weights": [0.0, 0.0]},
    {"reward_weights": 0.5},
    {"weight_decay": -0.1},
    {"log_level": "warn"},
    {"learning_rate": -1e-3},  # Adafactor ascends
    {"per_device_eval_batch_size": 0},
    {"num_generations_eval": -8},
    {"entropy_coef": NAN},
    {"max_steps": 0},
    {"num_train_epochs": 0},
    {"lr_scheduler_kwargs": {"num_cycles": [NAN]}, "lr_scheduler_type": "cosine"},
]
RIGHT = [{"epsilon_high": INF}, {"reward_weights": [0.0, 1.0]}, {"pad_to_multiple_of": "auto"}, {"max_steps": 1}]


@pytest.mark.parametrize("keys", WRONG, ids=lambda value: str(value))
def test_a_value_of_trl_s_that_would_train_something_else_is_refused(keys):
    name, value = next(iter(keys.items()))
    assert f"{name}={value!r}" in objection(**keys)


@pytest.mark.parametrize(
    ("key", "given", "named"),
    [
        ("generation_kwargs", {"top_p": 0}, "top_p=0"),  # greedy: all completions of a group are equal
        ("generation_kwargs", {"max_new_tokens": 2.5}, "max_new_tokens=2.5"),
        ("generation_kwargs", '{"temperature": NaN}', "nan"),
        ("chat_template_kwargs", {"truncation": True, "max_length": 4}, "truncation"),
        ("chat_template_kwargs", '{"padding": "max_length"}', "padding"),
    ],
)
def test_a_value_inside_a_mapping_that_would_train_something_else_is_refused(key, given, named):
    line = objection(**{key: given})
    assert key in line and named in line


def test_one_seed_for_all_requests_to_vllm_is_refused():
    """TRL gives it to each of the equal prompts of a group, whose completions are then equal."""
    given = {"seed": 1}
    assert "generation_kwargs={'seed': 1}" in objection(use_vllm=True, generation_kwargs=given)
    assert objection(use_vllm=True, vllm_mode="server", generation_kwargs=given) is None
    assert objection(generation_kwargs=given) is None


# By range, a value outside that is wrong for each of its keys.
OUTSIDE = {-1: NOT_NEGATIVE, 0: POSITIVE, 1.5: (*SHARES, *WHOLE_FROM_1)}


@pytest.mark.parametrize(("name", "value"), [(name, value) for value, names in OUTSIDE.items() for name in names])
def test_each_key_of_trl_s_that_has_a_range_is_looked_at(name, value):
    """One that is misspelt in a list would be looked for in vain."""
    assert f"{name}={value!r} must be " in objection(**{name: value})


@pytest.mark.parametrize("keys", RIGHT, ids=lambda value: str(value))
def test_a_value_at_the_edge_of_a_range_of_trl_s_is_taken(keys):
    assert objection(**keys) is None


@pytest.mark.parametrize("value, kept", [(True, "group"), (False, "none")])
def test_scale_rewards_may_be_true_or_false_as_in_trl(value, kept):
    assert ProRLConfig(**CPU, scale_rewards=value).scale_rewards == kept


@pytest.mark.parametrize(
    "keys",
    [
        {"lora_dropout": 1.0},
        {"lora_dropout": NAN},
        {"lora_alpha": 0},
        {"bnb_4bit_quant_type": "int4"},
        {"lora_modules_to_save": "lm_head"},
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


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"report_to": ["tensorboard", "mlflow"]}, "report_to='mlflow'"),
        ({"use_vllm": True}, "use_vllm=True needs vLLM"),
    ],
)
def test_a_package_that_is_not_installed_is_missed_in_a_script_before_a_model_is_loaded(monkeypatch, keys, named):
    """transformers and TRL miss it when the model is there; `mlflow` stands for any tracker without its package."""
    monkeypatch.setattr("trl_prorl.launch.checks.get_available_reporting_integrations", lambda: ["tensorboard"])
    monkeypatch.setattr("trl_prorl.launch.checks.is_vllm_available", lambda: False)
    rows = Dataset.from_list([{"prompt": "1 2 3"}] * 8)
    with pytest.raises(ValueError, match=named):
        ProRLTrainer("no/such/model", lambda completions, **columns: [0.0], config(**keys), train_dataset=rows)


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
    assert ("torchrun" in caplog.text) == told


def test_deepspeed_that_skips_steps_by_itself_is_refused():
    args = config(nonfinite="skip")
    args.deepspeed = "zero.json"  # which a configuration takes only where DeepSpeed is installed
    with pytest.raises(ValueError, match="^nonfinite='skip'"):
        refuse_losses(args)
