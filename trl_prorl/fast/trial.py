"""
A trial of a family of models that is not listed (`FAMILIES` in supported.py), on a tiny model of the same class: are
packed rows and compact samples what they should be? `trl-prorl preflight` makes it, and a trainer for the families of
`fast_models`.
"""

import copy
from collections.abc import Callable
from functools import partial

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PretrainedConfig, PreTrainedModel
from trl.trainer.utils import add_fused_lm_head

from .prefix import accept_prefixes
from .probes import mixed_dtype, packing_obstacle, try_samples


NOISE = 0.3  # of vectors, which most models initialise to ones and zeros
SCALE = 5.0  # of matrices: as initialised, every token is nearly as probable as any other
# Of a configuration: sizes in a tiny model. One that its class does not accept keeps the widths of the given model.
SIZES = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDTHS = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")  # what a model of the given widths changes

Padded = Callable[..., torch.Tensor]


def trial_obstacle(acceleration: str, policy: PreTrainedModel | PeftModel, padded: Padded, accelerator) -> str | None:
    """
    Return why an acceleration does not serve a family of models, by a trial; `None` if it does.

    Args:
        acceleration (`str`): A field of [`~trl_prorl.supported.Family`].
        policy (`PreTrainedModel` or `PeftModel`): The model whose family it is. It is only read.
        padded (`Callable`): Scores padded rows, as TRL does: model, `input_ids`, `attention_mask`, `logits_to_keep`.
        accelerator ([`~accelerate.Accelerator`]): The run's.
    """
    if acceleration == "graphed":
        return "a family that is not listed is not recorded."
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            model = tiny_model(policy)
        except Exception as error:  # of whatever kind: the model's own code runs
            return f"no tiny {type(policy).__name__} can be made ({type(error).__name__})."
        if acceleration == "compact":
            return try_samples(model.eval())
        accept_prefixes(model)
        return packing_obstacle(model, partial(padded, model), accelerator.autocast, mixed_dtype(accelerator))


def tiny_model(policy: PreTrainedModel | PeftModel) -> PreTrainedModel | PeftModel:
    """
    Make a tiny model of a model's class, with every kind of its layers, random weights, TRL's fused head and, if the
    model has adapters, a LoRA that changes it.
    """
    given = policy.get_base_model() if isinstance(policy, PeftModel) else policy
    settings = {"dtype": given.dtype, "attn_implementation": given.config._attn_implementation}
    try:
        model = type(given)._from_config(tiny_config(given.config, tuple(SIZES)), **settings)
    except Exception:  # sizes that depend on each other
        model = type(given)._from_config(tiny_config(given.config, WIDTHS), **settings)
    model.to(given.device)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    if isinstance(policy, PeftModel):
        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.dim() == 1 or "lora_B" in name:
                param.add_(NOISE * torch.randn_like(param))
            elif "lora_" not in name:
                param.mul_(SCALE)
    return model


def tiny_config(config: PretrainedConfig, names: tuple[str, ...]) -> PretrainedConfig:
    """Return a copy of a configuration with tiny sizes of these names, and the first layers that have every kind."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    number = text.num_hidden_layers
    per_layer = {name: value for name, value in vars(text).items() if isinstance(value, list) and len(value) == number}
    kinds = list(zip(*per_layer.values(), strict=True)) or [()] * number
    last_new = max(kinds.index(kind) for kind in kinds)
    kept = max(2, last_new + 1)
    for name, value in per_layer.items():
        setattr(text, name, value[:kept])
    text.num_hidden_layers = kept
    for name in names:
        if getattr(text, name, None) is not None:
            setattr(text, name, SIZES[name])
    return config
