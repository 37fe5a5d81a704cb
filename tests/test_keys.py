"""A key is declared once: what follows from its descriptor is what lists by hand say, and no part is left out."""

import copy
import dataclasses
import inspect
import itertools
import pickle
import warnings
from typing import Annotated

import pytest
from trl import GRPOConfig, ScriptArguments

from trl_prorl import ProRLConfig, config
from trl_prorl.checkpoint.identity import check_change
from trl_prorl.descriptor import Effect, Key, applies, declared, free, needs, one_of, whole
from trl_prorl.keys import FREE_KEYS, KEYS, TASK_KEYS, TRIGGER_KEYS, effects
from trl_prorl.objective import advantages, kl
from trl_prorl.resets import treatments, triggers
from trl_prorl.train import TaskArguments


def resets(args):
    guarded = args.guard_gap is not None and args.guard_gap_action == "reset"
    drops = args.ref_reset_kl is not None or args.ref_reset_drop is not None
    return guarded or drops or args.ref_reset_every > 0 or args.ref_reset_stall > 0


def changes_at_boundary(args):
    return resets(args) or args.elastic_reset_every > 0 or args.lora_growth_every > 0


def adds_penalty(args):
    ours = args.kl_estimator != "k3" or args.drop_zero_rows or args.loss_mode == "no_ratio"
    ours = ours or args.kl_clamp is not None or args.kl_in == "reward"
    return args.beta_old != 0.0 or args.beta_base != 0.0 or (args.beta != 0.0 and ours)


def is_trl(args):
    penalties = adds_penalty(args) or args.kl_target is not None or args.loss_mode is not None
    samples = args.dynamic_sampling_rounds > 0 or args.advantage_estimator is not None
    fast = {"reuse_old_logps": True, "pack_groups": "auto", "compact_generation": "auto"}
    given_up = fast if args.given_up is not None else {}
    accelerated = any(getattr(args, key) not in (False, "off", given_up.get(key, "off")) for key in fast)
    cost = accelerated or args.skip_zero_rows or args.ref_compute != "cached"
    return not (penalties or changes_at_boundary(args) or samples or cost)


def other_values(name):
    """A few values of a key that are right by themselves, and not its default."""
    key = KEYS[name]
    tried = (*key.choices, key.example) if key.choices or key.need else (True, "elsewhere", 0.5, 5)
    right = [value for value in tried if key.wrong(name, value) is None and value not in (None, key.default)]
    return right if key.choices else right[:1]


VALUES = {name: other_values(name) for name in KEYS}
CHANGES = [{}, *({name: value} for name, values in VALUES.items() for value in values)]
BASES = [
    {},
    {"beta": 0.1},
    {"beta": 0.1, "ref_reset_every": 9},
    {"beta_base": 0.1},
    {"elastic_reset_every": 5},
    {"beta": 0.1, "guard_gap": 0.1},
    {"dynamic_sampling_rounds": 2, "entropy_floor": 0.1},
]


