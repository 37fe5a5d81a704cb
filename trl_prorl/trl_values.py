"""
Values of TRL's, transformers' and PEFT's keys that the libraries accept but that train something else, or nothing.
Each was tested with plain TRL 1.16. Values that the libraries reject themselves are not checked here.
"""

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from .keys import is_number


MAY_BE_INFINITE = ("epsilon_high", "max_grad_norm")  # infinity means no bound

# A negative value inverts the effect of the key, or diverges. TRL gives no warning.
NOT_NEGATIVE = (
    "beta epsilon epsilon_high vespo_k_pos vespo_k_neg entropy_coef_delta off_policy_mask_threshold "
    "router_aux_loss_coef weight_decay learning_rate eval_steps"
).split()
# A value of 0 stops the training, or divides by 0.
POSITIVE = (
    "temperature top_p delta sapo_temperature_neg sapo_temperature_pos adam_epsilon vllm_importance_sampling_clip_max"
).split()
SHARES = ("ref_model_mixup_alpha", "top_entropy_quantile")
# A fraction means another number, or fails in the first step or at an evaluation hours later without naming the key.
WHOLE_FROM_1 = (
    "per_device_train_batch_size gradient_accumulation_steps steps_per_generation generation_batch_size "
    "num_generations num_iterations max_completion_length ref_model_sync_steps pad_to_multiple_of "
    "per_device_eval_batch_size num_generations_eval"
).split()
# Set by the trainer when it applies a chat template, or passed to the tokenizer: prompts would be truncated or padded.
NOT_OF_TEMPLATES = (
    "conversation tools chat_template add_generation_prompt continue_final_message tokenize padding truncation "
    "max_length return_tensors return_dict return_assistant_tokens_mask tokenizer_kwargs"
).split()


def check_training_values(args: Any) -> None:
    """
    Check the values of a [`~trl.GRPOConfig`], before it fills in defaults.

    Raises:
        `ValueError`: A value is not allowed.
    """
    check_finite(args)
    check_choices(args)
    for name in (*NOT_NEGATIVE, *POSITIVE, *SHARES, *WHOLE_FROM_1):
        _check_number(name, name, getattr(args, name, None))  # TRL 1.15 lacks some
    weights = args.reward_weights
    are_weights = weights is None or (isinstance(weights, (list, tuple)) and all(map(is_number, weights)))
    _require(are_weights, "reward_weights", weights, "a list of numbers")
    if weights and not any(weights):
        raise ValueError(f"reward_weights={weights!r} must not be all 0. Give at least one reward a weight.")
    if args.max_steps == 0 or (args.max_steps < 0 and args.num_train_epochs <= 0):
        raise ValueError(
            f"max_steps={args.max_steps} and num_train_epochs={args.num_train_epochs} train 0 steps. Set max_steps: 1 "
            "(or more)."
        )


def check_mappings(args: Any) -> None:
    """
    Check values inside the mappings of a [`~trl.GRPOConfig`], once JSON text has been parsed.

    Raises:
        `ValueError`: A value is not allowed.
    """
    check_finite(args)
    for name, value in (args.generation_kwargs or {}).items():
        range_of = "max_completion_length" if name == "max_new_tokens" else name
        _check_number(range_of, f"generation_kwargs: {name}", value)
    if args.use_vllm and args.vllm_mode == "colocate" and "seed" in (args.generation_kwargs or {}):
        raise ValueError(
            f"generation_kwargs={args.generation_kwargs!r}: TRL gives this seed to every request to vLLM, so all "
            "completions of a prompt are equal. Remove seed: each request gets its own, from the run's seed."
        )
    for name in args.chat_template_kwargs or {}:
        if name in NOT_OF_TEMPLATES:
            raise ValueError(
                f"chat_template_kwargs={args.chat_template_kwargs!r}: {name} is an argument of the tokenizer, not of "
                "the chat template. Remove it."
            )


def _check_number(name: str, given: str, value: Any) -> None:
    """Check a value against the range of `name`. The error names the key as `given`."""
    if value is None or (name == "pad_to_multiple_of" and value == "auto"):
        return
    if name in WHOLE_FROM_1:
        is_whole = is_number(value) and value == int(value)
        _require(is_whole and value >= 1, given, value, "a whole number, at least 1")
    elif name in (*NOT_NEGATIVE, *POSITIVE, *SHARES):
        _require(is_number(value), given, value, "a number")
        _require(value >= 0, given, value, "at least 0")
        _require(value > 0 or name not in POSITIVE, given, value, "more than 0")
        _require(value <= 1 or name not in SHARES, given, value, "at most 1")


def check_model_values(model_args: Any) -> None:
    """
    Check the values of a [`~trl.ModelConfig`].

    Raises:
        `ValueError`: A value is not allowed.
    """
    check_finite(model_args)
    check_choices(model_args)
    _require(model_args.lora_alpha > 0, "lora_alpha", model_args.lora_alpha, "more than 0")
    dropout = model_args.lora_dropout
    _require(0 <= dropout < 1, "lora_dropout", dropout, "at least 0 and less than 1")
    names = model_args.lora_modules_to_save
    are_names = names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))
    _require(are_names, "lora_modules_to_save", names, "a list of names")


def check_choices(configuration: Any) -> None:
    """
    Check values against the choices in a field's metadata, because a parser checks only those of the command line.

    Raises:
        `ValueError`: A value is not among the choices.
    """
    for field in fields(configuration):
        value = getattr(configuration, field.name, None)
        choices = field.metadata.get("choices")
        if field.name == "ddp_backend":  # torch also accepts combinations
            continue
        if choices and value is not None and value not in choices:
            raise ValueError(f"{field.name}={value!r} must be one of {', '.join(map(str, choices))}.")


def check_finite(configuration: Any) -> None:
    """
    Reject NaN and infinity in every field of a configuration, at any depth of a mapping or a list. TRL would continue
    with weights that are NaN, and log a loss of 0.

    Raises:
        `ValueError`: A value is NaN or infinite.
    """
    for field in fields(configuration):
        value = getattr(configuration, field.name, None)
        for number in _numbers_in(value):
            if math.isnan(number) or (math.isinf(number) and field.name not in MAY_BE_INFINITE):
                raise ValueError(f"{field.name}={value!r} must be finite, not NaN or infinity.")


def _numbers_in(value: Any, depth: int = 0) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, (list, tuple, dict)) and depth < 50:
        inside = value.values() if isinstance(value, dict) else value
        for single in inside:
            yield from _numbers_in(single, depth + 1)


def _require(is_right: bool, name: str, value: Any, words: str) -> None:
    if not is_right:
        raise ValueError(f"{name}={value!r} must be {words}.")
