"""Is there something to train on, does it fit, and is what it needs installed? Asked before a model is loaded."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback
from transformers.integrations import get_available_reporting_integrations
from trl.import_utils import is_vllm_available
from trl.trainer.utils import get_callable_name, is_async_callable

from ..config import ProRLConfig
from ..rollout.verdicts import draw_sizes, find_verifier
from ..text import nearest


def check_packages(args: ProRLConfig) -> None:
    """
    Refuse settings that need a package that is not installed.

    Raises:
        `ValueError`: The line names the key.
    """
    if args.use_vllm and not is_vllm_available():
        raise ValueError(
            "use_vllm=True needs vLLM, which is not installed: pip install trl[vllm], or set use_vllm: false."
        )
    installed = get_available_reporting_integrations()
    for name in args.report_to:
        if name not in installed:
            raise ValueError(
                f"report_to={name!r}: there is no such tracker here. Install its package, or set report_to to none or "
                f"to one that is installed: {', '.join(installed) or 'there is none'}."
            )


def check_columns(rows: Any) -> None:
    """
    Refuse a training set without prompts; one that is no [`~datasets.Dataset`] is left to TRL.

    Raises:
        `ValueError`: The line names the columns that are there, and the one that is needed.
    """
    if isinstance(rows, Dataset) and "prompt" not in rows.column_names:
        raise ValueError(
            f"train_dataset has no column 'prompt'; it has {', '.join(rows.column_names)}. Rename the one that holds "
            "the prompts: dataset.rename_column(...)."
        )


# Of these more is better, whatever the rewards are.
RISES = re.compile(r"(eval_)?(.+_)?(reward|pass@\d+(/.+)?)")


def choose_best_metric(args: Any, functions: Iterable[Any], evaluation: Any, callbacks: Iterable[Any]) -> None:
    """
    Set `metric_for_best_model` and `greater_is_better` where something chooses by them and they are not given: to
    pass@1 if an evaluation measures it, else to the reward. Transformers would take the lowest loss, which says
    nothing in GRPO.

    Args:
        args ([`~trl_prorl.ProRLConfig`]): Is changed.
        functions (`Iterable`): The reward functions.
        evaluation (`Dataset` or `dict`): The evaluation set, or several by name.
        callbacks (`Iterable`): The trainer's.

    Raises:
        `ValueError`: The line names the key, and says why nothing can be chosen so.
    """
    stops = any(isinstance(callback, EarlyStoppingCallback) for callback in callbacks)
    by_rate = args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
    chooses = args.load_best_model_at_end or args.save_strategy == "best"
    metric = args.metric_for_best_model
    if metric is None and (chooses or stops or by_rate):
        if by_rate:
            raise ValueError(
                f"lr_scheduler_type={args.lr_scheduler_type.value!r} follows metric_for_best_model, which is not set. "
                "Set metric_for_best_model: eval_reward (or eval_pass@1), and lr_scheduler_kwargs: {mode: max}."
            )
        if isinstance(evaluation, dict):
            raise ValueError(
                "metric_for_best_model is not set, and the evaluation has several sets. Set it to that of one, as "
                f"eval_{next(iter(evaluation), 'NAME')}_pass@1, for which a reward function needs a batch_verifier."
            )
        metric = "eval_reward" if find_verifier(functions) is None else "eval_pass@1"
        args.metric_for_best_model = metric
        if args.greater_is_better is None:
            args.greater_is_better = True
    if metric is not None and args.greater_is_better is False and RISES.fullmatch(metric):
        raise ValueError(
            f"greater_is_better=False with metric_for_best_model={metric!r} would choose the worst model. Set it to "
            "true, or leave it out."
        )


def check_verifier(functions: Iterable[Any], needs_verdicts: Mapping[str, Any]) -> None:
    """
    Refuse keys that need verdicts if no reward function has a `batch_verifier`, and an asynchronous `batch_verifier`.

    Args:
        functions (`Iterable`): The reward functions.
        needs_verdicts (`Mapping[str, Any]`): The values of those keys by name.

    Raises:
        `ValueError`: The line names the key and the cure.
    """
    verifier = find_verifier(functions)
    if verifier is None:
        for key, value in needs_verdicts.items():
            raise ValueError(
                f"{key}={value!r} needs to know which completions are correct, and no reward function has a "
                "batch_verifier. Remove the key, or set reward.batch_verifier = verify, where "
                "verify(completions, **columns) returns one bool per completion."
            )
    elif is_async_callable(verifier):
        raise ValueError(
            f"batch_verifier {verifier.__qualname__!r} of a reward function is asynchronous: define it without async."
        )


# What TRL measures in an evaluation, by the first part of its name; of rewards and pass@k the whole name counts.
MEASURED = frozenset(
    "reward reward_std loss frac_reward_zero_std entropy kl kl_old kl_base num_tokens policy_loss entropy_coef "
    "aux_loss cispo_clip_ratio runtime samples_per_second steps_per_second completions clip_ratio tools sampling "
    "vespo prorl".split()
)


def check_measured(metrics: Mapping[str, str], functions: Iterable[Any], n: int, evaluation: Any) -> None:
    """
    Refuse a metric that no evaluation measures, because the first one may come hours later. Of reward functions that
    log metrics of their own (`log_metric`), and of models, the first evaluation decides.

    Args:
        metrics (`Mapping[str, str]`): The metrics by the keys that name them.
        functions (`Iterable`): The reward functions.
        n (`int`): Completions of a prompt in an evaluation.
        evaluation (`Dataset` or `dict`): The evaluation set, or several by name.

    Raises:
        `ValueError`: The line names the key, the metric and those that are measured.
    """
    if any(map(_may_log, functions)):
        return
    passes = [f"pass@{k}" for k in draw_sizes(n)]
    means = [f"rewards/{get_callable_name(function)}/mean" for function in functions]
    deviations = [name.replace("/mean", "/std") for name in means]
    sets = evaluation if isinstance(evaluation, dict) else ()
    for key, metric in metrics.items():
        name = metric.removeprefix("eval_")
        for of_set in sets:
            name = name.removeprefix(f"{of_set}_")
        family = name.partition("/")[0]
        if name not in (*means, *deviations) and family not in MEASURED.union(passes):
            known = [f"eval_{name}" for name in ("reward", *passes, *means, "loss")]
            raise ValueError(
                f"{key}={metric!r} is not measured: an evaluation has {', '.join(known)}{nearest(metric, known)}."
            )


def _may_log(function: Any) -> bool:
    """Return whether a reward function may log metrics of its own, or is a model."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code is None or "log_metric" in (*code.co_varnames, *code.co_consts)