def accepted(**keys):
    """A configuration, or `None` if it is refused."""
    base = {"output_dir": "run", "use_cpu": True, "bf16": False, "num_iterations": 2, "eval_strategy": "steps"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ProRLConfig(**{**base, "eval_steps": 5, "report_to": "none", **keys})
        except ValueError:
            return None


@pytest.mark.parametrize("base", BASES, ids=str)
def test_what_follows_from_one_or_two_keys_is_what_the_lists_by_hand_said(base):
    compared = 0
    on = set()
    for first, second in itertools.combinations_with_replacement(CHANGES, 2):
        if len(first) + len(second) == 2 and base != BASES[1]:
            continue  # pairs of keys on top of one base are many enough
        args = accepted(**{**base, **first, **second})
        if args is None:
            continue
        for given_up in (None, "it is not possible"):
            args.given_up = given_up
            compared += 1
            on |= {*first, *second}
            assert args.resets == resets(args), (first, second)
            assert args.changes_at_boundary == changes_at_boundary(args), (first, second)
            assert args.adds_penalty == adds_penalty(args), (first, second)
            assert args.is_trl == is_trl(args), (first, second)
    assert compared > 50
    assert len(on) > 10


def test_what_the_keys_change_is_computed_once_and_anew_once_a_key_is_set(monkeypatch):
    computed = []
    monkeypatch.setattr(config, "effects", lambda value_of: computed.append(1) or effects(value_of))
    args = accepted(beta=0.1)
    computed.clear()
    assert args.is_trl and not args.resets and not args.adds_penalty and not args.changes_at_boundary
    args.ref_reset_every = 5
    assert args.resets and args.changes_at_boundary and not args.is_trl and not args.adds_penalty
    assert len(computed) <= 2


def test_every_key_of_ours_is_declared_there_alone():
    for cls, theirs, keys in ((ProRLConfig, GRPOConfig, KEYS), (TaskArguments, ScriptArguments, TASK_KEYS)):
        inherited = {field.name for field in dataclasses.fields(theirs)}
        assert [field.name for field in dataclasses.fields(cls) if field.name not in inherited] == list(keys)
        for name, key in keys.items():
            field = cls.__dataclass_fields__[name]  # described in the docstring, and not in the field as well
            assert inspect.getdoc(cls).count(f"\n    {name} (") == 1
            assert "help" not in field.metadata
            assert field.default == key.default


GOOD = Key(whole(0), Effect.STEP, applies)
BAD = {
    "no descriptor": (int, 0, "Bad.key has no descriptor|key has no descriptor"),
    "two": (Annotated[int, GOOD, GOOD], 0, "has no descriptor"),
    "a need, no example": (Annotated[int, Key(whole(0), Effect.STEP, applies, needs("other"))], 0, "has an example"),
    "an example, no need": (Annotated[int, Key(whole(0), Effect.STEP, applies, example=2)], 0, "has an example"),
    "its default": (Annotated[int, Key(whole(0), Effect.STEP, applies, needs("a"), 3)], 3, "not its default"),
    "free, and acts": (Annotated[int, Key(whole(0), Effect.STEP, free)], 0, "changes training"),
    "a wrong default": (Annotated[int, Key(whole(1), Effect.STEP, applies)], 0, "number from 1. It is the default"),
    "no such choice": (Annotated[str, Key(one_of("a", "b"), Effect.STEP, applies)], "c", "not one of a, b"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_part_that_is_forgotten_or_contradicts_another_is_an_error(case):
    hint, default, message = BAD[case]
    cls = dataclasses.make_dataclass("Bad", [("key", hint, dataclasses.field(default=default))])
    with pytest.raises(TypeError, match=message):
        declared(cls)


@pytest.mark.parametrize("parts", [(), (whole(0),), (whole(0), Effect.STEP)])
def test_no_part_has_a_silent_default(parts):
    with pytest.raises(TypeError, match="required positional argument"):
        Key(*parts)


def test_the_choices_are_the_objects_that_there_are():
    assert KEYS["optimizer_reset"].choices == (*treatments.TREATMENTS, *treatments.SCALE_FORMS)
    assert KEYS["kl_estimator"].choices == kl.ESTIMATORS
    assert KEYS["advantage_estimator"].choices == (None, *advantages.ESTIMATORS)
    assert TRIGGER_KEYS == triggers.TRIGGER_KEYS
    # Keys of ours on which no number depends.
    free = "run_dir hub_push_reference allow_config_change fast reward_timeout log_update_norm"
    assert {name for name in (*KEYS, *TASK_KEYS) if name in FREE_KEYS} == set(free.split())


# By hand: refused when switched on, when switched off, and without another trigger.
ON = ["elastic_reset_every", "adapter_restart"]
OFF = ["lora_growth_every", "adapter_restart"]
LAST = "every kl stall drop".split()


def refused_change(key, old, new, folder, **now):
    try:
        check_change({key: [old, new]}, {key: new, **now}, folder)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("key", KEYS)
def test_which_changes_of_a_key_a_resume_refuses(tmp_path, key):
    default = KEYS[key].default
    other = VALUES[key][0]
    last = key in [f"ref_reset_{name}" for name in LAST]
    assert refused_change(key, default, other, tmp_path, beta=0.3) == (key in ON)
    assert refused_change(key, other, default, tmp_path, beta=0.3) == (key in OFF or last)
    assert refused_change(key, other, default, tmp_path, beta=0.0) == (key in OFF)
    another = next(f"ref_reset_{name}" for name in LAST if f"ref_reset_{name}" != key)
    assert refused_change(key, other, default, tmp_path, beta=0.3, **{another: 3}) == (key in OFF)


MISSPELT = {
    "ref_reset_evry": " (did you mean 'ref_reset_every'?)",
    "num_generation": " (did you mean 'num_generations'?)",  # TRL's
    "gradient_acumulation_steps": " (did you mean 'gradient_accumulation_steps'?)",  # transformers'
    "lr": ": write learning_rate",
    "zzz": "",
}


@pytest.mark.parametrize("key", MISSPELT)
def test_a_misspelt_key_is_one_line_with_what_was_meant(key):
    with pytest.raises(TypeError) as refusal:
        ProRLConfig(output_dir="a", **{key: 3})
    assert str(refusal.value) == f"ProRLConfig takes no {key}=3{MISSPELT[key]}."


def test_what_may_be_made_of_the_configuration_stays():
    keys = {"output_dir": "a", "use_cpu": True, "bf16": False}
    made = ProRLConfig(**keys, beta=0.3)
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert again == made
        assert again.given == made.given

    class WithArgument(ProRLConfig):
        def __init__(self, own, **others):
            super().__init__(**others)

    class Closed(ProRLConfig):
        def __init__(self, own):
            super().__init__(**keys)

    @dataclasses.dataclass
    class WithKey(ProRLConfig):
        own: int = 1

    assert WithArgument(own=2, **keys).beta == Closed(own=2).beta == 0.0
    assert WithKey(own=2, **keys).own == 2
    with pytest.raises(TypeError, match=r"WithKey takes no onw=2 \(did you mean 'own'\?\)"):
        WithKey(onw=2, **keys)
