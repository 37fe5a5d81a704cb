"""A restarted learning-rate schedule runs as it did the first time."""

from functools import partial

import pytest
import torch
from accelerate import Accelerator
from transformers import get_scheduler

from trl_prorl.resets.schedule import Rewarmup, restart_schedule, rewarmup_factor, snapshot_schedule


SCHEDULES = {
    name: partial(get_scheduler, name, num_warmup_steps=2, num_training_steps=10)
    for name in ("linear", "cosine", "constant_with_warmup")
}
SCHEDULES["recursive"] = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=10)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rates_after_a_restart_are_those_of_a_new_schedule(name, wrapped):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = SCHEDULES[name](optimizer)
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


def test_rewarmup_factor_by_hand():
    assert [rewarmup_factor(n, 4) for n in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rewarmup_factor(None, 4) == rewarmup_factor(0, 0) == rewarmup_factor(0, 1) == 1.0


def test_rewarmup_scales_the_update_and_leaves_the_schedule_alone():
    """One that takes each rate from the one before, beside the same one without rewarmup."""
    param, rates, moved = torch.nn.Parameter(torch.zeros(1)), [], []
    plain, optimizer = (torch.optim.SGD([param], lr=1.0) for _ in range(2))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, T_max=10) for each in (plain, optimizer)]
    rewarmup = Rewarmup(optimizer, steps=4)
    for step in range(8):
        if step == 2:
            rewarmup.begin()
        before, param.grad = param.item(), torch.ones(1)
        rates.append([schedule.get_last_lr()[0] for schedule in schedules])
        optimizer.step()
        moved.append((before - param.item()) / rates[-1][0])
        param.grad = None
        plain.step()
        for schedule in schedules:
            schedule.step()
    assert moved == pytest.approx([1, 1, 0.25, 0.5, 0.75, 1, 1, 1], rel=1e-4)
    assert all(mine == pytest.approx(theirs) for theirs, mine in rates)
