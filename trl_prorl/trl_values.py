"""
Values of TRL's, transformers' and PEFT's keys that those take, and that train something else than they say, or
nothing. Each was tried on bare TRL 1.16; what those refuse themselves is not here.
"""

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from .keys import is_number


MAY_BE_INFINITE = ("epsilon_high", "max_grad_norm")  # no bound

# A negative one inverts what the key does, or blows up; TRL warns of nothing.
NOT_NEGATIVE = (
    "beta epsilon epsilon_high vespo_k_pos vespo_k_neg entropy_coef_delta off_policy_mask_threshold "
    "router_aux_loss_coef weight_decay learning_rate eval_steps"
).split()
# 0 stops the training, or divides by 0.
POSITIVE = (
    "temperature top_p delta sapo_temperature_neg sapo_temperature_pos adam_epsilon vllm_importance_sampling_clip_max"
).split()
SHARES = ("ref_model_mixup_alpha", "top_entropy_quantile")
# A fraction means another number; or it fails in the first step, or at an evaluation hours later, and the key is not
# named.
WHOLE_FROM_1 = (
    "per_device_train_batch_size gradient_accumulation_steps steps_per_generation generation_batch_size "
    "num_generations num_iterations max_completion_length ref_model_sync_steps pad_to_multiple_of "
    "per_device_eval_batch_size num_generations_eval"
).split()
# With which the trainer itself applies a chat template, or which are the tokenizer's: prompts would be cut or padded.
NOT_OF_TEMPLATES = (
    "conversation tools chat_template add_generation_prompt continue_final_message tokenize padding truncation "
    "max_length return_tensors return_dict return_assistant_tokens_mask tokenizer_kwargs"
).split()


def check_training_values(args: Any) -> None:
    """
    Refuse values of a [`~trl.GRPOConfig`], before it completes them.

    Raises:
        `ValueError`: The line names the key, its value and what is right.
    """
    check_finite(args)
    check_choices(args)
    for name in (*NOT_NEGATIVE, *POSITIVE, *SHARES, *WHOLE_FROM_1):
        _check_number(name, name, getattr(args, name, None))  # TRL 1.15 lacks some
    weights = args.reward_weights
    are_weights = weights is None or (isinstance(weights, (list, tuple)) and all(map(is_number, weights)))
    _refuse_unless(are_weights, "reward_weights", weights, "a list of numbers")
    if weights and not any(weights):
        raise ValueError(f"reward_weights={weights!r} are all 0, so that no reward counts. Give one a weight.")
    if args.max_steps == 0 or (args.max_steps < 0 and args.num_train_epochs <= 0):
        raise ValueError(
            f"max_steps={args.max_steps} and num_train_epochs={args.num_train_epochs} train nothing. Set max_steps to "
            "1 or more."
        )


def check_mappings(args: Any) -> None:
    """
    Refuse values inside the mappings of a [`~trl.GRPOConfig`], which may have been JSON until it was completed.

    Raises:
        `ValueError`: The line names the key, its value and what is right.
    """
    check_finite(args)
    for name, value in (args.generation_kwargs or {}).items():
        range_of = "max_completion_length" if name == "max_new_tokens" else name
        _check_number(range_of, f"generation_kwargs: {name}", value)
    for name in args.chat_template_kwargs or {}:
        if name in NOT_OF_TEMPLATES:
            raise ValueError(
                f"chat_template_kwargs={args.chat_template_kwargs!r}: {name} is for the trainer and its tokenizer to "
                "say, not for a template. Leave it out."
            )


def _check_number(name: str, given: str, value: Any) -> None:
    """Refuse the value of a key by the range of a name, and say it of what was given."""
    if value is None or (name == "pad_to_multiple_of" and value == "auto"):
        return
    if name in WHOLE_FROM_1:
        is_whole = is_number(value) and value == int(value)
        _refuse_unless(is_whole and value >= 1, given, value, "a whole number, at least 1")
    elif name in (*NOT_NEGATIVE, *POSITIVE, *SHARES):
        _refuse_unless(is_number(value), given, value, "a number")
        _refuse_unless(value >= 0, given, value, "at least 0")
        _refuse_unless(value > 0 or name not in POSITIVE, given, value, "more than 0")
        _refuse_unless(value <= 1 or name not in SHARES, given, value, "at most 1")


def check_model_values(model_args: Any) -> None:
    """
    Refuse values of a [`~trl.ModelConfig`].

    Raises:
        `ValueError`: The line names the key, its value and what is right.
    """
    check_finite(model_args)
    check_choices(model_args)
    _refuse_unless(model_args.lora_alpha > 0, "lora_alpha", model_args.lora_alpha, "more than 0")
    dropout = model_args.lora_dropout
    _refuse_unless(0 <= dropout < 1, "lora_dropout", dropout, "at least 0 and less than 1")
    names = model_args.lora_modules_to_save
    are_names = names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))
    _refuse_unless(are_names, "lora_modules_to_save", names, "a list of names")


def check_choices(configuration: Any) -> None:
    """
    Refuse a word that a field's own metadata does not list: a parser looks at those of a command line alone.

    Raises:
        `ValueError`: The line names the key, its value and the words.
    """
    for field in fields(configuration):
        value = getattr(configuration, field.name, None)
        choices = field.metadata.get("choices")
        if field.name == "ddp_backend":  # torch takes combinations, too
            continue
        if choices and value is not None and value not in choices:
            raise ValueError(f"{field.name}={value!r} is not one of {', '.join(map(str, choices))}.")


def check_finite(configuration: Any) -> None:
    """
    Refuse NaN and infinity in every field of a configuration, at any depth of a mapping or a list: TRL trains on, with
    weights that are NaN, and logs a loss of 0.

    Raises:
        `ValueError`: The line names the key and its value.
    """
    for field in fields(configuration):
        value = getattr(configuration, field.name, None)
        for number in _numbers_in(value):
            if math.isnan(number) or (math.isinf(number) and field.name not in MAY_BE_INFINITE):
                raise ValueError(f"{field.name}={value!r} must be finite: NaN and infinity train nothing. Correct it.")


def _numbers_in(value: Any, depth: int = 0) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, (list, tuple, dict)) and depth < 50:
        inside = value.values() if isinstance(value, dict) else value
        for single in inside:
            yield from _numbers_in(single, depth + 1)


def _refuse_unless(is_right: bool, name: str, value: Any, words: str) -> None:
    if not is_right:
        raise ValueError(f"{name}={value!r} must be {words}.")
