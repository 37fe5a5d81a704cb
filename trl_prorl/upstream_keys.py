"""
The values of TRL's and transformers' keys, as far as those do not check them before a model is loaded: closed lists of
words, ranges of numbers, and that no number is NaN. `check_keys` and `check_finite` refuse others in one line.
"""

import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from accelerate.utils import DynamoBackend
from trl import GRPOConfig, ModelConfig

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

# Read in TRL's and transformers' code; tests/test_upstream_contract.py compares the words with it.
TRAINING_VALUES = {
    # Words
    "loss_type": LOSS_TYPES,
    "importance_sampling_level": one_of("token", "sequence"),
    "scale_rewards": Values((*("group", "batch", "none"), True, False).__contains__, names=("group", "batch", "none")),
    "multi_objective_aggregation": AGGREGATION,
    "vllm_mode": one_of("server", "colocate"),
    "vllm_model_impl": one_of("vllm", "transformers"),
    "vllm_importance_sampling_mode": SAMPLER_RATIOS,
    "torch_compile_backend": one_of(*(backend.value.lower() for backend in DynamoBackend)),
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
    "num_completions_to_print": whole(1),
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


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the types that a type allows."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _stated_values(field: Any, hint: Any) -> Values | None:
    """Return the words of a field whose class lists them: as its choices, or as an enumeration in its type."""
    if field.metadata.get("choices"):
        return one_of(*field.metadata["choices"])
    for option in _options(hint):
        if isinstance(option, type) and issubclass(option, Enum):
            return one_of(*(member.value for member in option))
    return None


def descriptors(cls: type, values: Mapping[str, Values]) -> dict[str, Key]:
    """
    Return the descriptors of a dataclass of TRL's, by field: the values given here, else those that the class states.
    A field that this version of TRL does not have is left out.
    """
    hints = typing.get_type_hints(cls)
    keys = {}
    for field in fields(cls):
        hint = hints[field.name]
        of_field = values.get(field.name) or _stated_values(field, hint)
        if of_field is None:
            continue
        nullable = types.NoneType in _options(hint) or field.name in MAY_BE_NONE
        keys[field.name] = Key(of_field, Effect.STEP, applies, default=field.default, nullable=nullable)
    return keys


TRAINING_KEYS = descriptors(GRPOConfig, TRAINING_VALUES)
MODEL_KEYS = descriptors(ModelConfig, MODEL_VALUES)


def check_finite(configuration: Any) -> None:
    """
    Refuse NaN and infinity in every field of a configuration, at any depth of a mapping or a list.

    Raises:
        `ValueError`: The line names the key and its value; a bound may be infinite.
    """
    for field in fields(configuration):
        value = getattr(configuration, field.name, None)
        for single in _numbers_in(value):
            if math.isnan(single) or (math.isinf(single) and field.name not in INFINITE):
                raise ValueError(f"{field.name}={value!r} must be finite: NaN and infinity train nothing. Correct it.")


def _numbers_in(value: Any, depth: int = 0) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, (list, tuple, dict)) and depth < 50:
        inside = value.values() if isinstance(value, dict) else value
        for single in inside:
            yield from _numbers_in(single, depth + 1)
