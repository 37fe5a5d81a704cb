"""Time and memory of a run, by hand."""

import math
from types import SimpleNamespace

import pytest
import torch

from trl_prorl.eval.readiness import cost
from trl_prorl.eval.readiness.cost import cost_findings, duration, micro_batch_finding, seconds_of_run
from trl_prorl.eval.readiness.finding import LOOK, STOP
from trl_prorl.eval.readiness.first_steps import MAX_KL, kl_finding, rate_findings, update_findings
from trl_prorl.eval.readiness.memory import GIB


FIRST = {"time_step": 10.0, "time_rollout": 6.0, "time_ref": 1.0, "time_update": 3.0, "tokens_per_second": 50.0}
SECOND = {"time_step": 2.0, "time_rollout": 0.0, "time_ref": 0.0, "time_update": 2.0, "tokens_per_second": 150.0}
ARGS = {
    "per_device_train_batch_size": 8,
    "generation_batch_size": 40,
    "gradient_accumulation_steps": 16,
    "steps_per_generation": 16,
    "generate_every": 32,
    "exchangeable_micro_batches": 16,
    "max_completion_length": 512,
}


def test_wall_time_by_hand():
    # Ten steps of 2 s, five generations of 7 s; the first row's update of 3 s was warm-up.
    assert seconds_of_run([FIRST, SECOND], 10, 2) == 10 * 2 + 5 * 7
    assert seconds_of_run([FIRST, SECOND], 11, 4) == 11 * 2 + 3 * 7
    assert seconds_of_run([FIRST, FIRST | {"time_step": 9.0}], 10, 1) == 90
    assert seconds_of_run([FIRST], 10, 2) == 10 * 3 + 5 * 7
    # The reference scores in every step (ref_compute: naive_epoch): 6 + 1 + 2 s with a generation, 1 + 2 without.
    assert seconds_of_run([FIRST, SECOND | {"time_step": 3.0, "time_ref": 1.0}], 10, 2) == 5 * 9 + 5 * 3


def test_a_duration_has_its_units():
    expected = {0.2: "1 s", 59.6: "1 min 0 s", 82: "1 min 22 s", 3599: "59 min 59 s", 7500: "2 h 5 min"}
    assert {seconds: duration(seconds) for seconds in expected} == expected


@pytest.mark.parametrize(
    ("keys", "memory", "number", "change"),
    [
        # Of 80 GiB nine tenths, less 4 that are held: 68. A row took 0.5 at 128 tokens, so 2 at the 512 of its limit.
        ({}, {}, "136 rows (now 8)", "batch_size: 32 and gradient_accumulation_steps: 4 "),
        ({"steps_per_generation": 32}, {}, "136 rows (now 8)", "(and steps_per_generation: 8,"),
        # A row takes no less than it did; all of an update at once.
        ({"max_completion_length": 64, "exchangeable_micro_batches": 32}, {}, "136 rows (now 8)", "batch_size: 128 "),
        ({"exchangeable_micro_batches": 6}, {}, "136 rows (now 8)", "batch_size: 24 "),
        # Completions of any length; the loss divides by what a micro-batch holds; no room for more.
        ({"max_completion_length": None}, {}, "136 rows (now 8)", ""),
        ({"exchangeable_micro_batches": 1}, {}, "136 rows (now 8)", ""),
        ({}, {"per_row": 5.0}, "13 rows (now 8)", ""),
        # In groups of 6; less than now, and less than a group; not a row.
        ({}, {"per_row": 5.0, "group": 6}, "12 rows (now 8)", ""),
        ({"per_device_train_batch_size": 16}, {"per_row": 5.0, "group": 6}, "12 rows (now 16)", "batch_size: 12,"),
        ({}, {"per_row": 20.0}, "3 rows (now 8)", "batch_size: 3,"),
        ({}, {"held": 73.0}, "0 rows (now 8)", ""),
    ],
)
def test_rows_that_fit_by_hand(keys, memory, number, change):
    given = {"group": 1, "held": 4.0, "total": 80.0, "per_row": 0.5, "length": 128.0} | memory
    finding = micro_batch_finding(SimpleNamespace(**ARGS | keys), **given)
    assert finding.number == number
    assert finding.level == (LOOK if change else "fine")
    assert change in finding.change


def test_rows_are_exchangeable_where_the_loss_divides_by_all_of_an_update(make_trainer):
    """`bnpo` divides by what a micro-batch holds, so that more rows would train otherwise."""
    for loss_type, exchangeable in (("bnpo", 1), ("dapo", 4)):
        trainer = make_trainer(loss_type=loss_type, per_device_train_batch_size=4, gradient_accumulation_steps=4)
        assert trainer.args.exchangeable_micro_batches == exchangeable


