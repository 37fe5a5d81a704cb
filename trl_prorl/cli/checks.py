"""Checks when a trainer is made: training data, reward functions and metrics."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import EarlyStoppingCallback
from trl.trainer.utils import get_callable_name, get_config_model_id, is_async_callable

from ..errors import InputError
from ..evaluation import find_verifier, pass_k_values
from ..supported import EVALUATED, PATH_DEPENDENT_SCHEDULES
from ..text import nearest
from .prompt_rows import Tokenize, is_transformed, named_sets, read_prompts


def check_columns(rows: Any) -> None:
    """
    Raise `ValueError` for a training set without prompts. TRL checks one that is no [`~datasets.Dataset`]; a transform
    may make prompts of other columns, and its rows are checked as they are read.
    """
    if isinstance(rows, Dataset) and "prompt" not in rows.column_names and not is_transformed(rows):
        raise ValueError(
            f"train_dataset has no column 'prompt'; its columns are {', '.join(rows.column_names)}. Rename the column "
            "with the prompts: dataset.rename_column(NAME, 'prompt')."
        )


def choose_best_metric(args: Any, functions: Iterable[Any], evaluation: Any, callbacks: Iterable[Any]) -> None:
    """
    Set `metric_for_best_model` and `greater_is_better` of `args` if they are needed and not given: to pass@1 if an
    evaluation measures it, otherwise to the reward. (The default of transformers is the lowest loss, which is
    meaningless in GRPO.) Raises `ValueError`: no metric can be chosen.
    """
    stops = any(isinstance(callback, EarlyStoppingCallback) for callback in callbacks)
    by_rate = args.lr_scheduler_type.value in PATH_DEPENDENT_SCHEDULES
    chooses = args.load_best_model_at_end or args.save_strategy == "best"
    metric = args.metric_for_best_model
    if metric is None and (chooses or stops or by_rate):
        if by_rate:
            raise ValueError(
                f"lr_scheduler_type={args.lr_scheduler_type.value!r} needs metric_for_best_model. Set "
                "metric_for_best_model: eval_reward (or eval_pass@1), and lr_scheduler_kwargs: {mode: max}."
            )
        if isinstance(evaluation, dict):
            raise ValueError(
                "metric_for_best_model must be set, because there are several evaluation sets. Set it to a metric of "
                f"one, for example eval_{next(iter(evaluation), 'NAME')}_reward."
            )
        metric = "eval_reward" if find_verifier(functions) is None else "eval_pass@1"
        args.metric_for_best_model = metric
        if args.greater_is_better is None:
            args.greater_is_better = True


def reward_name(function: Any) -> str:
    """Return the name under which TRL logs a reward function or a reward model."""
    if isinstance(function, str):
        return function.split("/")[-1]
    if isinstance(function, torch.nn.Module):
        return get_config_model_id(function.config).split("/")[-1]
    return get_callable_name(function)


def check_reward_names(names: Sequence[str]) -> None:
    """Raise `InputError` for two reward functions of one name, which would be logged under one key."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(
            f"reward_funcs={', '.join(names)}: {names.count(repeated)} reward functions are named {repeated!r}, so "
            "their rewards would be logged under one key. Set __name__ of a function or an instance, write a function "
            "(def) around a functools.partial, or rename a model's folder (config._name_or_path)."
        )


def check_verifier(functions: Sequence[Any], needs_verdicts: Mapping[str, Any]) -> None:
    """
    Raise `ValueError` if keys need a `batch_verifier` that no reward function has, if functions have several, or if it
    is asynchronous.
    """
    verifier = find_verifier(functions)
    of_functions = [find_verifier([function]) for function in functions]
    others = [one for one in of_functions if one not in (None, verifier)]
    if others:
        raise ValueError(
            f"{1 + len(others)} reward functions have a batch_verifier of their own, and one decides which "
            "completions are correct. Remove the others, or give the trainer verify=is_correct, where "
            "is_correct(completion, row) returns a bool."
        )
    if verifier is None and needs_verdicts:
        key, value = next(iter(needs_verdicts.items()))
        raise ValueError(
            f"{key}={value!r} needs to know which completions are correct, and no reward function has a "
            "batch_verifier. Remove the key, or give the trainer verify=is_correct, where "
            "is_correct(completion, row) returns a bool."
        )
    if verifier is not None and is_async_callable(verifier):
        raise ValueError(
            f"batch_verifier {verifier.__qualname__!r} of a reward function is asynchronous: define it without async."
        )


