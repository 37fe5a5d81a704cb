"""Training with packed groups and without the rows that carry no gradient: the same numbers."""

from types import SimpleNamespace

import pytest
import torch
from packed_models import MOE, build
from run_record import read_events
from run_record import read_rows as rows
from tiny_run import constant, vowels
from transformers import AutoTokenizer
from trl import GRPOTrainer

from trl_prorl.errors import InputError
from trl_prorl.reference import Scorer
from trl_prorl.rollout import keep_groups_together
from trl_prorl.supported import LOSS_TYPES


ARMS = {
    "A": {"beta": 0.3, "ref_reset_every": 4},
    "C, naive reference": {"beta": 0.3, "ref_reset_every": 3, "optimizer_reset": "soft", "ref_compute": "naive_epoch"},
    "base anchor": {"beta_old": 0.1, "beta_base": 0.3},
}


# Schedules: a step has a part of a generation, all of it, two of them, and a part that moves from pass to pass.
PART = {"steps_per_generation": 4, "gradient_accumulation_steps": 2}
SCHEDULES = {
    "a part": PART,
    "a micro-batch": {"steps_per_generation": 4, "gradient_accumulation_steps": 1},
    "all": {"steps_per_generation": 4, "gradient_accumulation_steps": 4},
    "two": {"steps_per_generation": 2, "gradient_accumulation_steps": 4},
    "a moving part": {"steps_per_generation": 3, "gradient_accumulation_steps": 2, "num_iterations": 2},
}
# Losses whose gradient depends on which rows share a micro-batch, and one of each of the others' kinds.
OBJECTIVES = {
    "dapo": {},
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "entropy bonus": {"entropy_coef": 0.05},
    "adaptive entropy": {"use_adaptive_entropy": True, "entropy_coef_min": 0.1, "entropy_target": 4.0},
}


CASES = [("a part", objective) for objective in OBJECTIVES]
CASES += [(schedule, "dapo") for schedule in SCHEDULES if schedule != "a part"]
CASES += [("two", "bnpo")]


@pytest.mark.parametrize("schedule, objective", CASES)
def test_every_step_has_the_gradient_of_trl_s_own_rows(run, schedule, objective):
    """TRL itself is the control. No update is so large that rounding could grow."""
    keys = {
        "per_device_train_batch_size": 4,
        "max_completion_length": 12,
        "num_iterations": 1,
        "learning_rate": 1e-6,
        "max_steps": 2,
        **SCHEDULES[schedule],
        **OBJECTIVES[objective],
    }
    theirs = [row["grad_norm"] for row in run(cls=GRPOTrainer, **keys).state.log_history if "grad_norm" in row]
    ours = [row["grad_norm"] for row in rows(run(pack_groups="on", **keys))]
    assert len(theirs) == 2
    assert min(theirs) > 1e-3
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_share_s_groups_come_in_the_order_in_which_it_meets_them():
    permutation = torch.tensor([5, 1, 0, 3, 2, 4, 7, 6])
    assert keep_groups_together(permutation, 4, 8).tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert keep_groups_together(permutation, 4, 4).tolist() == [5, 0, 1, 3, 2, 4, 6, 7]
    assert keep_groups_together(permutation, 2, 4).tolist() == [5, 0, 1, 3, 2, 4, 6, 7]
    assert keep_groups_together(permutation, 4, 1).tolist() == permutation.tolist()
    # Six rows: a group of four and half of the next, in parts of two.
    assert keep_groups_together(permutation[:6], 4, 6).tolist() == [4, 5, 0, 1, 2, 3]


@pytest.mark.parametrize(
    "arm, lora",
    [
        ("A", True),
        ("C, naive reference", True),
        pytest.param("base anchor", True, marks=pytest.mark.slow),
        ("A", False),
    ],
)
def test_steps_packed_and_padded_end_with_the_same_weights(run, largest_difference, arm, lora):
    keys = {
        "max_steps": 6,
        "max_completion_length": 12,
        "lora": lora,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 4,
        **PART,
        **ARMS[arm],
    }
    # With Adam's usual 1e-8 a gradient that is rounding noise becomes an update of full size: of 13,000 weights 65 in
    # one query projection then differ by up to 1e-4, with 1e-6 by 1.7e-5. With SGD, whose updates are as large as the
    # gradients, no weight differs by more than 4e-7 at a rate of 0.1.
    keys |= {} if lora else {"adam_epsilon": 1e-5}
    padded = run(**keys)
    packed = run(pack_groups="on", reuse_old_logps=True, **keys)
    assert largest_difference(padded, packed) < 1e-5
    tokens = [sum(row["tokens_processed_policy"] for row in rows(trainer)) for trainer in (packed, padded)]
    assert tokens[0] < tokens[1]
    calls = {name: [row[name] for row in rows(padded)] for name in ("policy_forward_calls", "ref_forward_calls")}
    assert {name: [row[name] for row in rows(packed)] for name in calls} == calls


