"""Time and memory of a run, by hand."""

import math

import psutil
import pytest
import torch

from trl_prorl.eval.readiness.cost import (
    BatchShape,
    cost_findings,
    duration,
    larger_micro_batch,
    largest_micro_batch,
    process_memory,
    process_memory_finding,
    seconds_of_run,
)
from trl_prorl.eval.readiness.finding import LOOK, STOP
from trl_prorl.eval.readiness.first_steps import (
    MAX_KL,
    FirstSteps,
    kl_after_updates,
    kl_finding,
    rate_findings,
    update_findings,
)


FIRST = {"time_step": 10.0, "time_rollout": 6.0, "time_ref": 1.0, "time_update": 3.0, "tokens_per_second": 50.0}
SECOND = {"time_step": 2.0, "time_rollout": 0.0, "time_ref": 0.0, "time_update": 2.0, "tokens_per_second": 150.0}


def test_wall_time_by_hand():
    # Ten steps of 2 s, five generations of 7 s; the first row's update of 3 s was warm-up.
    assert seconds_of_run([FIRST, SECOND], 10, 2) == 10 * 2 + 5 * 7
    assert seconds_of_run([FIRST, SECOND], 11, 4) == 11 * 2 + 3 * 7
    assert seconds_of_run([FIRST, FIRST | {"time_step": 9.0}], 10, 1) == 90
    assert seconds_of_run([FIRST], 10, 2) == 10 * 3 + 5 * 7


def test_a_duration_has_its_units():
    expected = {0.2: "1 s", 59.6: "1 min 0 s", 82: "1 min 22 s", 3599: "59 min 59 s", 7500: "2 h 5 min"}
    assert {seconds: duration(seconds) for seconds in expected} == expected


def test_rows_that_fit_by_hand():
    assert largest_micro_batch(10, 2, 100, 8) == 40  # (90 − 10) / 2
    assert largest_micro_batch(10, 2.5, 100, 6) == 30  # 32, in groups of 6
    assert largest_micro_batch(84, 2, 100, 8) == 3
    assert largest_micro_batch(95, 2, 100, 8) == 0


def test_a_larger_micro_batch_leaves_every_update_its_rows():
    assert larger_micro_batch(8, 70, 16) == 64
    assert larger_micro_batch(8, 63, 16) == 32
    assert larger_micro_batch(8, 1000, 16) == 128
    assert larger_micro_batch(8, 70, 6) == 48
    assert larger_micro_batch(8, 70, 5) == 40
    assert larger_micro_batch(8, 15, 16) == larger_micro_batch(8, 1000, 1) == 8


def test_a_card_with_room_for_more_rows():
    """Of 80 GiB nine tenths, less 4 that are held: 68. A row took 0.5 at 128 tokens, so 2 at the 512 of its limit."""
    rows = [FIRST | {"peak_memory_gib": 50.0}, SECOND | {"peak_memory_gib": 8.0, "completion_length": 128.0}]
    first = FirstSteps(rows, 10, 2, 4.0, 80.0)

    def of(**keys):
        shape = {"micro_batch": 8, "group": 8, "completions": 128, "accumulation": 16, "per_generation": 16}
        found = cost_findings(first, BatchShape(**shape | {"most": 512, "exchangeable": 16} | keys), 0.0)
        return next(finding for finding in found if finding.what.startswith("largest"))

    finding = of()
    assert finding.number == "136 rows (now 8)"
    assert finding.level == LOOK
    assert "per_device_train_batch_size: 32 and gradient_accumulation_steps: 4 " in finding.change
    assert finding.values["advised"] == 32
    assert "gradient_accumulation_steps: 4 (and steps_per_generation: 8," in of(per_generation=32).change
    assert of(most=128).values["advised"] == 128  # all of an update at once
    assert of(most=64, exchangeable=32).values["advised"] == 128  # a row takes no less than it did
    assert of(most=None).level == "fine"  # completions of any length
    assert of(exchangeable=1).level == "fine"  # the loss divides by what a micro-batch holds
    assert of(micro_batch=32, exchangeable=4).values["advised"] == 128


def test_rows_are_exchangeable_where_the_loss_divides_by_all_of_an_update(make_trainer):
    """`bnpo` divides by what a micro-batch holds, so that more rows would train otherwise."""
    keys = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    for loss_type, advised in (("bnpo", 4), ("dapo", 8)):
        trainer = make_trainer(loss_type=loss_type, **keys)
        shape = BatchShape.of(trainer.args, trainer.num_generations)
        assert larger_micro_batch(shape.micro_batch, 8, shape.exchangeable) == advised


