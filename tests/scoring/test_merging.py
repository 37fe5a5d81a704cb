"""Micro-batches of an update, computed at once: the gradients of TRL, which computes them one by one."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from run_record import TIMED, read_rows
from tiny_run import BEST, QUESTIONS, vowels
from transformers import TrainerCallback
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.fast.acceleration import find_merging_obstacle
from trl_prorl.fast.choice import Choice
from trl_prorl.fast.merged import Merging
from trl_prorl.supported import LOSS_TYPES


class Gradients(TrainerCallback):
    """Keeps the gradient of every update, of all parameters in a row."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = [param.grad.flatten() for _, param in sorted(model.named_parameters()) if param.grad is not None]
        self.seen.append(torch.cat(grads).clone())


@pytest.fixture
def gradients(make_trainer, device):
    """
    A function that trains by SGD, whose updates do not blow rounding up: its gradients, and its trainer. On a CPU it
    trains in float64, in which TRL's own rounding (1e-5 of a gradient in float32) does not hide a difference.
    """

    def train(cls=ProRLTrainer, **keys):
        watch = Gradients()
        fixed = {"per_device_train_batch_size": 4, "max_completion_length": 12, "optim": "sgd", "learning_rate": 0.03}
        trainer = make_trainer(cls=cls, trainer_kwargs={"callbacks": [watch]}, **{**fixed, **keys})
        with pytest.MonkeyPatch.context() as patch:
            if device == "cpu":
                trainer.model.double()
                if trainer.ref_model is not None:
                    trainer.ref_model.double()
                use_float64(patch)
            trainer.train()
        return watch.seen, trainer

    return train


def use_float64(patch):
    """Let TRL and transformers compute in float64 where they ask for float32, as in norms and the fused head."""
    patch.setattr(torch, "float32", torch.float64)
    patch.setattr(torch, "float", torch.float64)
    patch.setattr(torch.Tensor, "float", torch.Tensor.double)


def assert_same(mine, theirs):
    assert len(mine) == len(theirs) > 0
    for ours, control in zip(mine, theirs, strict=True):
        assert control.norm() > 1e-3
        bound = 1e-12 if control.dtype is torch.float64 else 1e-5
        assert (ours - control).norm() < bound * control.norm()


ALL = {"steps_per_generation": 4, "gradient_accumulation_steps": 4}
# Forwards of each step, by hand: micro-batches of one update, one pass and one generation batch are one.
SCHEDULES = {
    "all": (ALL, [1, 1, 1, 1]),
    "all, passed once": (ALL | {"num_iterations": 1}, [1, 1, 1, 1]),
    "a part": ({"steps_per_generation": 4, "gradient_accumulation_steps": 2}, [1, 1, 1, 1]),
    "two": ({"steps_per_generation": 2, "gradient_accumulation_steps": 4, "num_iterations": 1}, [2, 2, 2, 2]),
    "two passes": ({"steps_per_generation": 2, "gradient_accumulation_steps": 4}, [2, 2, 2, 2]),
    "a moving part": ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, [1, 2, 1, 1]),
    "cut": ({"steps_per_generation": 2, "gradient_accumulation_steps": 3, "num_iterations": 1}, [2, 2, 2, 2]),
}


# Packed rows are joined as padded ones: where updates and generation batches end decides of both.
QUICK = [("all", "off"), ("two", "off"), ("two passes", "off"), ("a moving part", "on"), ("cut", "off")]


@pytest.mark.parametrize(
    "schedule, pack",
    [
        pytest.param(schedule, pack, marks=() if (schedule, pack) in QUICK else pytest.mark.slow)
        for schedule in SCHEDULES
        for pack in ("off", "on")
    ],
)
def test_an_update_has_the_gradient_of_trl_s_micro_batches(gradients, schedule, pack):
    keys, calls = SCHEDULES[schedule]
    theirs, _ = gradients(GRPOTrainer, beta=0.3, **keys)
    mine, trainer = gradients(merge_micro_batches="on", pack_groups=pack, beta=0.3, **keys)
    assert_same(mine, theirs)
    assert [row["policy_forward_calls"] for row in read_rows(trainer)] == calls


LOSSES = [{"loss_type": name} for name, loss in LOSS_TYPES.items() if loss.aggregation != "batch_mean"]
LOSSES += [{"loss_type": name, "importance_sampling_level": "sequence"} for name in ("grpo", "luspo")]
LOSSES += [{"mask_truncated_completions": True, "loss_type": name} for name in ("dapo", "grpo")]
LOSSES += [{"gradient_checkpointing": True}, {"lora": False}]


