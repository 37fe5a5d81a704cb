"""Learning rates after a reset: the schedule from its start, and the rewarmup."""

from functools import partial

import pytest
import torch
from accelerate import Accelerator
from transformers import (
    get_scheduler,
)

from trl_prorl.optimizer import Rewarmup, restart_schedule, rewarmup_factor, snapshot_schedule
from trl_prorl.supported import SCHEDULES


MORE = {
    "cosine_with_min_lr": {"min_lr": 0.01},
    "cosine_warmup_with_min_lr": {"min_lr": 0.01},
    "warmup_stable_decay": {"num_decay_steps": 4},
}


RESTARTED = {
    name: partial(
        get_scheduler, name, num_warmup_steps=2, num_training_steps=10, scheduler_specific_kwargs=MORE.get(name)
    )
    for name, schedule in SCHEDULES.items()
    if schedule.restarts
}


RESTARTED["recursive"] = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=10)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("name", "kind"), [*((name, float) for name in RESTARTED), ("cosine", torch.tensor), ("recursive", torch.tensor)]
)
def test_the_rates_after_a_restart_are_those_of_a_new_schedule(name, kind, wrapped):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=kind(0.1))
    schedule = RESTARTED[name](optimizer)
    start = snapshot_schedule(schedule)
    if wrapped:
        optimizer, schedule = Accelerator(cpu=True).prepare(optimizer, schedule)

    def rates(steps):
        seen = []
        for _ in range(steps):
            seen.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            schedule.step()
        return seen

    first = rates(6)
    assert len(set(first)) > 1 or name == "constant"
    restart_schedule(schedule, start)
    assert rates(6) == pytest.approx(first)
    restart_schedule(schedule, start)  # the snapshot is not used up
    assert rates(3) == pytest.approx(first[:3])


def test_rewarmup_factor_by_hand():
    assert [rewarmup_factor(n, 4) for n in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rewarmup_factor(None, 4) == rewarmup_factor(0, 0) == rewarmup_factor(0, 1) == 1.0


def test_rewarmup_scales_the_update_and_leaves_the_schedule_alone():
    """One that takes each rate from the one before, beside the same one without rewarmup."""
    param = torch.nn.Parameter(torch.zeros(1))
    rates = []
    moved = []
    plain, optimizer = (torch.optim.SGD([param], lr=1.0) for _ in range(2))
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, T_max=10) for each in (plain, optimizer)]
    rewarmup = Rewarmup(steps=4)
    rewarmup.attach(optimizer)
    for step in range(8):
        if step == 2:
            rewarmup.begin()
        before = param.item()
        param.grad = torch.ones(1)
        rates.append([schedule.get_last_lr()[0] for schedule in schedules])
        optimizer.step()
        moved.append((before - param.item()) / rates[-1][0])
        param.grad = None
        plain.step()
        for schedule in schedules:
            schedule.step()
    assert moved == pytest.approx([1, 1, 0.25, 0.5, 0.75, 1, 1, 1], rel=1e-4)
    assert all(mine == pytest.approx(theirs) for theirs, mine in rates)


def test_a_rewarmup_scales_the_optimizer_that_takes_another_one_s_place():
    param = torch.nn.Parameter(torch.zeros(1))
    rewarmup = Rewarmup(steps=4)
    for _ in range(2):
        optimizer = torch.optim.SGD([param], lr=1.0)
        for _ in range(2):  # the bare optimizer, and as it is passed again
            rewarmup.attach(optimizer)
    rewarmup.begin()
    param.grad = torch.ones(1)
    optimizer.step()
    assert param.item() == -0.25


def test_a_step_without_gradient_is_no_update_of_a_rewarmup():
    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=1.0)
    rewarmup = Rewarmup(steps=4)
    rewarmup.attach(optimizer)
    rewarmup.begin()
    factors = []
    for gradient in (torch.ones(1), None, torch.ones(1)):
        factors.append(rewarmup.factor)
        param.grad = gradient
        optimizer.step()
    assert factors == [0.25, 0.5, 0.5]
