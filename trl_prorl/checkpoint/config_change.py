"""
What a changed key does to a run that is resumed with `allow_config_change`: it acts from the checkpoint on, or it is
refused.

Most keys are read where they act, and a checkpoint holds nothing of them. The others say so in their descriptors, or
are TRL's and here: those that a checkpoint's optimizer, schedule and state would bring back, and those that cannot be
changed in the middle of a run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from ..descriptor import switched_on
from ..keys import KEYS
from .generation_buffer import buffer_file


# The same state, computed by another kernel.
SAME_OPTIMIZER = {"adamw_torch", "adamw_torch_fused"}
# Their rate depends on the rates before, and not on the step alone.
PATH_DEPENDENT_SCHEDULES = {"reduce_lr_on_plateau", "greedy"}
SCHEDULE_KEYS = ("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps")
# How a generation batch is cut into micro-batches and steps.
BATCH_KEYS = (
    "per_device_train_batch_size gradient_accumulation_steps steps_per_generation generation_batch_size "
    "num_generations num_iterations processes"
).split()
FIXED = {
    **dict.fromkeys(
        ("seed", "data_seed"), "it acts as a run begins, and the checkpoint goes on with random states of its own"
    ),
    **dict.fromkeys(
        "use_peft lora_r lora_target_modules lora_target_parameters lora_modules_to_save use_dora".split(),
        "the checkpoint's weights and the optimizer's state have other shapes",
    ),
    "optim_target_modules": "the checkpoint holds the state of another optimizer",
}


def check_change(changed: Mapping[str, list[Any]], now: Mapping[str, Any], checkpoint: Path) -> None:
    """
    Refuse changes that could not act.

    Args:
        changed (`Mapping[str, list]`): `{key: [then, now]}`, from [`~trl_prorl.checkpoint.identity.check_same_run`].
        now (`Mapping[str, Any]`): What is asked now.
        checkpoint (`Path`): Where the run goes on.

    Raises:
        `ValueError`: naming the key, its two values, why, and what to do.
    """

    def refuse(key: str, why: str) -> None:
        old, new = changed[key]
        raise ValueError(
            f"{key}: {old!r} -> {new!r} cannot be changed by a resume from {checkpoint.name}: {why}. Leave it at "
            f"{old!r}, or begin a run of its own."
        )

    for key, (old, new) in changed.items():
        if why := FIXED.get(key) or (KEYS[key].resume(old, new, now) if key in KEYS else None):
            refuse(key, why)
    if not set(changed.get("optim", ())) <= SAME_OPTIMIZER:
        refuse("optim", "the checkpoint holds the state of another optimizer")
    schedules = {*changed.get("lr_scheduler_type", ()), now.get("lr_scheduler_type")}
    if schedules & PATH_DEPENDENT_SCHEDULES:
        for key in SCHEDULE_KEYS:
            if key in changed:
                refuse(key, "that schedule's rate depends on the rates before it")
    if checkpoint.joinpath(buffer_file(0)).exists():
        for key in BATCH_KEYS:
            if key in changed:
                refuse(key, "it lies inside a generation batch, which was cut by the old value; one at its end can be")
        if switched_on(changed, "beta"):
            refuse("beta", "it lies inside a generation batch without the reference's log-probabilities")


def hyperparameters(optimizer) -> list[dict[str, Any]]:
    """The hyperparameters of every parameter group of an optimizer, as they are now."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def restore_hyperparameters(optimizer, scheduler, asked: list[dict[str, Any]]) -> None:
    """
    Give an optimizer and its schedule, whose states were loaded, the hyperparameters that they were made with.
    Moments, step counts and the schedule's position stay as they are.

    Args:
        optimizer (`torch.optim.Optimizer`), scheduler ([`~torch.optim.lr_scheduler.LRScheduler`]):
            Or Accelerate's wrappers of them.
        asked (`list[dict[str, Any]]`):
            From [`hyperparameters`], of the new optimizer with its schedule, before the states were loaded.
    """
    inner = getattr(scheduler, "scheduler", scheduler)
    for group, values in zip(optimizer.param_groups, asked, strict=True):
        group.update({name: value for name, value in values.items() if name != "lr"})
    if not isinstance(inner, LambdaLR):
        return
    inner.base_lrs = [values["initial_lr"] for values in asked]
    rates = [base * rate(inner.last_epoch) for base, rate in zip(inner.base_lrs, inner.lr_lambdas, strict=True)]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    inner._last_lr = rates