def test_on_a_cpu_memory_is_that_of_the_process():
    assert process_memory_finding(11.7, 24.0).level not in (LOOK, STOP)
    assert process_memory_finding(21.7, 24.0).level == LOOK  # above nine tenths
    peak, total = process_memory()
    assert psutil.Process().memory_info().rss / 2**30 - 0.1 <= peak <= total


def test_memory_is_that_of_a_gpu():
    def findings(first, micro_batch=8):
        shape = BatchShape(micro_batch, 4, 40, accumulation=5, per_generation=5, most=None, exchangeable=5)
        found = {finding.what: finding for finding in cost_findings(first, shape, 0.1)}
        largest = next((finding for what, finding in found.items() if what.startswith("largest")), None)
        return found, found.get("peak memory"), largest

    def on_gpu(held, *peaks):
        rows = [{**row, "peak_memory_gib": peak} for row, peak in zip((FIRST, SECOND), peaks, strict=False)]
        return FirstSteps(rows, 10, 2, held, 20.0)

    found, peak, largest = findings(FirstSteps([FIRST, SECOND], 10, 2))
    assert peak is largest is None
    assert found["tokens per second"].number == "100"
    assert found["wall time of 10 steps"].number.startswith("about 55 s")
    rewards = found["rewards in a step that generates"]
    assert (rewards.number, rewards.level) == ("40 %", LOOK)
    _, peak, largest = findings(on_gpu(4.0, 10.0, 12.0))
    assert peak.number == "12.0 of 20.0 GiB"
    assert largest.number == "12 rows (now 8)"  # (18 − 4) / 1 = 14, in groups of 4
    _, peak, largest = findings(on_gpu(4.0, 19.0, 12.0))
    assert (peak.number, peak.level) == ("19.0 of 20.0 GiB", LOOK)
    assert largest.number == "12 rows (now 8)"  # a rollout takes its memory whatever the micro-batch
    _, _, largest = findings(on_gpu(3.0, 19.0), micro_batch=16)
    assert largest.level == LOOK
    assert "per_device_train_batch_size: 12" in largest.change


def test_the_first_update():
    calm = update_findings([{"entropy": 0.8, "clip_region_mean": 0, "lr": 1.0}, {"clip_region_mean": 0.03, "lr": 1.0}])
    assert [finding.number for finding in calm] == ["0.800 nats per token", "3.0 %"]
    assert {finding.level for finding in calm} == {"fine"}
    wild = update_findings([{"entropy": 0.01, "clip_region_mean": 0.0}, {"clip_region_mean": 0.3, "lr": 0.0}])
    assert [finding.level for finding in wild] == [LOOK, LOOK]


def test_the_distance_is_the_kl_of_the_policy_before_from_the_one_after():
    """
    Two tokens, 3/4 and 1/4 before, 1/2 each after, sampled in those shares: the k3 of the samples add up to
    3/4 ln(3/2) + 1/4 ln(1/2). The last place is padding.
    """
    batch = {"completion_mask": torch.tensor([[1, 1, 0], [1, 1, 0]])}
    old = torch.tensor([[0.75, 0.75, 1.0], [0.75, 0.25, 1.0]]).log()
    new = torch.tensor([[0.5, 0.5, 1e-9], [0.5, 0.5, 0.0]]).log()
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert kl_after_updates(old, new, batch) == pytest.approx(expected, rel=1e-6)
    assert kl_after_updates(old, old, batch) == 0.0
    # Where the ratio of the other direction overflows, this one is the fall of the log-probability, less 1.
    assert kl_after_updates(old, old - 1000.0, batch) == pytest.approx(999.0)


def test_a_batch_in_which_no_token_counts_says_nothing_of_the_rate():
    """As with `mask_truncated_completions`, where every completion was cut off."""
    logps = torch.zeros(2, 3)
    distance = kl_after_updates(logps, logps, {"completion_mask": torch.zeros(2, 3, dtype=torch.long)})
    found = kl_finding(distance, [1.0])
    assert found.level == "fine"
    assert "not measured" in found.number


@pytest.mark.parametrize(
    "kl, level",
    [(0.0, "fine"), (0.06, "fine"), (MAX_KL, "fine"), (0.6, "stop"), (math.inf, "stop"), (math.nan, "stop")],
)
def test_a_policy_that_is_gone_is_a_reason_to_stop(kl, level):
    found = kl_finding(kl, [1.0])
    assert found.level == level
    assert ("destroy" in found.change) == (level == "stop")
    assert found.values["kl"] == (kl if math.isfinite(kl) else None)  # as JSON can hold it


def test_a_rate_by_which_nothing_is_learnt():
    (none,), (low,), (fine,) = (rate_findings(rate, lora=True) for rate in (0.0, 1e-6, 1e-5))
    assert none.level == STOP
    assert low.level == LOOK
    assert fine.level == "fine"