@pytest.mark.gpu
@pytest.mark.parametrize("keys", LOSSES, ids=str)
def test_every_loss_that_is_merged_has_trl_s_gradient(gradients, keys):
    keys = (
        ALL | {"max_steps": 2, "beta": 0.3, "temperature": 0.5 if "mask_truncated_completions" in keys else 1.0} | keys
    )
    theirs, _ = gradients(GRPOTrainer, **keys)
    mine, trainer = gradients(merge_micro_batches="on", pack_groups="on", **keys)
    assert_same(mine, theirs)
    assert [row["policy_forward_calls"] for row in read_rows(trainer)] == [1] * 2


def one_is_nan(completions, **columns):
    """NaN for one completion of the third batch."""
    one_is_nan.batches += 1
    rewards = vowels(completions)
    return [float("nan"), *rewards[1:]] if one_is_nan.batches == 3 else rewards


def solved(completions, prompts, **columns):
    alike = ["!" in prompt[-1]["content"] for prompt in prompts]
    return [1.0 if same else reward for same, reward in zip(alike, vowels(completions), strict=True)]


# How many rows of a group without a gradient are skipped: joined all, apart all but one. bnpo leaves groups apart.
SKIPPED = [("dapo", "off", 3), ("grpo", "on", 4), ("bnpo", "off", None)]
SKIPPED += [pytest.param(*case, marks=pytest.mark.slow) for case in (("dapo", "on", 4), ("dr_grpo", "off", 3))]


@pytest.mark.parametrize("loss_type, merge, skipped", SKIPPED)
def test_fast_computes_no_row_without_a_gradient_and_has_trl_s(gradients, loss_type, merge, skipped):
    keys = ALL | {"max_steps": 2, "reward": solved, "loss_type": loss_type}
    theirs, _ = gradients(GRPOTrainer, **keys)
    fast = {"fast": True, "compact_generation": "off", "merge_micro_batches": merge}
    mine, trainer = gradients(**fast, **keys)
    assert_same(mine, theirs)
    _, whole = gradients(**fast, **keys, skip_zero_rows=False)
    for row, of_all in zip(read_rows(trainer), read_rows(whole), strict=True):
        assert 0 < row["rows_skipped"] < 16
        assert skipped is None or row["rows_skipped"] % skipped == 0
        assert row["tokens_processed_policy"] < of_all["tokens_processed_policy"]
        assert row["policy_forward_calls"] == of_all["policy_forward_calls"] == (1 if merge == "on" else 4)


TWO_LARGE = {"per_device_train_batch_size": 8, "steps_per_generation": 2, "gradient_accumulation_steps": 2}
ARMS = {
    "A": {"beta": 0.3, "ref_reset_every": 3, "loss_type": "grpo"},
    "A, reference in every pass": {"beta": 0.3, "ref_reset_every": 3, "ref_compute": "naive_epoch"},
    "B": {"beta_old": 0.3, "num_iterations": 3, "reuse_old_logps": True, "loss_type": "dr_grpo"},
    "an anchor now and then": {"beta_old": 0.1, "beta_base": 0.3, "base_anchor_every": 2, "kl_clamp": 0.01},
    "a trust region": {"trust_region": "dppo_tv", "trust_region_threshold": 1e-3, "reuse_old_logps": True},
    "no ratio": {"loss_mode": "no_ratio", "beta": 0.1, "kl_target": 0.1, "reuse_old_logps": True},
    "fewer rows": {"skip_zero_rows": True, "reward": solved, "loss_type": "grpo", "reuse_old_logps": True},
    "fewer rows, not by group": TWO_LARGE | {"skip_zero_rows": True, "reward": solved, "max_steps": 2},
    "a skipped update": {"nonfinite": "skip", "reward": one_is_nan, "num_iterations": 1},
    "in parts": {"merge_tokens": 120, "importance_sampling_level": "sequence", "epsilon": 1e-4, "loss_type": "grpo"},
    "evaluated": BEST | {"trainer_kwargs": QUESTIONS, "save_strategy": "no", "load_best_model_at_end": False},
}
# What is computed is another matter. Of micro-batches without a gradient one row each is computed, merged or not.
COUNTS = ("policy_forward_calls", "ref_forward_calls", "tokens_processed_policy", "tokens_processed_ref")
LEFT_OUT = {"fewer rows": (*COUNTS, "rows_skipped", "entropy", "mean_abs_dlogp", "kl_old")}


