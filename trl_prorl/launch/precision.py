"""
bf16 on a CPU. Without instructions for it a CPU emulates bf16, three to four times slower than it computes fp32: a run
says so, and `bf16: auto` in a recipe chooses.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from ..environment import cpu_computes_bf16
from ..errors import InputError


logger = logging.getLogger(__name__)

AUTO = "auto"


def chosen_precision(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """
    Replace `bf16: auto` in the keys of a recipe for a CPU by a precision: weights and products in bf16 where the CPU
    is known to have instructions for it, else in fp32. The record has the choice, and a resume on a machine that
    chooses otherwise is refused as one with other keys is.

    Args:
        recipe (`Mapping[str, Any]`): The keys of a recipe.

    Returns:
        `dict[str, Any]`: The same keys, with `bf16` true or false and with `dtype`.

    Raises:
        `ValueError`: The recipe gives `dtype`, too, or is not for a CPU.
    """
    keys = dict(recipe)
    if keys.get("bf16") != AUTO:
        return keys
    if "dtype" in keys:
        raise InputError(f"bf16: auto chooses dtype, too, and dtype={keys['dtype']!r} is given. Leave dtype out.")
    if keys.get("use_cpu") is not True:
        raise InputError("bf16: auto chooses for a CPU, and use_cpu is not true. Leave bf16 out; a GPU has it true.")
    if cpu_computes_bf16():
        keys["bf16"] = True
        keys["dtype"] = "bfloat16"
    else:
        keys["bf16"] = False
        keys["dtype"] = "float32"
    return keys


def tell_of_emulated_bf16(args: Any, model: Any) -> None:
    """Log one line if a trainer of this configuration and model (or its path) computes in bf16 that is emulated."""
    on_cpu = args.device.type == "cpu"
    if on_cpu and args.process_index == 0 and computes_in_bf16(args, model) and cpu_computes_bf16() is False:
        logger.warning(
            "This CPU has neither AMX nor AVX512-BF16, and emulates bf16 three to four times slower than it computes "
            "fp32. To train in fp32, set bf16: false, and load the model with dtype: float32."
        )


def computes_in_bf16(args: Any, model: Any) -> bool:
    """Return whether products are in bf16: under autocast, or because the weights are."""
    if args.bf16:
        return True
    if isinstance(model, torch.nn.Module):
        return any(param.dtype == torch.bfloat16 for param in model.parameters())
    dtype = (args.model_init_kwargs or {}).get("dtype")
    return dtype in ("bfloat16", torch.bfloat16)
