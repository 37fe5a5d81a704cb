"""Checks of a loaded model's adapters, and the layers of a multimodal model that an adapter trains."""

import copy
import logging
import re
from typing import Any

import torch
import transformers
from peft import PeftConfig, PeftModel
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import INCLUDE_LINEAR_LAYERS_SHORTHAND, AuxiliaryTrainingWrapper
from peft.utils.other import TrainableTokensWrapper
from transformers import AutoConfig, PreTrainedModel

from ..supported import PATTERNS
from ..text import short


logger = logging.getLogger(__name__)

LOAD_WHOLE = "Load it with trl_prorl.load_model(NAME, ADAPTER, is_trainable=True), which checks its keys."


def refuse_leftover_layers(model: PreTrainedModel | str) -> None:
    """
    Raise `ValueError` for a model that is no [`~peft.PeftModel`], but has layers of an adapter: a new adapter would
    mix with them, and references and files would lack them.
    """
    if isinstance(model, str):
        return
    for name, layer in model.named_modules():
        if isinstance(layer, BaseTunerLayer | AuxiliaryTrainingWrapper):
            raise ValueError(
                f"model={type(model).__name__} already contains layers of an adapter ({name}) and is not a PeftModel: "
                "AutoModel loaded an adapter's folder, load_adapter was called, or an earlier trainer got the same "
                "object. Load the base model anew; to train its adapter, pass PeftModel.from_pretrained(base, FOLDER, "
                "is_trainable=True) without a peft_config, or merge it: docs/from-sft.md."
            )


def check_head(policy: PeftModel) -> None:
    """Raise `ValueError` for an adapter of the LM head, which TRL refuses later."""
    if isinstance(policy.get_output_embeddings(), BaseTunerLayer):
        raise ValueError(
            "the peft_config puts an adapter on the LM head, but TRL reads the head's weight without its adapter. "
            "Remove the head from target_modules; with ensure_weight_tying, remove the embeddings that share its "
            "weight, too."
        )


def check_trained_once(policy: PeftModel) -> None:
    """Raise `ValueError` for a module that is trained whole and by rows: PEFT fails in its forward, or in a copy."""
    for name, module in policy.named_modules():
        if not isinstance(module, AuxiliaryTrainingWrapper):
            continue
        inner = [one for one in module.modules() if isinstance(one, AuxiliaryTrainingWrapper)]
        if len(inner) > 1:
            config = policy.peft_config["default"]
            raise ValueError(
                f"modules_to_save={config.modules_to_save} and trainable_token_indices="
                f"{short(config.trainable_token_indices)} of the adapter both train {name}, which PEFT does not "
                "support; rows of embeddings are those of an LM head that is tied to them. Remove one of these keys."
            )


def check_loaded(model: PeftModel) -> None:
    """
    Raise `ValueError` unless the one active adapter is named `default`: a resume, the best checkpoint and an
    evaluation load no other. Also for an adapter of which only a part was loaded, of which PEFT only warns: some
    layers are trained, others of the same name are zero.
    """
    if model.active_adapters != ["default"]:
        raise ValueError(
            f"the active adapter is {', '.join(map(repr, model.active_adapters))}, but only one named 'default' is "
            "trained, saved and resumed. Create or load the policy's adapter with adapter_name='default', activate it "
            "alone, and merge others into the base model: docs/from-sft.md."
        )
    zero = _factors_by_kind(model, zero=True)
    for kind in zero.keys() & _factors_by_kind(model, zero=False).keys():
        raise ValueError(
            f"the adapter 'default' of the model was loaded only partly: {zero[kind]} is zero, and other layers of "
            f"that name are not. {LOAD_WHOLE}"
        )


def _factors_by_kind(model: PeftModel, zero: bool) -> dict[str, str]:
    """
    Return a layer of each kind (name without numbers) with a second LoRA factor of zero, or of other values. An
    untrained expert's is zero, too.
    """
    found = {}
    for name, layer in model.named_modules():
        factors = getattr(layer, "lora_B", {})
        if "default" not in factors or "expert" in name:
            continue
        if bool(factors["default"].weight.any()) != zero:
            found[re.sub(r"\d+", "*", name)] = name
    return found


