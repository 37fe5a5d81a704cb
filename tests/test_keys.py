"""What follows from the descriptor of a key: what it changes, one without effect, a misspelt one."""

import pytest
from run_record import read_events

from trl_prorl import ProRLConfig


BASE = {"output_dir": "run", "use_cpu": True, "bf16": False, "num_iterations": 2, "report_to": "none"}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 5}
A = {"beta": 0.1, "ref_reset_every": 9}
# Keys, and by hand what of TRL's training they change.
CHANGED = [
    ({}, ""),
    ({"beta": 0.1}, ""),
    ({"beta": 0.1, "kl_estimator": "k2"}, "adds_penalty"),
    ({"beta_old": 0.1}, "adds_penalty"),
    ({"beta_base": 0.1, "kl_target": 0.1}, "adds_penalty"),
    ({"loss_mode": "no_ratio", "beta": 0.1}, "adds_penalty"),
    ({"loss_mode": "unclipped"}, "STEP"),
    ({"trust_region": "ipo"}, "STEP"),
    (A, "resets changes_at_boundary"),
    ({"beta": 0.1, "ref_reset_kl": 0.1}, "resets changes_at_boundary"),
    ({"beta": 0.1, "ref_reset_stall": 2, **EVALUATED}, "resets changes_at_boundary"),
    ({"beta": 0.1, "guard_gap": 0.1}, ""),
    ({"beta": 0.1, "guard_gap": 0.1, "guard_gap_action": "reset"}, "resets changes_at_boundary"),
    ({"elastic_reset_every": 5}, "changes_at_boundary"),
    ({"lora_growth_every": 5}, "changes_at_boundary"),
    ({"dynamic_sampling_rounds": 2}, "STEP"),
    ({"advantage_estimator": "rloo"}, "STEP"),
    ({"skip_zero_rows": True}, "STEP"),
    ({"reuse_old_logps": True}, "STEP"),
    ({"pack_groups": "auto"}, "STEP"),
    ({"entropy_floor": 0.1}, ""),
    ({"optimizer_reset": "keep", "nonfinite": "stop"}, ""),
]


@pytest.mark.parametrize("keys, changed", CHANGED, ids=lambda value: str(value))
def test_what_the_keys_change(keys, changed):
    args = ProRLConfig(**BASE, **keys)
    assert args.is_trl == (changed == "")
    for name in ("resets", "changes_at_boundary", "adds_penalty"):
        assert getattr(args, name) == (name in changed.split()), name


IN_REWARD = {"beta": 0.1, "kl_in": "reward", "advantage_estimator": "rloo"}
SKIPS = [
    ({}, False),
    ({"skip_zero_rows": True}, True),
    ({"fast": True}, True),
    ({"fast": True, "skip_zero_rows": False}, False),
    ({"fast": True, "beta": 0.1}, False),
    ({"fast": True, "beta": 0.1, "drop_zero_rows": True}, True),
    ({"fast": True, **IN_REWARD}, True),
    ({"fast": True, **IN_REWARD, "kl_target": 0.1}, False),
    ({"fast": True, **IN_REWARD, "kl_target": 0.1, "drop_zero_rows": True}, False),
    ({"fast": True, "beta_old": 0.1}, False),
    ({"fast": True, "beta_base": 0.1}, False),
    ({"fast": True, "beta_base": 0.1, "base_anchor_every": 2}, True),
    ({"fast": True, "entropy_coef": 0.1}, False),
    ({"fast": True, "use_adaptive_entropy": True, "entropy_target": 0.1}, False),
    ({"fast": True, "top_entropy_quantile": 0.5}, False),
    ({"fast": True, "entropy_floor": 0.1}, False),
    ({"skip_zero_rows": True, "entropy_floor": 0.1}, True),
]


@pytest.mark.parametrize("keys, skips", SKIPS, ids=str)
def test_rows_without_a_gradient_are_skipped_where_nothing_needs_them(keys, skips):
    args = ProRLConfig(**BASE, **keys)
    assert args.skips_zero_rows == skips
    args.disabled_reason = "an active dropout"  # which draws other numbers for fewer rows
    assert args.skips_zero_rows == (skips and "skip_zero_rows" in keys)


def test_no_row_is_skipped_that_a_trigger_of_a_script_may_watch():
    args = ProRLConfig(**BASE, fast=True, **IN_REWARD)
    args.has_own_triggers = True
    assert not args.skips_zero_rows


def test_skipping_is_a_change_even_alone():
    off = {"reuse_old_logps": False, "pack_groups": "off", "compact_generation": "off"}
    assert not ProRLConfig(**BASE, fast=True, **off).is_trl
    assert ProRLConfig(**BASE, fast=True, skip_zero_rows=False, **off).is_trl


def test_what_the_keys_change_follows_a_key_that_is_set_later():
    args = ProRLConfig(**BASE, beta=0.1)
    assert args.is_trl
    args.ref_reset_every = 5
    assert args.resets and args.changes_at_boundary and not args.is_trl


def test_an_acceleration_that_is_disabled_changes_nothing():
    args = ProRLConfig(**BASE, fast=True)
    assert not args.is_trl
    args.disabled_reason = "it is not possible"
    assert args.is_trl


def test_an_option_of_resets_stays_for_the_triggers_of_a_script(caplog):
    args = ProRLConfig(**BASE, beta=0.1, optimizer_reset="hard")
    assert args.optimizer_reset == "hard" and "optimizer_reset=" in caplog.text


def test_an_ablation_of_the_kl_trains_as_without_the_keys_that_need_it(run, largest_difference):
    ablated = run(beta=0.0, kl_target=0.1, ref_reset_every=1, ref_compute="naive_epoch")
    assert largest_difference(ablated, run()) == 0.0
    assert ablated.args.is_trl and not read_events(ablated, "reset")
    optimizer_alone = run(beta=0.0, ref_reset_every=1, optimizer_reset="hard", num_iterations=1, max_steps=3)
    resets = [(event["optimizer_reset"], event["ref_reset_mix"]) for event in read_events(optimizer_alone, "reset")]
    assert resets == [("hard", 0.0), ("hard", 0.0)]


@pytest.mark.parametrize(
    "key, meant",
    [
        ("ref_reset_evry", "ref_reset_every"),
        ("gradient_acumulation_steps", "gradient_accumulation_steps"),  # transformers'
        ("lr", "learning_rate"),
        ("zzz", ""),
    ],
)
def test_a_misspelt_key_is_one_line_with_what_was_meant(key, meant):
    with pytest.raises(TypeError, match=f"{key}=3") as refusal:
        ProRLConfig(output_dir="a", **{key: 3})
    assert meant in str(refusal.value)


@pytest.mark.parametrize("key", ["learning_rate", "warmup_steps"])
def test_text_in_place_of_a_number_is_one_line(key):
    """In a script; a recipe's is read as a number."""
    with pytest.raises(ValueError, match=f"{key}='1e-5'") as error:
        ProRLConfig(**BASE | {key: "1e-5"})
    assert "\n" not in str(error.value)
