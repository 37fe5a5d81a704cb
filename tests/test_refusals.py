"""Bad configurations are refused at once: each refusal is reached by its own example, with key, value and cure."""

import ast
import dataclasses
import re
import typing
import warnings

import numpy as np
import pytest
import yaml
from datasets import Dataset
from trl import GRPOConfig
from trl.trainer.base_config import _BaseConfig

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.config import CHECKED
from trl_prorl.keys import A_RESET, KEYS, TASK_KEYS, TRIGGER_KEYS
from trl_prorl.launch.command_line import launcher_keys
from trl_prorl.launch.recipe import parse_recipe
from trl_prorl.refusals import REFUSALS
from trl_prorl.train import TaskArguments
from trl_prorl.upstream_values import options_of


CPU = {"output_dir": "run", "use_cpu": True, "bf16": False}
SAID = re.compile(r"\b([a-z_]+)=('[^']*'|\[[^\]]*\]|[A-Z]\w+|[\d.]*\d)")  # key=value
CURE = re.compile(r"\b([Ss]et|[Ll]eave|Make|Use)\b")


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


def named(refusal):
    return " ".join(f"{key}={value}" for key, value in refusal.example.items())


@pytest.mark.parametrize("refusal", REFUSALS, ids=named)
def test_each_example_is_refused_with_its_own_line_that_names_a_key_its_value_and_the_cure(refusal):
    line, args = refused(**refusal.example)
    assert next(other for other in REFUSALS if other.when(args)) is refusal
    assert line == refusal.line(args)
    assert set(refusal.example) & set(re.findall(r"\w+", line)), "no key of the example is named"
    values = {key: ast.literal_eval(value) for key, value in SAID.findall(line)}
    assert values
    assert values == {key: getattr(args, key) for key in values}
    assert CURE.search(line)
    assert line.endswith(".")
    assert "\n" not in line
    assert "  " not in line


RESTARTS = {"beta": 0.1, "ref_reset_every": 100, "adapter_restart": "merge"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"compact_generation": "on", "use_transformers_continuous_batching": True}, "continuous_batching=True"),
        (RESTARTS | {"lora_growth_every": 100}, "lora_growth_every=100"),
        (RESTARTS | {"elastic_reset_every": 100}, "elastic_reset_every=100"),
        ({"beta": 0.1, "ref_reset_drop": 0.1}, "ref_reset_drop=0.1"),
        ({"beta_old": 0.1, "gradient_accumulation_steps": 4, "steps_per_generation": 2}, "beta_old=0.1 can do"),
    ],
)
def test_a_line_for_several_keys_is_told_for_each(keys, said):
    assert said in refused(**keys)[0]


def test_the_order_of_the_keys_decides_which_line_is_told():
    """Two faults at once: the one that is declared first."""
    line, _ = refused(entropy_stop=True, hub_push_reference=True)
    assert line.startswith("entropy_stop=True")
    line, _ = refused(optimizer_reset_alpha=0.5, kl_horizon=7)
    assert line == "kl_horizon=7 has no effect without kl_target. Set that, or leave kl_horizon out."


def test_whatever_requests_a_reset_is_named_where_none_is_requested():
    assert all(key in A_RESET.line for key in TRIGGER_KEYS)


