"""
The values of TRL's and transformers' keys, as far as those do not check them before a model is loaded: closed lists of
words, and ranges of numbers. Nothing is imported that takes long, because a command line is checked before those are.
"""

import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from .descriptor import Effect, Key, Values, applies, number, one_of, whole
from .keys import DECAY, FINITE, NOT_NEGATIVE, POSITIVE, RATE_FACTOR


PART = number(lambda value: 0 <= value <= 1, "in [0, 1]")
# A bound that may be infinite, which is none.
BOUND = number(lambda value: value >= 0, "a number that is not negative")
STEPS = whole(-1)
INFINITE = ("epsilon_high", "max_grad_norm")
# Transformers takes None for these, though their types do not say so.
MAY_BE_NONE = ("max_grad_norm", "top_k")


def _are_weights(value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    return all(FINITE.is_right(weight) for weight in value) and any(weight != 0 for weight in value)


def _name_modules(value: Any) -> bool:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error:
            return False
        return value != ""
    return isinstance(value, (list, tuple, set)) and all(isinstance(name, str) and name for name in value)


def _is_padding(value: Any) -> bool:
    return value == "auto" or whole(1).is_right(value)


WEIGHTS = Values(_are_weights, "a list of finite numbers that are not all 0")
MODULES = Values(_name_modules, "a list of names of modules, or one regular expression")
NAMES = Values(lambda value: isinstance(value, (list, tuple)) and _name_modules(value), "a list of names")
PADDING = Values(_is_padding, "a whole number from 1, or auto")
AGGREGATION = one_of("sum_then_normalize", "normalize_then_sum")
SAMPLER_RATIOS = one_of("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
LOSS_TYPES = one_of("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
COMPILE_MODES = one_of("default", "lite", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
STORAGE = one_of("float16", "float32", "float64", "bfloat16", "int8", "uint8")

# Read in TRL's and transformers' code.
TRAINING_VALUES = {
    # Words
    "loss_type": LOSS_TYPES,
    "importance_sampling_level": one_of("token", "sequence"),
    "scale_rewards": Values((*("group", "batch", "none"), True, False).__contains__, names=("group", "batch", "none")),
    "multi_objective_aggregation": AGGREGATION,
    "vllm_mode": one_of("server", "colocate"),
    "vllm_model_impl": one_of("vllm", "transformers"),
    "vllm_importance_sampling_mode": SAMPLER_RATIOS,
    "torch_compile_mode": COMPILE_MODES,
    # The batch and its rewards
    "per_device_train_batch_size": whole(1),
    "per_device_eval_batch_size": whole(1),
    "num_generations_eval": whole(1),
    "max_completion_length": whole(1),
    "pad_to_multiple_of": PADDING,
    "reward_weights": WEIGHTS,
    # Sampling
    "temperature": POSITIVE,
    "top_p": RATE_FACTOR,
    "top_k": whole(0),
    "min_p": PART,
    "repetition_penalty": POSITIVE,
    "vllm_gpu_memory_utilization": RATE_FACTOR,
    "vllm_max_model_length": whole(1),
    "vllm_tensor_parallel_size": whole(1),
    "vllm_server_timeout": POSITIVE,
    "vllm_importance_sampling_clip_max": POSITIVE,
    "vllm_importance_sampling_clip_min": NOT_NEGATIVE,
    # The loss
    "beta": NOT_NEGATIVE,
    "epsilon": NOT_NEGATIVE,
    "epsilon_high": BOUND,
    "delta": POSITIVE,
    "sapo_temperature_neg": POSITIVE,
    "sapo_temperature_pos": POSITIVE,
    "vespo_k_pos": NOT_NEGATIVE,
    "vespo_k_neg": NOT_NEGATIVE,
    "vespo_lambda_pos": NOT_NEGATIVE,
    "vespo_lambda_neg": NOT_NEGATIVE,
    "top_entropy_quantile": PART,
    "entropy_target": NOT_NEGATIVE,
    "entropy_coef_delta": NOT_NEGATIVE,
    "off_policy_mask_threshold": NOT_NEGATIVE,
    "router_aux_loss_coef": NOT_NEGATIVE,
    "ref_model_mixup_alpha": PART,
    "ref_model_sync_steps": whole(1),
    # The optimizer and its schedule
    "learning_rate": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "adam_beta1": DECAY,
    "adam_beta2": DECAY,
    "adam_epsilon": POSITIVE,
    "max_grad_norm": BOUND,
    "neftune_noise_alpha": NOT_NEGATIVE,
    "max_steps": STEPS,
    "num_train_epochs": NOT_NEGATIVE,
    "warmup_steps": NOT_NEGATIVE,
    # The rest
    "seed": whole(0),
    "data_seed": whole(0),
    "logging_steps": NOT_NEGATIVE,
    "eval_steps": NOT_NEGATIVE,
    "eval_delay": NOT_NEGATIVE,
    "save_steps": NOT_NEGATIVE,
    "save_total_limit": whole(0),
    "dataloader_num_workers": whole(0),
    "dataloader_prefetch_factor": whole(1),
    "num_completions_to_print": whole(0),
}
MODEL_VALUES = {
    "lora_r": whole(1),
    "lora_alpha": POSITIVE,
    "lora_dropout": DECAY,
    "lora_target_modules": MODULES,
    "lora_target_parameters": NAMES,
    "lora_modules_to_save": NAMES,
    "lora_task_type": one_of("CAUSAL_LM"),
    "bnb_4bit_quant_storage": STORAGE,
}


def options_of(hint: Any) -> tuple[Any, ...]:
    """Return the types that a type allows."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def describe_key(name: str, values: Values, hint: Any, default: Any = None) -> Key:
    """Return the descriptor of a key of others, by its values, its type and its default."""
    nullable = types.NoneType in options_of(hint) or name in MAY_BE_NONE
    return Key(values, Effect.STEP, applies, default=default, nullable=nullable)


def resume_word(value: Any) -> str | None:
    """Return what `resume_from_checkpoint` means: `"True"`, a path, or `None`; YAML reads a bare true as a bool."""
    word = str(value).lower()
    if value is None or word == "false":
        return None
    return "True" if word == "true" else str(value)


def complete_batch(keys: Mapping[str, Any], processes: int) -> dict[str, int]:
    """
    Derive the keys of a generation batch that are not given, as TRL's configuration does.

    Args:
        keys (`Mapping[str, Any]`): All keys of the batch.
        processes (`int`): Processes of the run.
    """
    size = keys["generation_batch_size"]
    steps = keys["steps_per_generation"]
    at_once = keys["per_device_train_batch_size"] * processes
    if size is not None:
        return {} if steps is not None else {"steps_per_generation": size // at_once}
    if steps is None:
        steps = keys["gradient_accumulation_steps"]
    return {"steps_per_generation": steps, "generation_batch_size": at_once * steps}