@pytest.mark.parametrize("arm", ARMS)
def test_the_log_has_the_numbers_of_micro_batches(run, arm):
    fixed = {"per_device_train_batch_size": 4, "max_steps": 4, "optim": "sgd", "learning_rate": 0.1}
    keys = ALL | fixed | {"pack_groups": "off" if "by group" in arm else "on"} | ARMS[arm]
    merge_tokens = keys.pop("merge_tokens", None)
    one_is_nan.batches = 0
    plain = run(**keys)
    one_is_nan.batches = 0
    merged = run(merge_micro_batches="on", merge_tokens=merge_tokens, **keys)
    calls = [[row["policy_forward_calls"] for row in read_rows(trainer)] for trainer in (plain, merged)]
    assert calls[0] == [keys["gradient_accumulation_steps"]] * keys["max_steps"]
    assert {*calls[1]} == ({2} if merge_tokens else {1})
    for file in ("metrics.jsonl", "evaluations.jsonl") if arm == "evaluated" else ("metrics.jsonl",):
        for mine, theirs in zip(read_rows(merged, file), read_rows(plain, file), strict=True):
            assert mine.keys() == theirs.keys()
            for name, value in theirs.items():
                if name not in LEFT_OUT.get(arm, COUNTS) and not any(word in name for word in TIMED):
                    assert mine[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    if arm == "a skipped update":
        assert read_rows(merged)[-1]["nonfinite_skips"] == 1
    if "fewer rows" in arm:
        assert sum(row["rows_skipped"] for row in read_rows(merged)) >= 8 * keys["max_steps"]


# ------------------------------------------------------------------------------------- what is joined, by hand


def micro_batch(prompts, lengths, width=4, prompt_width=3):
    """Rows with prompts of these tokens, padded on the left, and completions of so many."""
    ids = torch.tensor([[0] * (prompt_width - len(prompt)) + prompt for prompt in prompts])
    return {
        "prompt_ids": ids,
        "prompt_mask": torch.tensor([[0] * (prompt_width - len(one)) + [1] * len(one) for one in prompts]),
        "completion_ids": torch.ones(len(prompts), width, dtype=torch.long),
        "completion_mask": torch.tensor([[1] * length + [0] * (width - length) for length in lengths]),
        "advantages": torch.arange(float(len(prompts))),
        "num_items_in_batch": torch.tensor(9),
    }


def merging(packs=True, processes=1, gather=None, computed=None, **keys):
    args = {"merge_micro_batches": "on", "merge_tokens": None, "gradient_checkpointing": False} | keys
    accelerator = SimpleNamespace(num_processes=processes, gather=gather, device="cpu")
    rows = computed and torch.tensor(computed)
    return Merging(SimpleNamespace(**args), accelerator, lambda: packs, lambda batch: rows)


def taken(joins, buffer, updates=()):
    """The advantages of what is computed at each micro-batch; `updates` come after these."""
    found = [joins.take(buffer, place, place in updates) for place in range(len(buffer))]
    return [None if batch is None else len(batch["advantages"]) // 2 for batch in found]


# The prompt `5 6` once and two completions with its last token: 1 + (1 + 2) + (1 + 4) tokens, of 14 positions.
ONE = partial(micro_batch, [[5, 6], [5, 6]], [2, 4])
# Two prompts: 1 + 2 and 2 + 1 tokens, and completions of 1 and 0: 3 + 1 = 1 + (1 + 1) + 2 + (1 + 0).
TWO = partial(micro_batch, [[5, 6], [7, 8, 9]], [1, 0])


@pytest.mark.parametrize(
    "keys, updates, expected",
    [
        ({}, (3,), [None, None, None, 4]),
        ({}, (1, 3), [None, 2, None, 2]),
        ({}, (), [None, None, None, 4]),  # the generation batch ends
        ({"merge_tokens": 21}, (3,), [None, None, 3, 1]),  # 9 + 6 + 6 and 9
        ({"merge_tokens": 20}, (3,), [None, 2, None, 2]),
        ({"merge_tokens": 15}, (3,), [None, 2, None, 2]),
        ({"merge_tokens": 14}, (3,), [1, None, 2, 1]),
        ({"merge_tokens": 5}, (3,), [1, 1, 1, 1]),
        ({"merge_tokens": 28, "packs": False}, (3,), [None, 2, None, 2]),
        ({"merge_tokens": 27, "packs": False}, (3,), [1, 1, 1, 1]),
        ({"merge_tokens": 14, "computed": [0]}, (3,), [None, None, None, 4]),  # 1 + 3 tokens, twice 1 + 2, and 1 + 3
        ({"merge_tokens": 13, "computed": [0]}, (3,), [None, None, 3, 1]),
        ({"merge_tokens": 28, "computed": [0], "packs": False}, (3,), [None, None, None, 4]),  # 7 positions each
        ({"merge_tokens": 27, "computed": [0], "packs": False}, (3,), [None, None, 3, 1]),
        ({"merge_micro_batches": "auto"}, (3,), [1, 1, 1, 1]),  # 10.5 tokens
        ({"merge_micro_batches": "auto", "gradient_checkpointing": True}, (3,), [1, None, 2, 1]),  # 14 tokens
        ({"merge_micro_batches": "auto", "gradient_checkpointing": True, "packs": False}, (3,), [1, 1, 1, 1]),
    ],
    ids=str,
)
def test_micro_batches_are_joined_up_to_an_update_a_generation_or_a_number_of_tokens(keys, updates, expected):
    assert taken(merging(**keys), [ONE(), TWO(), TWO(), ONE()], updates) == expected


def test_processes_join_the_same_micro_batches():
    """The other process has one of 16 tokens in the second place, which fits with none."""
    others = torch.tensor([0.5, 1.6, 0.1, 0.1])
    joins = merging(processes=2, merge_tokens=20, gather=lambda own: torch.cat([own, others]))
    assert taken(joins, [ONE(), TWO(), TWO(), ONE()], (3,)) == [1, 1, None, 2]


def test_micro_batches_get_what_a_loss_adds_and_lose_what_it_takes_out():
    joins = merging()
    buffer = [ONE() | {"taken": torch.ones(2, 4)}, TWO() | {"taken": torch.ones(2, 4)}]
    assert taken(joins, buffer) == [None, 2]
    batch = joins.take(buffer, 0, False) or joins.take(buffer, 1, True)
    assert batch["num_items_in_batch"] == 9
    batch["added"] = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    del batch["taken"]
    joins.write_back(batch)
    assert [one["added"].flatten().tolist() for one in buffer] == [[1.0, 2.0], [3.0, 4.0]]
    assert all("taken" not in one and one["num_items_in_batch"] == 9 for one in buffer)
    assert torch.equal(buffer[1]["prompt_ids"], TWO()["prompt_ids"])
    joins.take(buffer, 0, False)
    assert joins.take(buffer, 1, True) is batch  # whose tensors are keys of plans


def test_a_training_that_was_broken_off_holds_nothing_back_for_the_next():
    joins = merging()
    buffer = [ONE(), TWO()]
    joins.take(buffer, 0, False)
    joins.begin()
    assert len(joins.take(buffer, 1, True)["advantages"]) == 2


# ------------------------------------------------------------------------------------------- where it is possible


def find_obstacle(packs=True, cls=ProRLTrainer, device="cuda", **keys):
    args = {
        "merge_obstacle": None,
        "merge_micro_batches": "auto",
        "merge_tokens": None,
    } | keys
    trainer = object.__new__(cls)
    vars(trainer).update(
        args=SimpleNamespace(**args),
        accelerator=SimpleNamespace(device=torch.device(device)),
        _is_vlm=False,
        aux_loss_enabled=False,
        train_dataset=[{"prompt": "say 5"}],
        eval_dataset=None,
    )
    return find_merging_obstacle(trainer, Choice(packs))


class OwnLoss(ProRLTrainer):
    def compute_loss(self, model, inputs, *others, **named):
        return super().compute_loss(model, inputs, *others, **named) + 0 * len(inputs)


def test_auto_acts_on_a_gpu_where_micro_batches_take_the_memory_of_one():
    assert find_obstacle() is None
    assert "not on a CUDA GPU" in find_obstacle(device="cpu")
    assert find_obstacle(device="cpu", merge_micro_batches="on") is None
    assert "merge_tokens" in find_obstacle(packs=False)
    assert find_obstacle(packs=False, merge_tokens=100) is None
    assert find_obstacle(packs=False, merge_micro_batches="on") is None
    assert "OwnLoss" in find_obstacle(cls=OwnLoss)


def test_fast_joins_nothing_on_a_cpu(run):
    trainer = run(fast=True, max_steps=1, per_device_train_batch_size=4, **ALL)
    assert trainer.merging is None
    assert read_rows(trainer)[0]["policy_forward_calls"] == 4


def test_a_subclass_with_its_own_loss_is_refused(make_trainer):
    with pytest.raises(ValueError, match="merge_micro_batches='on'.*OwnLoss"):
        make_trainer(cls=OwnLoss, merge_micro_batches="on", **ALL)
