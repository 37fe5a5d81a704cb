"""
What transformers and PEFT accept and then leave unread, or compute NaN with. A run would go on as if nothing had been
asked, so it is refused where they make the thing. What they refuse themselves is left to them.
"""

import copy
import logging
import math
from typing import Any

import torch
from peft import PeftConfig
from transformers import GenerationConfig, Trainer

from ..config import ProRLConfig
from ..text import short


logger = logging.getLogger(__name__)

NO_ARGUMENTS = ("constant", "constant_with_warmup")  # schedules that transformers makes without lr_scheduler_kwargs


def check_optim_args(args: ProRLConfig, model: torch.nn.Module) -> None:
    """Raise `ValueError` for an entry of `optim_args` that the optimizer does not read, or that is not finite."""
    given = f"optim_args={args.optim_args!r}"
    entries = (args.optim_args or "").replace(" ", "").split(",")
    for entry in filter(None, entries):
        name, _, value = entry.partition("=")
        if value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            raise ValueError(f"{given}: {name} must be finite. Correct it.")
        if not _reads(args, model, name):
            raise ValueError(f"{given}: optim={args.optim.value!r} takes no {name!r}. Leave it out.")


def _reads(args: ProRLConfig, model: torch.nn.Module, name: str) -> bool:
    """Return whether some value of an argument reaches the optimizer."""
    changed = copy.copy(args)
    changed.optim_args = None
    without = Trainer.get_optimizer_cls_and_kwargs(changed, model)
    for value in ("0.123", "1", "float16"):
        changed.optim_args = f"{name}={value}"
        try:
            arguments = Trainer.get_optimizer_cls_and_kwargs(changed, model)
        except Exception:  # it was read, and is of another kind
            return True
        if str(arguments) != str(without):
            return True
    return False


def check_schedule(args: ProRLConfig, schedule: Any, steps: int) -> None:
    """Raise `ValueError` for `lr_scheduler_kwargs` that has no effect, or that makes a learning rate negative."""
    given = f"lr_scheduler_kwargs={args.lr_scheduler_kwargs!r}"
    kind = args.lr_scheduler_type.value
    if args.lr_scheduler_kwargs and kind in NO_ARGUMENTS:
        raise ValueError(
            f"{given} has no effect, because lr_scheduler_type={kind!r} takes no arguments. Leave it out."
        )
    for factor in getattr(schedule, "lr_lambdas", []):
        for step in (0, steps // 2, steps - 1):
            if math.isnan(factor(step)) or factor(step) < 0:
                raise ValueError(
                    f"{given} with lr_scheduler_type={kind!r}: the learning rate of step {step} is {factor(step):.3g} "
                    "times its maximum. Correct it."
                )


def check_generation_kwargs(given: dict[str, Any]) -> None:
    """Raise `ValueError` for a name in `generation_kwargs` that transformers' generation does not know."""
    known = vars(GenerationConfig())
    for name in given:
        if name not in known:
            raise ValueError(
                f"generation_kwargs={short(given)}: transformers' generation takes no {name!r}. Correct it, or leave "
                "it out."
            )


def check_adapter_names(policy: torch.nn.Module, config: PeftConfig) -> None:
    """
    Raise `ValueError` for a name in `modules_to_save` or `target_parameters` that the policy does not have; one in
    `target_modules`, a list that often serves several architectures, is logged.
    """
    modules = [name for name, _ in policy.named_modules()]
    # PEFT has put the layers that it changes one level down.
    parameters = [name.replace(".base_layer", "") for name, _ in policy.named_parameters()]
    for key, there in (("modules_to_save", modules), ("target_parameters", parameters)):
        if key == "modules_to_save" and config.task_type not in (None, "CAUSAL_LM"):
            continue  # PEFT has added the heads of such a task
        for name in getattr(config, key, None) or []:
            if not _is_among(name, there):
                raise ValueError(f"lora_{key}: the model has no {name!r}. Correct it, or leave it out.")
    targets = getattr(config, "target_modules", None) or []
    for name in [] if isinstance(targets, str) else sorted(targets):
        if not _is_among(name, modules):
            logger.warning("lora_target_modules names %r, which the model does not have.", name)


def _is_among(name: str, there: list[str]) -> bool:
    """Return whether a name, or the end of one, is that of a module or a parameter."""
    return any(f".{other}".endswith(f".{name}") for other in there)
