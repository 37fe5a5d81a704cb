"""Each refusal is reached by its own example, and names the key, the value and the cure."""

import ast
import dataclasses
import re
import subprocess
import sys
import warnings

import pytest
from trl import GRPOConfig, ScriptArguments

from trl_prorl import ProRLConfig
from trl_prorl.needs import NEEDS, TASK_NEEDS
from trl_prorl.refusals import CHOICES, REFUSALS, VALUES
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
def test_each_example_is_refused_with_its_own_line(refusal):
    line, args = refused(**refusal.example)
    assert next(other for other in REFUSALS if other.when(args)) is refusal
    assert line == refusal.line(args)


@pytest.mark.parametrize("refusal", REFUSALS, ids=named)
def test_each_line_names_a_key_its_value_and_the_cure(refusal):
    line, args = refused(**refusal.example)
    assert set(refusal.example) & set(re.findall(r"\w+", line)), "no key of the example is named"
    values = {key: ast.literal_eval(value) for key, value in SAID.findall(line)}
    assert values and values == {key: getattr(args, key) for key in values}
    assert CURE.search(line) and line.endswith(".") and "\n" not in line and "  " not in line


def test_no_two_examples_are_the_same():
    examples = [sorted(refusal.example.items(), key=str) for refusal in REFUSALS]
    assert all(example not in examples[:place] for place, example in enumerate(examples))


def test_the_order_of_the_table_decides_which_line_is_told():
    """Two faults at once: the one that stands first."""
    line, _ = refused(entropy_stop=True, hub_push_reference=True)
    assert line.startswith("entropy_stop=True")
    line, _ = refused(optimizer_reset_alpha=0.5, optimizer_reset="hard")
    assert line == "optimizer_reset_alpha=0.5 has no effect without optimizer_reset: soft. Set that, or leave " + (
        "optimizer_reset_alpha out."
    )


KEYS = [(CPU, ProRLConfig, key, need) for key, need in NEEDS.items()]
KEYS += [({}, TaskArguments, key, need) for key, need in TASK_NEEDS.items()]
# What switches each need on, by hand; the rest makes the configuration right.
ON = {
    "optimizer_reset_alpha": {"optimizer_reset": "soft", "ref_reset_every": 9, "beta": 0.1},
    "kl_horizon": {"kl_target": 0.1, "beta": 0.1},
    "base_anchor_every": {"beta_base": 0.1},
    "dynamic_sampling_rewards": {"dynamic_sampling_rounds": 1},
    "pack_max_tokens": {"pack_groups": "auto"},
    "elastic_ema": {"elastic_reset_every": 9},
    "lora_growth_step": {"lora_growth_every": 9},
    "lora_growth_max_rank": {"lora_growth_every": 9},
    "entropy_patience": {"entropy_floor": 0.1},
    "guard_gap_action": {"guard_gap": 0.1},
    "ref_reset_kl_window": {"ref_reset_kl": 0.1, "beta": 0.1},
    "ref_reset_metric": {"ref_reset_stall": 2, "beta": 0.1, "eval_strategy": "steps", "eval_steps": 5},
    "ref_reset_metric_mode": {"ref_reset_drop": 0.1, "beta": 0.1, "eval_strategy": "steps", "eval_steps": 5},
    "ref_reset_min_delta": {"ref_reset_stall": 2, "beta": 0.1, "eval_strategy": "steps", "eval_steps": 5},
    "length_least": {"length_reward": "cosine"},
    "length_on": {"length_reward": "cosine"},
    "length_off": {"length_reward": "cosine"},
    "length_target": {"length_reward": "target"},
    "length_cost": {"length_reward": "target", "length_target": 5},
    "length_margin": {"length_reward": "overlong"},
    "thinking_text": {"thinking_budget": 4},
    "thinking_answer_tokens": {"thinking_budget": 4},
}


@pytest.mark.parametrize("base, cls, key, need", KEYS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_key_without_the_one_it_needs_is_refused_and_with_it_is_not(base, cls, key, need):
    with pytest.raises(ValueError, match=f"^{key}=.* has no effect without .*leave {key} out.$"):
        cls(**base, **{key: need.example})
    assert getattr(cls(**base, **{key: need.example}, **ON[key]), key) == need.example


@pytest.mark.parametrize("key, keys", ON.items(), ids=ON)
def test_the_record_of_a_run_tells_which_keys_have_an_effect(key, keys):
    """From a mapping that lacks keys of newer versions."""
    need = (NEEDS | TASK_NEEDS)[key]
    assert need.is_met(keys.get) and not need.is_met({}.get)
    off = {
        "optimizer_reset": "hard",
        "pack_groups": "off",
        "length_reward": None,
        "ref_reset_stall": 0,
        "beta_base": 0.0,
    }
    off |= {"beta": 0.1, "ref_reset_every": 9, "eval_strategy": "steps"}  # what none of them needs
    assert not need.is_met(off.get)


def test_needs_are_read_without_torch():
    code = "import sys, trl_prorl.needs; assert not {'torch', 'transformers', 'trl'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("key", CHOICES)
def test_a_choice_that_there_is_not_is_refused_with_those_there_are(key):
    line, _ = refused(**{key: "sometimes"})
    assert line == f"{key}='sometimes' is not one of {', '.join(map(str, CHOICES[key]))}."
    assert getattr(ProRLConfig(**CPU), key) in CHOICES[key]


WRONG = {
    "a finite number that is not negative": (-0.5, float("inf"), float("nan"), True, "1", None),
    "a whole number from 0": (-1, 2.5, float("inf"), float("nan"), True, "1", None),
    "a whole number from 1": (0, 2.5, float("inf"), float("nan"), True, "1"),
    "a positive number": (0.0, -1.0, float("inf"), float("nan"), True, "1"),
    "in [0, 1]; 1 is a hard copy": (-0.1, 1.1, float("nan"), True, None),
    "in [0, 1)": (-0.1, 1, float("nan"), True, None),
    "in (0, 1]; to clear the state use optimizer_reset: hard": (0, 1.1, float("nan"), True, None),
    "a list of names of reward functions": ("mine", [], [1], ("mine",)),
    "true or false": ("yes", 1, None),
}


@pytest.mark.parametrize("values", VALUES, ids=lambda values: values.keys[0])
def test_a_value_out_of_its_range_is_refused_with_the_range(values):
    for key in values.keys:
        for wrong in WRONG[values.told]:
            if key == "temperature" and wrong == 0.0:
                continue  # TRL refuses it first
            line, _ = refused(**{key: wrong})
            assert line == f"{key}={wrong!r} must be {values.told}."
        assert values.is_right(getattr(ProRLConfig(**CPU), key)) or values.nullable


def test_every_number_of_the_configuration_is_in_a_table():
    theirs = {field.name for field in dataclasses.fields(GRPOConfig)}
    ours = [field for field in dataclasses.fields(ProRLConfig) if field.name not in theirs]
    checked = {key for values in VALUES for key in values.keys} | set(CHOICES)
    kinds = {field.name: field.type for field in ours}
    assert {name for name, kind in kinds.items() if kind in (int, float, int | None, float | None)} <= checked
    assert checked - {"beta", "temperature"} <= set(kinds)


def test_a_key_is_described_once():
    """In the docstring, which help, the reference and the key reader show; not in the field as well."""
    for cls, parent in ((ProRLConfig, GRPOConfig), (TaskArguments, ScriptArguments)):
        theirs = {field.name for field in dataclasses.fields(parent)}
        for field in dataclasses.fields(cls):
            if field.name not in theirs:
                assert f"        {field.name} (" in cls.__doc__ and "help" not in field.metadata, field.name