ASKED = [{"loss_type": name, "beta": 0.2, "ref_reset_every": 2} for name in LOSS_TYPES if name not in OBJECTIVES]
OTHERS = ({"gradient_checkpointing": True}, {"mask_truncated_completions": True}, {"entropy_coef": 0.1})
ASKED += [{"beta_old": 0.2, "max_completion_length": 12, **keys} for keys in OTHERS]


QUICK = ("cispo", "luspo")  # a ratio of each kind
ASKED = [
    pytest.param(keys, marks=() if keys.get("loss_type", "cispo") in QUICK else pytest.mark.slow) for keys in ASKED
]


@pytest.mark.gpu
@pytest.mark.parametrize("keys", ASKED, ids=str)
def test_every_loss_type_and_what_else_a_recipe_may_ask(run, largest_difference, keys):
    padded, packed = (run(pack_groups=pack, max_steps=4, learning_rate=1e-3, **keys) for pack in ("off", "on"))
    assert largest_difference(padded, packed) < 1e-5
    for mine, theirs in zip(rows(packed), rows(padded), strict=True):
        if "entropy" in theirs:  # not if every completion was truncated
            assert mine["entropy"] == pytest.approx(theirs["entropy"], rel=1e-5)
    assert "entropy" in rows(padded)[0] or "entropy" in rows(padded)[2]


def solved(completions, prompts, **kwargs):
    """The groups of every second prompt are rewarded alike."""
    alike = ["!" in p[-1]["content"] for p in prompts]
    return [1.0 if same else reward for same, reward in zip(alike, vowels(completions), strict=True)]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "pack, loss_type",
    [
        ("off", "grpo"),
        pytest.param("off", "dapo", marks=pytest.mark.slow),
        ("on", "bnpo"),
        pytest.param("on", "cispo", marks=pytest.mark.slow),
    ],
)
def test_rows_without_gradient_are_left_out_and_change_nothing(run, largest_difference, pack, loss_type):
    keys = {
        "reward": solved,
        "loss_type": loss_type,
        "max_steps": 6,
        "pack_groups": pack,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 16,
    }
    whole = run(**keys)
    less = run(skip_zero_rows=True, **keys)
    assert largest_difference(whole, less) < 1e-5
    skipped = [row["rows_skipped"] for row in rows(less)]
    assert 20 < sum(skipped) < 96
    for mine, theirs, left_out in zip(rows(less), rows(whole), skipped, strict=True):
        if left_out:
            assert mine["tokens_processed_policy"] < theirs["tokens_processed_policy"]
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    assert "rows_skipped" not in rows(whole)[0]


def test_what_stands_for_rows_left_out_changes_no_ratio_and_no_mean():
    """A ratio far from 1 times an advantage of 0 would still be NaN once it overflows; TRL logs the mean entropy."""
    kept = torch.tensor([0, 2])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]])
    old = -torch.rand(3, 3)
    logps = -torch.rand(2, 3)
    entropies = torch.rand(2, 3)
    current = SimpleNamespace(rows=kept, mask=mask, fill=old)
    score = lambda model, ids, of, keep: (logps, entropies, None)  # noqa: E731
    found, filled, _ = Scorer._score_some_rows(score, current, None, mask, mask, 3)
    assert torch.equal(found[1], old[1])
    assert torch.equal(found[kept], logps)
    assert torch.equal(filled[kept], entropies)
    mean = (entropies[0, 0] + entropies[0, 1] + entropies[1, 0]).item() / 3
    assert filled[mask.bool()].mean().item() == pytest.approx(mean)


def test_rows_with_a_gradient_are_chosen_by_hand():
    """The first and third; all; and, where no row has an advantage, the shortest."""
    scores = Scorer(SimpleNamespace(skips_zero_rows=True), None, None, acceleration=None, text_only=True)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    for advantages, kept in (([1.0, 0.0, -2.0], [0, 2]), ([1.0, float("nan"), 2.0], None), ([0.0, 0.0, 0.0], [1])):
        batch = {"advantages": torch.tensor(advantages), "completion_mask": mask}
        for _ in range(2):
            found = scores.rows_to_score(batch, needs_all=False)
            assert found is kept or found.tolist() == kept
        assert scores.rows_to_score(batch, needs_all=True) is None


WATCHED = {"use_adaptive_entropy": True, "entropy_coef": 0.0, "entropy_coef_min": 0.0, "entropy_coef_delta": 0.1}


@pytest.mark.parametrize(
    "keys", [{"beta_old": 0.5}, {"entropy_coef": 0.1}, WATCHED | {"entropy_target": 4.2}], ids=str
)
def test_rows_on_which_something_else_acts_stay(run, largest_difference, keys):
    """An adaptive entropy bonus watches them while it is zero."""
    keys |= {"reward": solved, "max_steps": 4, "learning_rate": 1e-3}
    whole = run(**keys)
    kept = run(skip_zero_rows=True, **keys)
    assert largest_difference(whole, kept) == 0.0
    assert all(row["rows_skipped"] == 0 for row in rows(kept))
    assert whole.entropy_coef == kept.entropy_coef


