"""
What the trainer trains. Each list stands here once: the checks and the pages read it, and the tests that train its
members are parametrised by it. What is not listed is refused in one line, because nobody has seen that it is trained,
sampled, saved and resumed as the same model.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from .errors import InputError
from .text import short


OF_ANY_ADAPTER = (
    "peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode target_modules"
).split()
# The kinds of adapters, by PEFT's names, with the options that may differ from their defaults.
ADAPTERS: dict[str, list[str]] = {
    "LORA": (
        "r lora_alpha lora_dropout init_lora_weights eva_config use_rslora use_dora rank_pattern alpha_pattern bias "
        "lora_bias modules_to_save ensure_weight_tying trainable_token_indices target_parameters exclude_modules "
        "layers_to_transform layers_pattern fan_in_fan_out"
    ).split(),
    "IA3": ["feedforward_modules"],
    "LOKR": ["r", "alpha"],
    "OFT": ["oft_block_size"],
    "VERA": ["r"],
}
# Types of (text) models whose scores in training are those of their own forward. Others are compared at the start.
MODEL_TYPES = (
    "gemma gemma2 gemma3_text gemma4_text gpt2 granite granitemoehybrid lfm2 llama mamba mistral mixtral qwen2 qwen3 "
    "qwen3_5_text qwen3_next"
).split()
# Initialisations of LoRA. Others change the base model's weights, which no checkpoint contains.
INITIALISATIONS = (True, False, "gaussian", "orthogonal", "eva", "mica")


def check_adapters(configs: Mapping[str, Any]) -> None:
    """
    Raise an error for an adapter that is not listed.

    Args:
        configs (`Mapping[str, PeftConfig]`): The adapters' configurations, by the names of the adapters.

    Raises:
        `InputError`: The line names the kind or the option, what is supported, and which trainer takes it.
    """
    for name, config in configs.items():
        kind = getattr(config.peft_type, "value", config.peft_type)
        if kind not in ADAPTERS:
            raise _refusal(name, f"peft_type={kind}", f"full fine-tuning and {', '.join(ADAPTERS)}")
        for option, value in changed_options(config).items():
            if option not in (*OF_ANY_ADAPTER, *ADAPTERS[kind]):
                raise _refusal(name, f"{option}={short(value)}", f"for {kind} {', '.join(ADAPTERS[kind])}")
        init = getattr(config, "init_lora_weights", True)
        if init not in INITIALISATIONS:
            raise _refusal(name, f"init_lora_weights={init!r}", ", ".join(map(repr, INITIALISATIONS)))


def changed_options(config: Any) -> dict[str, Any]:
    """Return the options of a [`~peft.PeftConfig`] that are set and differ from their defaults."""
    changed = {}
    for field in fields(config):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(config, field.name)
        if value != default and value not in (None, {}, []):
            changed[field.name] = value
    return changed


def _refusal(name: str, given: str, supported: str) -> InputError:
    return InputError(
        f"{given} of the adapter {name!r} is not supported: no test shows that it is sampled, moved, saved and "
        f"resumed as it is trained. TRL's own GRPOTrainer accepts it. Supported: {supported}."
    )
