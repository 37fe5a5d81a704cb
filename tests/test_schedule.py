"""A restarted learning-rate schedule runs as it did the first time."""

import pytest
import torch
from accelerate import Accelerator
from transformers import get_scheduler

from trl_prorl.schedule import restart_schedule, snapshot_schedule


def lambda_schedule(name):
    return lambda optimizer: get_scheduler(name, optimizer, num_warmup_steps=2, num_training_steps=10)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda_schedule("linear"),
        lambda_schedule("cosine"),
        lambda_schedule("constant_with_warmup"),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=10
        ),  # recursive, not closed form
    ],
    ids=["linear", "cosine", "warmup", "torch cosine"],
)
def test_the_rates_after_a_restart_are_those_of_a_new_schedule(make, wrapped):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = make(optimizer)
    start = snapshot_schedule(schedule)
    if wrapped:
        optimizer, schedule = Accelerator(cpu=True).prepare(optimizer, schedule)

    def rates(steps):
        seen = []
        for _ in range(steps):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return seen

    first = rates(6)
    assert len(set(first)) > 1
    restart_schedule(schedule, start)
    assert rates(6) == pytest.approx(first)
    restart_schedule(schedule, start)  # the snapshot is not used up
    assert rates(3) == pytest.approx(first[:3])