@pytest.mark.parametrize("keys", [{"beta_old": 0.5}, {"beta": 0.2, "kl_target": 0.01, "kl_horizon": 1}], ids=str)
def test_rows_that_carry_a_penalty_go_where_the_recipe_drops_them_and_steer_no_coefficient(
    run, largest_difference, keys
):
    keys |= {"reward": solved, "max_steps": 4, "per_device_train_batch_size": 16, "learning_rate": 1e-3}
    dropped = run(drop_zero_rows=True, **keys)
    skipped = run(drop_zero_rows=True, skip_zero_rows=True, **keys)
    assert largest_difference(dropped, skipped) < 1e-5
    assert sum(row["rows_skipped"] for row in rows(skipped)) > 10
    for mine, theirs in zip(rows(skipped), rows(dropped), strict=True):
        assert mine.get("kl_ref", 0.0) == pytest.approx(theirs.get("kl_ref", 0.0), rel=1e-4, abs=1e-7)
    assert largest_difference(run(**keys), dropped) > 1e-4  # another objective


STEERED = [
    {"beta": 0.3, "kl_target": 0.02, "kl_horizon": 1},
    {"beta_base": 0.3, "base_anchor_every": 2, "kl_target": 0.02, "kl_horizon": 1},
    {"beta": 0.3, "ref_reset_kl": 5e-4},
]


@pytest.mark.parametrize("keys", STEERED, ids=str)
@pytest.mark.parametrize("estimator", ["max", "best_of_group"])
def test_a_kl_in_the_reward_steers_by_all_rows(run, largest_difference, keys, estimator):
    """The estimators leave most rows without a gradient; the measured KL is theirs, too."""
    keys |= {"kl_in": "reward", "advantage_estimator": estimator, "reward": solved, "max_steps": 6}
    keys |= {"optim": "sgd", "learning_rate": 0.2, "num_iterations": 2}
    whole = run(**keys)
    fast = run(fast=True, compact_generation="off", **keys)
    assert largest_difference(whole, fast) < 1e-5
    names = ("beta", "beta_base", "kl_ref", "kl_base")
    mine, theirs = ([row[name] for row in rows(one) for name in names if name in row] for one in (fast, whole))
    assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-6)
    resets = [[event["step_applied"] for event in read_events(one)] for one in (fast, whole)]
    assert resets[0] == resets[1]
    assert bool(resets[0]) == ("ref_reset_kl" in keys)


def test_a_kl_in_the_reward_is_measured_over_dropped_rows_too(run):
    """All rows' rewards have it, so those without an advantage count, too."""
    keys = {"kl_in": "reward", "advantage_estimator": "max", "reward": solved, "max_steps": 2, "num_iterations": 1}
    keys |= {"beta": 0.3, "kl_target": 0.02, "optim": "sgd", "learning_rate": 0.2}
    whole, dropped = (rows(run(**keys, drop_zero_rows=drops)) for drops in (False, True))
    assert [row["kl_ref"] for row in dropped] == [row["kl_ref"] for row in whole]


def test_a_batch_without_any_gradient_changes_nothing(run, largest_difference):
    keys = {"reward": constant(0.5), "skip_zero_rows": True, "max_steps": 3, "lora": False}
    ends = [run(pack_groups=pack, **keys) for pack in ("off", "on")]
    assert all([row["rows_skipped"] for row in rows(trainer)] == [7, 7, 7] for trainer in ends)
    assert largest_difference(*ends) == 0.0


def test_rows_that_a_load_balancing_loss_acts_on_stay(run, largest_difference, tiny_model):
    tokens = AutoTokenizer.from_pretrained(tiny_model)
    sizes = MOE | {"vocab_size": len(tokens), "pad_token_id": tokens.pad_token_id, "head_dim": 8}
    keys = {"reward": solved, "lora": False, "max_steps": 3, "num_iterations": 1, "router_aux_loss_coef": 1.0}
    ways = ({"cls": GRPOTrainer}, {}, {"skip_zero_rows": True})
    theirs, whole, kept = (run(model=build("qwen3_moe", **sizes), **keys, **way) for way in ways)
    assert largest_difference(theirs, whole) == largest_difference(whole, kept) == 0.0


@pytest.mark.parametrize("key, value", [("skip_zero_rows", True), ("dynamic_sampling_rounds", 2)])
def test_images_are_refused_where_rows_are_chosen(make_trainer, key, value):
    with pytest.raises(InputError, match=f"^{key}={value} .*images"):
        make_trainer(columns={"image": ["none"] * 16}, **{key: value})