def check_rows(rows: Any, batch: int, num_generations: int, cure: str = "Give more rows") -> None:
    """
    Refuse a training set that does not fill one generation batch of so many completions, `num_generations` of each
    prompt: TRL would train 0 steps. One that is no [`~datasets.Dataset`] is left to TRL. `cure` says how to have more.

    Raises:
        `ValueError`: The line names both numbers.
    """
    needed = batch // num_generations
    if isinstance(rows, Dataset) and len(rows) < needed:
        raise ValueError(
            f"the training set has {len(rows)} prompts, and one generation takes {needed} "
            f"(generation_batch_size={batch} / num_generations={num_generations}). {cure}, or lower "
            "per_device_train_batch_size or gradient_accumulation_steps."
        )


def check_in_one_place(model: Any) -> None:
    """
    Refuse a model of which transformers has left a part on the CPU or on disk, because the GPU had no room for it:
    every forward would move that part, and nothing could read its weights.

    Raises:
        `ValueError`: The line names how much was left.
    """
    device_map = getattr(model, "hf_device_map", None) or {}
    places = [str(place).split(":")[0] for place in device_map.values()]
    left = sum(place in ("cpu", "disk") for place in places)
    if left and (left < len(places) or "disk" in places):
        raise ValueError(
            f"the GPU's free memory does not hold the model: transformers left {left} of its {len(places)} parts on "
            "the CPU or on disk. End what else uses the GPU, take a smaller model, or load this one in 4 bits "
            "(load_in_4bit: true; in a script a quantization_config)."
        )


def prompt_lengths(rows: Dataset, tokenize: Callable[[list], list[list[int]]]) -> list[int]:
    """Return the number of tokens of every prompt; `tokenize` makes token ids of prompts."""
    prompts = rows["prompt"]
    lengths = []
    for start in range(0, len(prompts), 1000):
        lengths += [len(ids) for ids in tokenize(prompts[start : start + 1000])]
    return lengths


def check_prompts_fit(train: Any, evaluation: Any, tokenize: Callable[[list], list[list[int]]], args: Any) -> None:
    """
    Refuse prompts of a set, or of several by name, that exceed `pack_max_tokens` with the longest completion: the run
    would stop when such a prompt comes. Streamed prompts are checked then.

    Raises:
        `ValueError`: The line names the prompt and what it needs.
    """
    limit = args.pack_max_tokens
    longest_completion = args.max_completion_length
    others = evaluation if isinstance(evaluation, dict) else {"validation": evaluation}
    for which, rows in {"training": train, **others}.items():
        if not isinstance(rows, Dataset) or len(rows) == 0:
            continue
        lengths = prompt_lengths(rows, tokenize)
        longest = max(lengths)
        # A packed row ends each prompt one token early, and begins each completion with that token.
        needed = longest + (longest_completion or 1)
        if needed > limit:
            raise ValueError(
                f"pack_max_tokens={limit} is less than the {needed} tokens of {which} prompt {lengths.index(longest)} "
                f"({longest}) with a completion of max_completion_length={longest_completion}: raise it to {needed}, "
                "lower max_completion_length, or drop long prompts."
            )
