"""Which layers of a multimodal model an adapter trains if all prompts are text: none of its vision or audio tower."""

import copy
import logging
import re

import torch
import transformers
from peft import PeftConfig
from peft.utils import INCLUDE_LINEAR_LAYERS_SHORTHAND
from transformers import AutoConfig, PreTrainedModel


logger = logging.getLogger(__name__)


def leave_out_towers(config: PeftConfig, model: PreTrainedModel | str, **init) -> PeftConfig:
    """
    Exclude the vision and audio towers from `target_modules="all-linear"`: with text alone their factors would take
    memory and get no gradient.

    Args:
        config ([`~peft.PeftConfig`]): The adapter's configuration. It is not changed.
        model ([`~transformers.PreTrainedModel`] or `str`): The model, or its name.
        init: Arguments for loading its configuration, such as `revision`.

    Returns [`~peft.PeftConfig`]: The same configuration if the model has no tower, else a copy with `exclude_modules`.
    """
    if config.target_modules != INCLUDE_LINEAR_LAYERS_SHORTHAND or config.exclude_modules:
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
    """Find the parts of a model, by name, that have linear layers and are neither its text decoder nor its head."""
    if isinstance(model, str):
        model_config = AutoConfig.from_pretrained(model, **init)
        if model_config.get_text_config() is model_config:
            return []
        with torch.device("meta"):  # names alone
            model = getattr(transformers, model_config.architectures[0])(model_config)
    if model.config.get_text_config() is model.config:
        return []
    decoder = model.get_decoder()
    head = model.get_output_embeddings()
    path = next(name for name, module in model.named_modules() if module is decoder).split(".")
    towers = []
    for name, module in model.named_modules():
        parts = name.split(".")
        if not isinstance(module, torch.nn.Linear) or module is head or parts[: len(path)] == path:
            continue
        shared = 0
        while parts[shared] == path[shared]:
            shared += 1
        tower = ".".join(parts[: shared + 1])
        if tower not in towers:
            towers.append(tower)
    return towers
