"""Does an acceleration support a model, by the lists of supported.py?"""

import torch
from peft import PeftModel, PeftType
from transformers import PretrainedConfig, PreTrainedModel

from ..supported import FAMILIES, PAGE, POSITIONS
from ..upstream.modules import unwrap_adapter
from .prefix import has_state


def is_listed(model: PreTrainedModel) -> bool:
    """Return whether a model is transformers' own, of a listed family."""
    return model.config.model_type in FAMILIES and type(model).__module__.startswith("transformers.")


def listing_obstacle(model: PreTrainedModel | PeftModel, acceleration: str) -> str | None:
    """
    Return why an acceleration (a field of [`~trl_prorl.supported.Family`]) does not support a model; `None` if it
    does.
    """
    if isinstance(model, PeftModel):
        for adapter in model.peft_config.values():
            if adapter.peft_type != PeftType.LORA:
                return f"adapters other than LoRA are not listed ({PAGE}), and one is {adapter.peft_type.value}."
    model = unwrap_adapter(model)
    config = model.config
    kind = config.model_type
    name = f"{type(model).__name__} (model_type {kind!r})"
    if not is_listed(model):
        return f"{name} is not listed ({PAGE})."
    family = FAMILIES[kind]
    attentions = getattr(family, acceleration)
    if not attentions:
        return f"{name} is not listed for it ({PAGE})."
    if config._attn_implementation not in attentions:
        return f"attn_implementation={config._attn_implementation!r} of {name} is not one of {', '.join(attentions)}."
    positions = rope_types(config) - {*POSITIONS}
    if positions:
        return f"rope_type={min(positions)!r} of {name} is not one of {', '.join(POSITIONS)}."
    if acceleration == "graphed" and any(param.dtype == torch.int8 for param in model.parameters()):
        return f"{name} has 8-bit layers, which wait for the GPU in each forward."
    if family.has_state and not has_state(model):
        return f"{name} has layers with a state, which need transformers 5.24."
    return None


def rope_types(config: PretrainedConfig) -> set[str]:
    """Return the kinds of rotary positions of all layers."""
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return {part["rope_type"] for part in (rope, *rope.values()) if isinstance(part, dict) and "rope_type" in part}
