"""Each refusal is reached by its own example, and names the key, the value and the cure."""

import ast
import re
import warnings

import pytest

from trl_prorl import ProRLConfig
from trl_prorl.keys import A_RESET, KEYS, TASK_KEYS, TRIGGER_KEYS
from trl_prorl.refusals import CHECKED, REFUSALS
from trl_prorl.train import TaskArguments


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
    assert values and values == {key: getattr(args, key) for key in values}
    assert CURE.search(line) and line.endswith(".") and "\n" not in line and "  " not in line


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
    key, (cls, base) = NEEDS[name], (ProRLConfig, CPU) if name in KEYS else (TaskArguments, {})
    with pytest.raises(ValueError, match=f"^{name}={re.escape(repr(key.example))} ") as error:
        cls(**base, **{name: key.example})
    assert CURE.search(str(error.value)) and str(error.value).endswith(".")
    assert getattr(cls(**base, **{name: key.example}, **ON[name]), name) == key.example


@pytest.mark.parametrize("name, keys", ON.items(), ids=ON)
def test_the_record_of_a_run_tells_which_keys_have_an_effect(name, keys):
    """From a mapping that lacks keys of newer versions."""
    need = NEEDS[name].need
    assert need.is_met(keys.get) and not need.is_met({}.get)
    off = {"optimizer_reset": "hard", "pack_groups": "off", "length_reward": None, "ref_reset_stall": 0}
    off |= {"beta_base": 0.0, "eval_strategy": "steps"}  # what none of them needs
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
        "beta beta_old beta_base ref_reset_min_delta",
    ),
    "a whole number from 0": (
        (-1, *COUNT, None),
        "ref_reset_every ref_reset_stall ref_reset_cooldown optimizer_reset_rewarmup_steps elastic_reset_every "
        "lora_growth_every rollback dynamic_sampling_rounds length_off",
    ),
    "a whole number from 1": (
        (0, *COUNT),
        "base_anchor_every ref_reset_kl_window kl_horizon entropy_patience lora_growth_step lora_growth_max_rank "
        "pack_max_tokens length_on length_target length_margin thinking_budget thinking_answer_tokens",
    ),
    "a positive number": (
        (0.0, -1.0, float("inf"), float("nan"), True, "1"),
        "ref_reset_kl ref_reset_drop kl_target kl_clamp reward_timeout entropy_floor guard_gap temperature",
    ),
    "in [0, 1]; 1 is a hard copy": ((-0.1, 1.1, float("nan"), True, None), "ref_reset_mix"),
    "in [0, 1)": ((-0.1, 1, float("nan"), True, None), "elastic_ema"),
    "in (0, 1]; to clear the state use optimizer_reset: hard": (
        (0, 1.1, float("nan"), True, None),
        "optimizer_reset_alpha",
    ),
    "in (0, 1]": ((0, 1.1, float("nan"), True, None), "rollback_rate"),
    "a list of names of reward functions": (("mine", [], [1], ("mine",)), None),
    "true or false": (("yes", 1, None), None),
    "a text": ((1, ["a"]), None),
    "a path": ((1, ["a"]), None),
}
NULLABLE = "pack_max_tokens ref_reset_kl ref_reset_drop kl_target kl_clamp reward_timeout entropy_floor guard_gap "
NULLABLE += "length_target length_margin thinking_budget"
VALUED = {name: key for name, key in (CHECKED | TASK_KEYS).items() if not key.choices and key.values.words}


def test_every_number_has_its_range():
    for words, (_, names) in RANGES.items():
        if names is not None:
            assert {name for name, key in VALUED.items() if key.values.words == words} == set(names.split())
            assert all(VALUED[name].nullable == (name in NULLABLE.split()) for name in names.split())


@pytest.mark.parametrize("name", VALUED)
def test_a_value_out_of_its_range_is_refused_with_the_range(name):
    key, (cls, base) = VALUED[name], (TaskArguments, {}) if name in TASK_KEYS else (ProRLConfig, CPU)
    for wrong in RANGES[key.values.words][0]:
        if not (name == "temperature" and wrong == 0.0 or key.nullable and wrong is None):  # which TRL refuses first
            with pytest.raises(ValueError) as error:
                cls(**base, **{name: wrong})
            assert str(error.value) == f"{name}={wrong!r} must be {key.values.words}."
    assert key.wrong(name, getattr(cls(**base), name)) is None
