"""Active dropout is refused: it makes every KL noise, and a reused log-probability that of another network."""

from typing import Any

import torch


WHY = (
    "With active dropout two forwards of the same weights differ, so a KL is not 0 where it should be and a reused "
    "log-probability belongs to another network."
)


def check_dropout_config(peft_config: Any | None) -> None:
    """
    Refuse a PEFT configuration with dropout, before a model is loaded.

    Raises:
        `ValueError`: naming the value and the cure.
    """
    rate = getattr(peft_config, "lora_dropout", 0.0)
    if rate:
        raise ValueError(f"lora_dropout={rate} is active. {WHY} Set lora_dropout: 0.0, or disable_dropout: true.")


def check_dropout(model: torch.nn.Module) -> None:
    """
    Refuse a model with active dropout: modules, and rates that attention layers apply themselves.

    Raises:
        `ValueError`: naming the first place and the cure.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            rate, cure = module.p, "Set disable_dropout: true."
        else:
            # No module of its own, and those are all that TRL's disable_dropout looks at.
            rate = getattr(module, "attention_dropout", 0.0)
            cure = (
                "disable_dropout does not reach it: load the model with attention_dropout=0.0, in a recipe "
                "model_init_kwargs: {attention_dropout: 0.0}."
            )
        if isinstance(rate, (int, float)) and rate > 0:
            raise ValueError(f"{name} has a dropout rate of {rate}. {WHY} {cure}")