NEEDS = {name: key for name, key in (KEYS | TASK_KEYS).items() if key.need is not None}
# What switches each need on, by hand; the rest makes the configuration right.
EVALUATED = {"beta": 0.1, "eval_strategy": "steps", "eval_steps": 5}
BY_NEED = [
    ({"beta": 0.1}, "kl_clamp ref_compute hub_push_reference"),
    ({"beta_base": 0.1}, "kl_target base_anchor_every"),
    ({"beta": 0.1, "kl_target": 0.1}, "kl_horizon"),
    ({"beta": 0.1, "advantage_estimator": "rloo"}, "kl_in"),
    ({"beta_old": 0.1, "num_iterations": 2}, "drop_zero_rows"),
    (
        {"beta": 0.1, "ref_reset_every": 9},
        "adapter_restart ref_reset_cooldown optimizer_reset_schedule optimizer_reset_rewarmup_steps",
    ),
    ({"beta": 0.1, "ref_reset_every": 9, "optimizer_reset": "soft"}, "optimizer_reset_alpha"),
    ({"beta": 0.1, "guard_gap": 0.1, "guard_gap_action": "reset"}, "optimizer_reset"),
    ({"beta": 0.1, "ref_reset_kl": 0.1}, "ref_reset_kl_window"),
    (EVALUATED | {"ref_reset_stall": 2}, "ref_reset_metric ref_reset_min_delta"),
    (EVALUATED | {"ref_reset_drop": 0.1}, "ref_reset_metric_mode"),
    ({"rollback": 1, "save_steps": 5}, "rollback_rate"),
    ({"use_vllm": True}, "vllm_enable_lora"),
    ({"entropy_floor": 0.1}, "entropy_stop entropy_patience"),
    ({"guard_gap": 0.1}, "guard_gap_action"),
    ({"dynamic_sampling_rounds": 1}, "dynamic_sampling_rewards"),
    ({"pack_groups": "auto"}, "pack_max_tokens"),
    ({"compact_generation": "auto"}, "compact_max_rows compact_merge"),
    ({"elastic_reset_every": 9}, "elastic_ema"),
    ({"lora_growth_every": 9}, "lora_growth_step lora_growth_max_rank"),
    ({"length_reward": "cosine"}, "length_least length_on length_off"),
    ({"length_reward": "target"}, "length_target"),
    ({"length_reward": "target", "length_target": 5}, "length_cost"),
    ({"length_reward": "overlong"}, "length_margin"),
    ({"thinking_budget": 4}, "thinking_text thinking_answer_tokens"),
]
ON = {name: keys for keys, names in BY_NEED for name in names.split()}


def test_every_key_that_needs_another_one_is_here():
    assert set(NEEDS) == set(ON)


@pytest.mark.parametrize("name", NEEDS)
def test_a_key_without_the_one_it_needs_is_refused_and_with_it_is_not(name):
    key = NEEDS[name]
    cls, base = (ProRLConfig, CPU) if name in KEYS else (TaskArguments, {})
    with pytest.raises(ValueError, match=f"^{name}={re.escape(repr(key.example))} ") as error:
        cls(**base, **{name: key.example})
    assert CURE.search(str(error.value))
    assert str(error.value).endswith(".")
    assert getattr(cls(**base, **{name: key.example}, **ON[name]), name) == key.example


@pytest.mark.parametrize("name, keys", ON.items(), ids=ON)
def test_the_record_of_a_run_tells_which_keys_have_an_effect(name, keys):
    """From a mapping that lacks keys of newer versions."""
    need = NEEDS[name].need
    assert need.is_met(keys.get)
    assert not need.is_met({}.get)
    # What none of them needs.
    off = {
        "optimizer_reset": "hard",
        "pack_groups": "off",
        "length_reward": None,
        "ref_reset_stall": 0,
        "beta_base": 0.0,
        "eval_strategy": "steps",
    }
    assert not need.is_met(off.get)


CHOICES = {name: key.choices for name, key in KEYS.items() if key.choices}


@pytest.mark.parametrize("key", CHOICES)
def test_a_choice_that_there_is_not_is_refused_with_those_there_are(key):
    line, _ = refused(**{key: "sometimes"})
    assert line == f"{key}='sometimes' is not one of {', '.join(map(str, CHOICES[key]))}."
    assert getattr(ProRLConfig(**CPU), key) in CHOICES[key]


