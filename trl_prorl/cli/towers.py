"""The vision and audio towers of a multimodal model, which get no gradient from text."""

import copy
import logging
import re
from typing import Any

import torch
import transformers
from peft import PeftConfig
from peft.utils import INCLUDE_LINEAR_LAYERS_SHORTHAND
from transformers import AutoConfig, PreTrainedModel

from .prompt_rows import is_text_only


logger = logging.getLogger(__name__)


def leave_out_towers(config: PeftConfig, model: PreTrainedModel | str, rows: Any, **init) -> PeftConfig:
    """
    Exclude the towers from `target_modules="all-linear"` if all prompts are text.

    Args:
        config ([`~peft.PeftConfig`]): The adapter's configuration. It is not changed.
        model ([`~transformers.PreTrainedModel`] or `str`): The model, or its name.
        rows (`Dataset`): The training set.
        init: Arguments for loading the model's configuration, such as `revision`.

    Returns [`~peft.PeftConfig`]: The same configuration if there is no tower, else a copy with `exclude_modules`.
    """
    takes_all = getattr(config, "target_modules", None) == INCLUDE_LINEAR_LAYERS_SHORTHAND
    if not takes_all or config.exclude_modules or not is_text_only(rows):
        return config
    towers = find_towers(model, **init)
    if not towers:
        return config
    logger.warning(
        "lora_target_modules='all-linear' leaves out %s, because all prompts are text. List the layers to train them.",
        ", ".join(towers),
    )
    config = copy.copy(config)
    config.exclude_modules = f"({'|'.join(map(re.escape, towers))})\\..*"
    return config


def find_towers(model: PreTrainedModel | str, **init) -> list[str]:
    """Name the parts of a model with linear layers, except text decoder and head."""
    # `eager`: the files may name a kernel, which would be downloaded and run.
    eager = {"attn_implementation": "eager", **init}
    model_config = AutoConfig.from_pretrained(model, **eager) if isinstance(model, str) else model.config
    if model_config.get_text_config() is model_config:
        return []
    if isinstance(model, str):
        with torch.device("meta"):  # for the names of its modules
            model = getattr(transformers, model_config.architectures[0])(model_config)
    decoder = model.get_decoder()
    head = model.get_output_embeddings()
    decoder_name = next(name for name, module in model.named_modules() if module is decoder)
    towers = []
    parent = ""
    for step in decoder_name.split("."):  # down to the decoder: whatever lies beside the way is a tower
        for name, child in model.get_submodule(parent).named_children():
            has_linear = any(isinstance(module, torch.nn.Linear) for module in child.modules())
            if has_linear and name != step and child is not head:
                towers.append(f"{parent}.{name}".lstrip("."))
        parent = f"{parent}.{step}".lstrip(".")
    return towers