def test_tokens_that_fit_where_micro_batches_are_merged(monkeypatch):
    """Two of 16 micro-batches at once: 8 GiB for 16 rows of 1,000 tokens, and 14 are free."""
    monkeypatch.setattr(cost, "process_share", lambda device: (4 * GIB, 20 * GIB))
    trainer = SimpleNamespace(
        args=SimpleNamespace(**ARGS),
        accelerator=SimpleNamespace(device=torch.device("cuda"), num_processes=1),
        num_generations=4,
        merging=object(),
    )
    row = SECOND | {"peak_memory_gib": 12.0, "policy_forward_calls": 8, "tokens_processed_policy": 8000}
    peak, rows, tokens = cost.memory_findings(trainer, [row])
    assert rows.number.startswith("28 rows")
    assert tokens.number == "1,750 tokens (now 1,000)"
    assert "merge_tokens: 1750" in tokens.change
    _, _, tokens = cost.memory_findings(trainer, [row | {"policy_forward_calls": 1, "tokens_processed_policy": 1000}])
    assert tokens.level == "fine"


def test_time_and_memory_on_a_gpu(monkeypatch):
    """4 GiB are held. A rollout does not depend on the micro-batch, so 8 rows take 8 of the second step's 12 GiB."""
    monkeypatch.setattr(cost, "process_share", lambda device: (4 * GIB, 20 * GIB))
    trainer = SimpleNamespace(
        args=SimpleNamespace(**ARGS),
        state=SimpleNamespace(max_steps=10),
        accelerator=SimpleNamespace(device=torch.device("cuda")),
        num_generations=4,
        num_iterations=2,
    )
    rows = [FIRST | {"time_reward": 4.0, "peak_memory_gib": 19.0}, SECOND | {"peak_memory_gib": 12.0}]
    found = {finding.what: finding for finding in cost_findings(trainer, rows)}
    assert found["seconds by stage"].values["time_update"] == 3.0
    assert found["tokens per second"].number == "100"
    assert found["wall time of 10 steps"].number.startswith("about 55 s")
    rewards = found["rewards in a step that generates"]
    assert (rewards.number, rewards.level) == ("40 %", LOOK)
    peak = found["peak memory"]
    assert (peak.number, peak.level) == ("19.0 of 20.0 GiB", LOOK)
    assert found["largest micro-batch that fits"].number == "12 rows (now 8)"  # (18 − 4) / 1 = 14, in groups of 4


def test_the_first_update():
    calm = update_findings([{"entropy": 0.8, "clip_region_mean": 0, "lr": 1.0}, {"clip_region_mean": 0.03, "lr": 1.0}])
    assert [finding.number for finding in calm] == ["0.800 nats per token", "3.0 %"]
    assert {finding.level for finding in calm} == {"fine"}
    wild = update_findings([{"entropy": 0.01, "clip_region_mean": 0.0}, {"clip_region_mean": 0.3, "lr": 0.0}])
    assert [finding.level for finding in wild] == [LOOK, LOOK]
    (of_sequences,) = update_findings([{"clip_region_mean": 0.5}], "sequence")  # as GSPO's range means to
    assert (of_sequences.number, of_sequences.level) == ("50.0 %", "fine")


HALF = torch.tensor([[0.5, 0.5, 1e-9], [0.5, 0.5, 0.0]]).log()
BEFORE = torch.tensor([[0.75, 0.75, 1.0], [0.75, 0.25, 1.0]]).log()


@pytest.mark.parametrize(
    ("after", "distance"),
    [
        # Two tokens, 3/4 and 1/4 before, 1/2 each after, sampled in those shares: the k3 of the samples add up to
        # this. The last place is padding.
        (HALF, 0.75 * math.log(1.5) + 0.25 * math.log(0.5)),
        (BEFORE, 0.0),
        # Where the ratio of the other direction overflows, this one is the fall of the log-probability, less 1.
        (BEFORE - 1000.0, 999.0),
        (BEFORE + math.nan, None),
    ],
)
def test_the_distance_is_the_kl_of_the_policy_before_from_the_one_after(after, distance):
    batch = {"completion_mask": torch.tensor([[1, 1, 0], [1, 1, 0]])}
    found = kl_finding(BEFORE, after, batch, [1.0])
    assert found.values["kl"] == (None if distance is None else pytest.approx(distance, rel=1e-6))
    assert found.level == ("fine" if distance is not None and distance <= MAX_KL else STOP)
    nothing = kl_finding(BEFORE, after, {"completion_mask": torch.zeros(2, 3, dtype=torch.long)}, [1.0])
    assert (nothing.level, nothing.values) == ("fine", {})  # by mask_truncated_completions


def test_a_rate_by_which_nothing_is_learnt():
    (none,), (low,), (fine,) = (rate_findings(rate, lora=True) for rate in (0.0, 1e-6, 1e-5))
    assert [none.level, low.level, fine.level] == [STOP, LOOK, "fine"]