# By hand, the range of every number and of some other values: the words for it, values outside, and whose it is.
COUNT = (2.5, float("inf"), float("nan"), True, "1")
RANGES = {
    "a finite number that is not negative": (
        (-0.5, float("inf"), float("nan"), True, "1", None),
        "beta beta_old beta_base ref_reset_min_delta length_cost vllm_importance_sampling_clip_min epsilon "
        "vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg entropy_target entropy_coef_delta "
        "off_policy_mask_threshold router_aux_loss_coef learning_rate weight_decay neftune_noise_alpha warmup_steps "
        "num_train_epochs "
        "logging_steps eval_steps eval_delay save_steps",
    ),
    "a number that is not negative": ((-0.5, float("nan"), True, "1"), "epsilon_high max_grad_norm"),
    "a finite number": ((float("-inf"), float("nan"), True, "1", None), "length_least"),
    "a whole number from -1": ((-2, *COUNT, None), "max_steps"),
    "a whole number from 1, or auto": ((0, -3, 2.5, True, "1"), "pad_to_multiple_of"),
    "a list of finite numbers that are not all 0": (
        ([float("nan")], [1.0, float("inf")], [0.0], [], ["1"], 1.0),
        "reward_weights",
    ),
    "a whole number from 0": (
        (-1, *COUNT, None),
        "ref_reset_every ref_reset_stall ref_reset_cooldown optimizer_reset_rewarmup_steps elastic_reset_every "
        "lora_growth_every rollback dynamic_sampling_rounds length_off top_k seed data_seed save_total_limit "
        "dataloader_num_workers num_completions_to_print",
    ),
    "a whole number from 1": (
        (0, *COUNT),
        "base_anchor_every ref_reset_kl_window kl_horizon entropy_patience lora_growth_step lora_growth_max_rank "
        "pack_max_tokens compact_max_rows length_on length_target length_margin thinking_budget "
        "thinking_answer_tokens per_device_train_batch_size per_device_eval_batch_size num_generations_eval "
        "max_completion_length "
        "vllm_max_model_length vllm_tensor_parallel_size ref_model_sync_steps dataloader_prefetch_factor",
    ),
    "a positive number": (
        (0.0, -1.0, float("inf"), float("nan"), True, "1"),
        "ref_reset_kl ref_reset_drop kl_target kl_clamp reward_timeout entropy_floor guard_gap temperature "
        "repetition_penalty vllm_server_timeout vllm_importance_sampling_clip_max delta sapo_temperature_neg "
        "sapo_temperature_pos adam_epsilon",
    ),
    "in [0, 1]; 1 is a hard copy": ((-0.1, 1.1, float("nan"), True, None), "ref_reset_mix"),
    "in [0, 1]": (
        (-0.1, 1.1, float("nan"), True),
        "min_p top_entropy_quantile ref_model_mixup_alpha",
    ),
    "in [0, 1)": ((-0.1, 1, float("nan"), True, None), "elastic_ema adam_beta1 adam_beta2"),
    "in (0, 1]; to clear the state use optimizer_reset: hard": (
        (0, 1.1, float("nan"), True, None),
        "optimizer_reset_alpha",
    ),
    "in (0, 1]": ((0, 1.1, float("nan"), True, None), "rollback_rate top_p vllm_gpu_memory_utilization"),
    "a list of names of reward functions": (("mine", [], [1], ("mine",)), None),
    "true or false": (("yes", 1, None), None),
    "a text": ((1, ["a"]), None),
    "a path": ((1, ["a"]), None),
}
NULLABLE = "compact_max_rows "
NULLABLE += "pack_max_tokens ref_reset_kl ref_reset_drop kl_target kl_clamp reward_timeout entropy_floor guard_gap "
NULLABLE += "length_target length_margin thinking_budget vllm_importance_sampling_clip_min off_policy_mask_threshold "
NULLABLE += "router_aux_loss_coef neftune_noise_alpha eval_steps max_grad_norm epsilon_high pad_to_multiple_of "
NULLABLE += "reward_weights top_k data_seed save_total_limit num_generations_eval max_completion_length delta min_p "
NULLABLE += "vllm_max_model_length dataloader_prefetch_factor num_completions_to_print "
NULLABLE += "vllm_importance_sampling_clip_max"
VALUED = {name: key for name, key in (CHECKED | TASK_KEYS).items() if not key.choices and key.values.words}


def test_every_number_has_its_range():
    for words, (_, names) in RANGES.items():
        if names is not None:
            assert {name for name, key in VALUED.items() if key.values.words == words} == set(names.split())
            assert all(VALUED[name].nullable == (name in NULLABLE.split()) for name in names.split())


@pytest.mark.parametrize("name", VALUED)
def test_a_value_out_of_its_range_is_refused_with_the_range(name):
    key = VALUED[name]
    cls, base = (TaskArguments, {}) if name in TASK_KEYS else (ProRLConfig, CPU)
    for wrong in RANGES[key.values.words][0]:
        if not (key.nullable and wrong is None):
            with pytest.raises(ValueError) as error:
                cls(**base, **{name: wrong})
            assert str(error.value) == f"{name}={wrong!r} must be {key.values.words}."
    assert key.wrong(name, getattr(cls(**base), name)) is None


