"""Time and memory of a run, by hand."""

import math
from types import SimpleNamespace

import pytest
import torch

from trl_prorl.eval.readiness import cost
from trl_prorl.eval.readiness.cost import cost_findings, seconds_of_run
from trl_prorl.eval.readiness.finding import LOOK, STOP
from trl_prorl.eval.readiness.first_steps import MAX_KL, kl_finding, rate_findings
from trl_prorl.eval.readiness.memory import GIB


FIRST = {"time_step": 10.0, "time_rollout": 6.0, "time_ref": 1.0, "time_update": 3.0, "tokens_per_second": 50.0}
SECOND = {"time_step": 2.0, "time_rollout": 0.0, "time_ref": 0.0, "time_update": 2.0, "tokens_per_second": 150.0}
ARGS = {"gradient_accumulation_steps": 16, "steps_per_generation": 16}


def test_wall_time_by_hand():
    # Ten steps of 2 s, five generations of 7 s; the first row's update of 3 s was warm-up.
    assert seconds_of_run([FIRST, SECOND], 10, 2) == 10 * 2 + 5 * 7
    assert seconds_of_run([FIRST, SECOND], 11, 4) == 11 * 2 + 3 * 7
    assert seconds_of_run([FIRST, FIRST | {"time_step": 9.0}], 10, 1) == 90
    assert seconds_of_run([FIRST], 10, 2) == 10 * 3 + 5 * 7
    # The reference scores in every step (ref_compute: naive_epoch): 6 + 1 + 2 s with a generation, 1 + 2 without.
    assert seconds_of_run([FIRST, SECOND | {"time_step": 3.0, "time_ref": 1.0}], 10, 2) == 5 * 9 + 5 * 3


def test_time_and_memory_on_a_gpu(monkeypatch):
    monkeypatch.setattr(cost, "process_share", lambda device: (4 * GIB, 20 * GIB))
    trainer = SimpleNamespace(
        args=SimpleNamespace(**ARGS),
        state=SimpleNamespace(max_steps=10),
        accelerator=SimpleNamespace(device=torch.device("cuda")),
        num_generations=4,
        num_iterations=2,
    )
    rows = [FIRST | {"peak_memory_gib": 19.0}, SECOND | {"peak_memory_gib": 12.0}]
    wall, peak = cost_findings(trainer, rows)
    assert wall.number.startswith("about 55 s")
    assert (peak.number, peak.level) == ("19.0 of 20.0 GiB", LOOK)


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
