"""Is there something to train on, does it fit, and is what it needs installed? Asked before a model is loaded."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback
from transformers.integrations import get_available_reporting_integrations
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from trl.import_utils import is_vllm_available
from trl.trainer.utils import get_callable_name, is_async_callable

from ..config import ProRLConfig
from ..rollout.verdicts import draw_sizes, find_verifier


def check_packages(args: ProRLConfig) -> None:
    """
    Refuse settings that need a package that is not installed, and a tracker that transformers does not know.

    Raises:
        `ValueError`: The line names the key.
    """
    if args.use_vllm and not is_vllm_available():
        raise ValueError(
            "use_vllm=True needs vLLM, which is not installed: pip install trl[vllm], or set use_vllm: false."
        )
    installed = get_available_reporting_integrations()
    for name in args.report_to:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(INTEGRATION_TO_CALLBACK)
            raise ValueError(f"report_to: {name!r} is no tracker. Set it to none, to all, or to some of {known}.")
        if name not in installed:
            raise ValueError(
                f"report_to={name!r} needs a package that is not installed. Install it, or set report_to: none."
            )


def check_columns(rows: Any) -> None:
    """
    Refuse a training set that is empty, or has no prompts; one that is no [`~datasets.Dataset`] is left to TRL.

    Raises:
        `ValueError`: The line names the columns that are there, and the one that is needed.
    """
    if not isinstance(rows, Dataset):
        return
    if len(rows) == 0:
        raise ValueError("train_dataset is empty: it has 0 rows, and training would do 0 steps. Give it rows.")
    if "prompt" not in rows.column_names:
        raise ValueError(
            f"train_dataset has no column 'prompt'; it has {', '.join(rows.column_names)}. Rename the one that holds "
            "the prompts: dataset.rename_column(...)."
        )


# What every evaluation measures, after `eval_`: by whole names, and by what stands before a `/`.
MEASURED = (
    "loss reward reward_std frac_reward_zero_std entropy kl kl_old kl_base num_tokens policy_loss entropy_coef "
    "aux_loss cispo_clip_ratio runtime samples_per_second steps_per_second"
).split()
MEASURED_IN_PARTS = ("rewards", "completions", "clip_ratio", "tools", "sampling", "vespo", "prorl")
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
    if stops and args.eval_strategy == "no":
        raise ValueError(
            "EarlyStoppingCallback watches evaluations, and eval_strategy='no' makes none. Set eval_strategy: steps."
        )
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
                f"eval_{next(iter(evaluation), 'NAME')}_pass@1, for which a reward function needs a verifier."
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


def check_metrics(metrics: Mapping[str, str], functions: Iterable[Any], n: int, evaluation: Any) -> None:
    """
    Refuse a metric that no evaluation will measure. Rewards may log others (`log_metric`): of those that do so by
    their code, the first evaluation decides.

    Args:
        metrics (`Mapping[str, str]`), functions (`Iterable`), n (`int`), evaluation (`Dataset` or `dict`):
            As for [`check_pass_at_k`].

    Raises:
        `ValueError`: The line names the key, its value and what is measured.
    """
    check_pass_at_k(metrics, functions, n, evaluation)
    if any(map(_may_log, functions)):
        return
    prefixes = ["eval_"]
    if isinstance(evaluation, dict):
        prefixes += [f"eval_{name}_" for name in evaluation]
    rewards = [get_callable_name(function) for function in functions]
    of_rewards = [f"rewards/{name}/{what}" for name in rewards for what in ("mean", "std")]
    for key, metric in metrics.items():
        full = metric if metric.startswith("eval_") else f"eval_{metric}"
        names = [full.removeprefix(prefix) for prefix in prefixes if full.startswith(prefix)]
        if any(_is_measured(name, of_rewards) for name in names):
            continue
        known = ["eval_reward", *(f"eval_{name}" for name in of_rewards if name.endswith("mean")), "eval_loss"]
        if find_verifier(functions) is not None:
            known[:0] = [f"eval_pass@{k}" for k in draw_sizes(n)]
        raise ValueError(
            f"{key}={metric!r} is not measured: an evaluation has {', '.join(known)}. Set it to one of them."
        )


def _is_measured(name: str, of_rewards: list[str]) -> bool:
    """Return whether an evaluation may have a metric of this name."""
    family = name.partition("/")[0]
    if family == "rewards":
        return name in of_rewards
    return name in MEASURED or family in MEASURED_IN_PARTS or "pass@" in name


def _may_log(function: Any) -> bool:
    """Return whether a reward may log metrics of its own, or is a model, whose name is not known yet."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return code is None or "log_metric" in (*code.co_varnames, *code.co_consts)


def check_pass_at_k(metrics: Mapping[str, str], functions: Iterable[Any], n: int, evaluation: Any) -> None:
    """
    Refuse a pass@k that no evaluation will measure.

    Args:
        metrics (`Mapping[str, str]`): Names of metrics by the key that watches them; others than pass@k are TRL's.
        functions (`Iterable`): The reward functions.
        n (`int`): Completions of a prompt in an evaluation.
        evaluation (`Dataset` or `dict`): The evaluation set, or several by name.

    Raises:
        `ValueError`: The line names the key, its value and what is measured.
    """
    verifier = find_verifier(functions)
    if verifier is not None and is_async_callable(verifier):
        raise ValueError(
            f"the verifier {verifier.__qualname__!r} of a reward function is asynchronous: make it plain."
        )
    sets_by_prefix = {"eval_": evaluation}
    if isinstance(evaluation, dict) and evaluation:
        sets_by_prefix = {f"eval_{name}_": rows for name, rows in evaluation.items()}
    for key, metric in metrics.items():
        if "pass@" not in metric:
            continue
        if verifier is None:
            raise ValueError(
                f"{key}={metric!r} needs to know which completions are correct, and no reward function has a "
                "verifier. Set it to eval_reward, or give the task's function one: function.verifier = verify, which "
                "is called as the function itself and returns a bool for each completion."
            )
        full = metric if metric.startswith("eval_") else f"eval_{metric}"  # transformers takes both
        known = []
        for prefix, rows in sets_by_prefix.items():
            of_set = [f"{prefix}pass@{k}" for k in draw_sizes(n)]
            known += of_set
            tasks = tasks_of(rows)
            if tasks is None:
                if full.partition("/")[0] in of_set:
                    known.append(full)  # perhaps of a task
                continue
            for task in tasks:
                known += [f"{name}/{task}" for name in of_set]
        if full not in known:
            raise ValueError(
                f"{key}={metric!r} is not measured: with {n} completions a prompt (num_generations_eval, else "
                f"num_generations) an evaluation has {', '.join(known)}. Set it to one of them."
            )


def tasks_of(rows: Any) -> list[str] | None:
    """Return the names in a dataset's column `task` if they are several; `None` if its rows cannot be looked at."""
    if not isinstance(rows, Dataset):
        return None
    if "task" not in rows.column_names:
        return []
    names = sorted({name for name in rows["task"] if isinstance(name, str)})
    return names if len(names) > 1 else []


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