OTHER_FLOATS = "entropy_coef entropy_coef_min entropy_coef_max label_smoothing_factor"


@pytest.mark.parametrize("name", OTHER_FLOATS.split())
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_without_a_range_is_finite(name, value):
    assert refused(**{name: value})[0].startswith(f"{name}={value!r} must be finite")


def test_every_number_of_trl_has_a_range_or_is_finite():
    hints = typing.get_type_hints(GRPOConfig)
    fractions = {field.name for field in dataclasses.fields(GRPOConfig) if float in options_of(hints[field.name])}
    assert fractions - set(VALUED) == {*OTHER_FLOATS.split(), "vllm_importance_sampling_cap"}  # the last is deprecated


def test_a_number_inside_a_mapping_is_finite():
    keys = {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": [float("nan")]}}
    assert refused(**keys)[0].startswith("lr_scheduler_kwargs={'num_cycles': [nan]} must be finite")


@pytest.mark.parametrize("name", ["epsilon_high", "max_grad_norm"])
def test_a_bound_may_be_infinite(name):
    assert getattr(ProRLConfig(**CPU, **{name: float("inf")}), name) == float("inf")


THEIR_WORDS = {name: key.choices for name, key in CHECKED.items() if key.choices and name not in CHOICES}


@pytest.mark.parametrize("key", THEIR_WORDS)
def test_a_word_that_trl_does_not_know_is_refused_with_those_it_knows(key):
    line, _ = refused(**{key: "evil"})
    assert line == f"{key}='evil' is not one of {', '.join(map(str, THEIR_WORDS[key]))}."
    for word in THEIR_WORDS[key]:
        assert CHECKED[key].wrong(key, word) is None


@pytest.mark.parametrize("value, kept", [(True, "group"), (False, "none")])
def test_scale_rewards_may_be_true_or_false_as_in_trl(value, kept):
    assert ProRLConfig(**CPU, scale_rewards=value).scale_rewards == kept


def test_a_number_of_numpy_is_a_number():
    assert ProRLConfig(**CPU, learning_rate=np.float32(0.5)).learning_rate == 0.5


MODEL = [
    ({"lora_target_modules": "("}, "lora_target_modules='(' must be"),
    ({"lora_target_modules": ["q_proj", ""]}, "lora_target_modules=['q_proj', ''] must be"),
    ({"lora_modules_to_save": "lm_head"}, "lora_modules_to_save='lm_head' must be a list of names"),
    ({"lora_r": 0}, "lora_r=0 must be a whole number from 1"),
    ({"lora_dropout": float("nan")}, "lora_dropout=nan must be in [0, 1)"),
    ({"lora_task_type": "SEQ_CLS"}, "lora_task_type='SEQ_CLS' is not one of CAUSAL_LM."),
    ({"dtype": "int8"}, "dtype='int8' is not one of None, auto, bfloat16, float16, float32."),
    ({"bnb_4bit_quant_type": "evil"}, "bnb_4bit_quant_type='evil' is not one of fp4, nf4."),
    ({"bnb_4bit_quant_storage": "evil"}, "bnb_4bit_quant_storage='evil' is not one of None, float16"),
    ({"length_reward": "overlong", "length_margin": 9}, "length_margin=9 is more than max_completion_length=8"),
    ({"length_reward": "target", "length_target": 9}, "length_target=9 is more than max_completion_length=8"),
]


@pytest.mark.parametrize(("keys", "begins"), MODEL)
def test_what_a_recipe_says_beside_the_configuration_is_checked_as_it_is_read(tmp_path, keys, begins):
    recipe = {"use_cpu": True, "bf16": False, "max_completion_length": 8, **keys}
    (tmp_path / "arm.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(ValueError) as error:
        parse_recipe(["--config", str(tmp_path / "arm.yaml")])
    assert str(error.value).startswith(begins)


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
        ({"beta": 0.1, "use_bias_correction_kl": False}, ["beta"]),
        ({"beta": 0.1, "beta_old": 0.1, "kl_estimator": "k2", "num_iterations": 2}, ["beta", "beta_old"]),
        ({"beta_old": 0.1, "num_iterations": 2, "importance_sampling_level": "sequence"}, ["beta_old"]),
        ({"beta_old": 0.1, "num_iterations": 2}, []),
    ],
)
def test_biased_gradients_warn_for_each_anchor_and_say_what_is_exact(keys, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config(**keys)
    messages = [str(w.message) for w in caught if "penalty is biased" in str(w.message)]
    assert [message.split()[4] for message in messages] == warned
    assert all("kl_estimator: k3, use_bias_correction_kl: true" in message for message in messages)


@pytest.mark.parametrize(
    "keys, named",
    [
        ({}, None),
        ({"top_p": 0.9}, "top_p=0.9 TRL scales the loss of every completion by the product"),
        (
            {"top_k": 20, "min_p": 0.1, "vllm_importance_sampling_mode": "token_mask"},
            "top_k=20 and min_p=0.1 TRL scales the loss of every token",
        ),
        ({"top_k": 0, "min_p": 0.0}, None),
        ({"top_p": 0.9, "vllm_importance_sampling_correction": False}, None),
        ({"top_p": 0.9, "use_vllm": False}, None),
    ],
)
def test_a_cut_softmax_of_vllm_warns_where_trl_s_ratio_would_scale_the_loss(keys, named):
    """huggingface/trl#6789: log p − log(p / S) is log S, for every token."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config(**{"use_vllm": True, **keys})
    messages = [str(w.message) for w in caught if "trl#6789" in str(w.message)]
    assert len(messages) == (named is not None)
    assert all(named in message for message in messages)


def test_a_tracker_that_is_not_installed_is_refused_in_a_script_before_a_model_is_loaded(monkeypatch):
    """transformers finds it missing when the model is there; `mlflow` stands for any tracker without its package."""
    monkeypatch.setattr("trl_prorl.launch.checks.get_available_reporting_integrations", lambda: ["tensorboard"])
    args = config(report_to=["tensorboard", "mlflow"])
    rows = Dataset.from_list([{"prompt": "1 2 3"}] * 8)
    with pytest.raises(ValueError, match="report_to='mlflow' needs a package that is not installed"):
        ProRLTrainer("no/such/model", lambda completions, **columns: [0.0], args, train_dataset=rows)


@pytest.mark.parametrize(
    ("keys", "begins"),
    [
        ({}, "bf16=True, the default, needs a GPU"),
        ({"bf16": True}, "bf16=True needs a GPU"),
        ({"bf16": False, "bf16_full_eval": True}, "bf16_full_eval=True needs a GPU"),
    ],
)
def test_bf16_without_a_gpu_is_refused_with_its_key(monkeypatch, keys, begins):
    for module in ("utils", "training_args"):
        monkeypatch.setattr(f"transformers.{module}.is_torch_bf16_gpu_available", lambda: False)
    with pytest.raises(ValueError) as error:
        ProRLConfig(**keys)
    assert str(error.value).startswith(begins)
    assert "false, and use_cpu: true" in str(error.value)

    def on_a_cpu(config, checked=_BaseConfig.__post_init__):  # as the fixture of TRL's own suite
        config.use_cpu = True
        checked(config)

    monkeypatch.setattr(_BaseConfig, "__post_init__", on_a_cpu)
    ProRLConfig(**keys)  # transformers accepts it


@pytest.mark.parametrize("key", ["bf16", "fp16"])
def test_a_launcher_whose_precision_is_not_the_keys_is_refused(monkeypatch, key):
    """`accelerate launch --config_file accelerate_configs/single_gpu.yaml` of a recipe in float32."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", key)
    with pytest.raises(ValueError, match=f"^{key}=False, but the launcher says mixed_precision={key}, .*precision no"):
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
        ({"MIXED_PRECISION": "fp16"}, True, ["--bf16 false", "--fp16 true", "--use_cpu false"]),
        ({"MIXED_PRECISION": "fp16", "USE_CPU": "True"}, True, "mixed_precision=fp16, which needs a GPU"),
        ({"MIXED_PRECISION": "bf16"}, False, "told of several GPUs, and torch finds none"),
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
    told = r"^deepspeed='zero.json' needs DeepSpeed: pip install 'trl-prorl\[deepspeed\]'"
    with pytest.raises(ValueError, match=told):
        config(deepspeed="zero.json")