def check_measured(metrics: Mapping[str, str], functions: Iterable[Any], n: int, evaluation: Any) -> None:
    """
    Raise `ValueError` for a metric that no evaluation measures. Reward functions that log metrics (`log_metric`), and
    reward models, are checked at the first evaluation instead.

    Args:
        metrics (`Mapping[str, str]`): The metrics, by the keys that select them.
        functions (`Iterable`): The reward functions.
        n (`int`): Completions per prompt.
        evaluation (`Dataset` or `dict`): The evaluation set, or several by name.

    Raises:
        `ValueError`: The metric is not measured. The message lists the metrics that are.
    """
    if any(map(_may_log, functions)):
        return
    passes = [f"pass@{k}" for k in pass_k_values(n)]
    means = [f"rewards/{get_callable_name(function)}/mean" for function in functions]
    deviations = [name.replace("/mean", "/std") for name in means]
    rewards = {*means, *deviations}
    measured = EVALUATED.union(passes)
    named = ("reward", *passes, *means, "loss")
    prefixes = ["eval_"]
    if isinstance(evaluation, dict):
        prefixes = [f"eval_{name}_" for name in evaluation]
    for key, metric in metrics.items():
        full = f"eval_{metric.removeprefix('eval_')}"
        names = [full.removeprefix(prefix) for prefix in prefixes if full.startswith(prefix)]
        if not any(name in rewards or name.partition("/")[0] in measured for name in names):
            known = [f"{prefix}{name}" for prefix in prefixes for name in named]
            raise ValueError(
                f"{key}={metric!r} is not a metric of the evaluations{nearest(metric, known)}. Set it to one of "
                f"{', '.join(known)}."
            )


def _may_log(function: Any) -> bool:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code is None or "log_metric" in (*code.co_varnames, *code.co_consts)


def check_rows(rows: Any, batch: int, num_generations: int, cure: str = "Give more rows") -> None:
    """
    Raise `ValueError` if a training set has too few prompts for one generation batch: TRL would train 0 steps. TRL
    checks one that is no [`~datasets.Dataset`]. `cure` is the instruction that adds prompts.
    """
    needed = batch // num_generations
    if isinstance(rows, Dataset) and len(rows) < needed:
        raise ValueError(
            f"the training set has {len(rows)} prompts, but one generation batch needs {needed} "
            f"(generation_batch_size={batch} / num_generations={num_generations}). {cure}, or lower "
            "per_device_train_batch_size or gradient_accumulation_steps."
        )


def check_in_one_place(model: Any) -> None:
    """
    Raise `ValueError` if transformers offloaded part of a model to the CPU or to disk: every forward pass would move
    that part, and its weights could not be read.
    """
    device_map = getattr(model, "hf_device_map", None) or {}
    places = [str(place).split(":")[0] for place in device_map.values()]
    left = sum(place in ("cpu", "disk") for place in places)
    if left and (left < len(places) or "disk" in places):
        raise ValueError(
            f"the model does not fit into the GPU's free memory: transformers offloaded {left} of its {len(places)} "
            "parts to the CPU or to disk. Stop other programs on the GPU, use a smaller model, or load this one in "
            "4-bit (load_in_4bit: true; in a script, a quantization_config)."
        )


def prompt_lengths(rows: Dataset, tokenize: Tokenize) -> list[int]:
    prompts = read_prompts(rows)
    lengths = []
    for start in range(0, len(prompts), 1000):
        lengths += [len(ids) for ids in tokenize(prompts[start : start + 1000])]
    return lengths


def check_prompts_fit(train: Any, evaluation: Any, tokenize: Tokenize, args: Any) -> None:
    """
    Raise `ValueError` if a prompt and the longest completion exceed `pack_max_tokens`. Streamed prompts are checked as
    they are read.
    """
    limit = args.pack_max_tokens
    longest_completion = args.max_completion_length
    for which, rows in named_sets(train, evaluation).items():
        if not isinstance(rows, Dataset) or len(rows) == 0:
            continue
        lengths = prompt_lengths(rows, tokenize)
        longest = max(lengths)
        # A packed row ends each prompt one token early, and begins each completion with that token.
        needed = longest + (longest_completion or 1)
        if needed > limit:
            raise ValueError(
                f"pack_max_tokens={limit} is less than the {needed} tokens of {which}, row {lengths.index(longest)} "
                f"({longest}) with a completion of max_completion_length={longest_completion}. Raise pack_max_tokens "
                f"to {needed}, lower max_completion_length, or drop long prompts."
            )


def shards_weights(trainer) -> bool:
    plugin = trainer.args.deepspeed_plugin
    return trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3)