def check_merged_in_vllm(policy: PeftModel) -> None:
    """
    Raise `ValueError` for an adapter that vLLM would not sample from: it does not know the names of trained token rows
    and, if the base ties its LM head to its embeddings, has one weight for both. A quantised weight would reach it as
    codes, without their scale.
    """
    base = policy.get_base_model()
    if getattr(base.config, "quantization_config", None) is not None:
        raise ValueError(
            "use_vllm=True does not support a model in 4 or 8 bits: vLLM would get weights as codes. Set "
            "use_vllm: false, or vllm_enable_lora: true, which hands over the adapter alone."
        )
    if any(isinstance(module, TrainableTokensWrapper) for module in base.modules()):
        rows = policy.peft_config["default"].trainable_token_indices
        raise ValueError(
            f"use_vllm=True does not support trainable_token_indices={short(rows)} of the adapter, which reach vLLM "
            "under names that it does not know. Remove trainable_token_indices, or set use_vllm: false."
        )
    if not base.config.get_text_config().tie_word_embeddings:
        return
    embedding = base.get_input_embeddings()
    head = base.get_output_embeddings()
    changed = [part for part in (embedding, head) if isinstance(part, BaseTunerLayer)]
    if embedding.weight is not head.weight:  # else saved as one, or not at all
        changed += [part for part in (embedding, head) if isinstance(part, AuxiliaryTrainingWrapper)]
    if changed:
        (name,) = (name for name, module in base.named_modules() if module is changed[0])
        raise ValueError(
            f"use_vllm=True does not support an adapter of {name}: the base model ties its LM head to its embeddings, "
            "and vLLM has one weight for both. Remove it from target_modules or modules_to_save, train both as one "
            "(modules_to_save with ensure_weight_tying: true), or set use_vllm: false."
        )


def check_room_to_grow(largest: int, config: Any) -> None:
    """Raise `ValueError` for an adapter that already has `lora_growth_max_rank`."""
    if config.r >= largest:
        raise ValueError(
            f"lora_growth_max_rank={largest} leaves no room to grow: the adapter starts with rank {config.r} "
            "(lora_r). Raise it, or remove lora_growth_every."
        )


def check_growing_model(policy: PeftModel) -> None:
    """
    Raise `ValueError` for a layer with an adapter that cannot grow, or an adapter that would not grow with the
    policy's.
    """
    rank = policy.peft_config["default"].r
    for name, config in policy.peft_config.items():
        odd = [pattern for pattern in PATTERNS if getattr(config, pattern, None)]
        if config.r != rank or odd:
            has = odd[0] if odd else f"rank {config.r}"
            raise ValueError(
                f"lora_growth_every changes all adapters of a model together, and {name!r} has {has}, while 'default' "
                f"has rank {rank}. Remove it with delete_adapter({name!r}), or remove lora_growth_every."
            )
    odd = _odd_layer(policy)
    if odd is not None:
        raise ValueError(
            f"lora_growth_every supports linear layers that do not share an adapter, and {odd} has another kind of "
            "adapter. Remove it from lora_target_modules, or remove lora_growth_every."
        )


def _odd_layer(policy: PeftModel) -> str | None:
    """Name a layer with an adapter that is not two linear layers of its own, and its kind."""
    seen: set[int] = set()
    for name, layer in policy.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        factors = [*layer.lora_A.values(), *layer.lora_B.values()]
        shared = any(id(factor.weight) in seen for factor in factors if type(factor) is torch.nn.Linear)
        odd = layer.lora_embedding_A or isinstance(layer, ParamWrapper)
        if odd or shared or not all(type(factor) is torch.nn.Linear for factor in factors):
            return f"{name} ({type(layer.get_base_layer()).__name__})"
        seen.update(id(factor.weight) for factor in factors)
    return None


# The towers of a multimodal model.


def leave_out_towers(config: PeftConfig, model: PreTrainedModel | str, **init) -> PeftConfig:
    """
    Exclude the vision and audio towers from `target_modules="all-linear"`: with text alone they get no gradient.

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
    """Name the parts of a model with linear layers, except text decoder and head."""
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
    for depth, own in enumerate(path):
        around = ".".join(path[:depth])
        for name, child in model.get_submodule(around).named_children():
            has_linear = any(isinstance(module, torch.nn.Linear) for module in child.modules())
            if has_linear and name != own and child is not head:
                towers.append(f"{around}.{name}".lstrip("."))
    return towers
