"""
Settings that transformers and PEFT accept but ignore, or that give NaN. They raise an error here, when the optimizer,
schedule, generation or adapter is created. Settings that the libraries reject themselves are not checked.
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

NO_ARGUMENTS = ("constant", "constant_with_warmup")  # schedules that ignore lr_scheduler_kwargs


def check_optim_args(args: ProRLConfig, model: torch.nn.Module) -> None:
    """Raise `ValueError` for an entry of `optim_args` that the optimizer ignores, or that is not finite."""
    given = f"optim_args={args.optim_args!r}"
    entries = (args.optim_args or "").replace(" ", "").split(",")
    for entry in filter(None, entries):
        name, _, value = entry.partition("=")
        if value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            raise ValueError(f"{given}: {name} must be a finite number.")
        if not _reads(args, model, name):
            raise ValueError(f"{given}: optim={args.optim.value!r} has no argument {name!r}. Remove it.")


def _reads(args: ProRLConfig, model: torch.nn.Module, name: str) -> bool:
    """Return whether some value of an argument reaches the optimizer."""
    changed = copy.copy(args)
    changed.optim_args = None
    without = Trainer.get_optimizer_cls_and_kwargs(changed, model)
    for value in ("0.123", "1", "float16"):
        changed.optim_args = f"{name}={value}"
        try:
            arguments = Trainer.get_optimizer_cls_and_kwargs(changed, model)
        except Exception:  # it was read, and has another type
            return True
        if str(arguments) != str(without):
            return True
    return False


def check_schedule(args: ProRLConfig, schedule: Any, steps: int) -> None:
    """Raise `ValueError` if `lr_scheduler_kwargs` has no effect, or makes a learning rate negative."""
    given = f"lr_scheduler_kwargs={args.lr_scheduler_kwargs!r}"
    kind = args.lr_scheduler_type.value
    if args.lr_scheduler_kwargs and kind in NO_ARGUMENTS:
        raise ValueError(f"{given} has no effect, because lr_scheduler_type={kind!r} has no arguments. Remove it.")
    for factor in getattr(schedule, "lr_lambdas", []):
        for step in (0, steps // 2, steps - 1):
            if math.isnan(factor(step)) or factor(step) < 0:
                raise ValueError(
                    f"{given} with lr_scheduler_type={kind!r} gives a learning rate of {factor(step):.3g} times its "
                    f"maximum at step {step}. Change it so that no learning rate is negative."
                )


def check_generation_kwargs(given: dict[str, Any]) -> None:
    """Raise `ValueError` for a name in `generation_kwargs` that `generate` does not know."""
    known = vars(GenerationConfig())
    for name in given:
        if name not in known:
            raise ValueError(
                f"generation_kwargs={short(given)}: {name!r} is not an argument of transformers' generate. Correct or "
                "remove it."
            )


def check_adapter_names(policy: torch.nn.Module, config: PeftConfig) -> None:
    """
    Raise `ValueError` for a name in `modules_to_save` or `target_parameters` that the policy does not have. A name in
    `target_modules` is only logged, because one list often serves several architectures.
    """
    modules = [name for name, _ in policy.named_modules()]
    # PEFT moves the layers that it changes one level down.
    parameters = [name.replace(".base_layer", "") for name, _ in policy.named_parameters()]
    for key, there in (("modules_to_save", modules), ("target_parameters", parameters)):
        if key == "modules_to_save" and config.task_type not in (None, "CAUSAL_LM"):
            continue  # PEFT adds the heads of such a task
        for name in getattr(config, key, None) or []:
            if not _is_among(name, there):
                raise ValueError(f"lora_{key}: the model has no {name!r}. Correct or remove the name.")
    targets = getattr(config, "target_modules", None) or []
    for name in [] if isinstance(targets, str) else sorted(targets):
        if not _is_among(name, modules):
            logger.warning("lora_target_modules: the model has no %r.", name)


def _is_among(name: str, there: list[str]) -> bool:
    """Return whether a module or a parameter has this name, or a name that ends with it."""
    return any(f".{other}".endswith(f".{name}") for other in there)
