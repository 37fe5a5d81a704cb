"""Is there something to train on, and does it fit? Asked before a model is loaded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from datasets import Dataset
from trl.trainer.utils import is_async_callable

from ..rollout.verdicts import draw_sizes, verifier_of


def check_columns(rows: Any, name: str = "train_dataset") -> None:
    """
    Refuse a dataset that is empty, or has no prompts.

    Args:
        rows ([`~datasets.Dataset`]): The dataset; a dataset of another type is left to TRL.
        name (`str`, *optional*, defaults to `"train_dataset"`): Its name in the message.

    Raises `ValueError`: naming the columns that are there, and the one that is needed.
    """
    if not isinstance(rows, Dataset):
        return
    if len(rows) == 0:
        raise ValueError(f"{name} is empty: it has 0 rows, and training would do 0 steps. Give it rows.")
    if "prompt" not in rows.column_names:
        raise ValueError(
            f"{name} has no column 'prompt'; it has {', '.join(rows.column_names)}. Rename the one that holds the "
            "prompts: dataset.rename_column(...)."
        )


def check_pass_at_k(asked: Mapping[str, str], functions: Iterable[Any], n: int, evaluation: Any) -> None:
    """
    Refuse a pass@k that no evaluation will measure.

    Args:
        asked (`Mapping[str, str]`): Names of metrics by the key that asks for them; other metrics are TRL's affair.
        functions (`Iterable`): The reward functions.
        n (`int`): Completions of a prompt in an evaluation.
        evaluation ([`~datasets.Dataset`] or `dict` of them): The evaluation set, or several by name.

    Raises `ValueError`: naming the key, its value and what is measured.
    """
    verifier = verifier_of(functions)
    if verifier is not None and is_async_callable(verifier):
        raise ValueError(
            f"the verifier {verifier.__qualname__!r} of a reward function is asynchronous: make it plain."
        )
    sets = evaluation if isinstance(evaluation, dict) else {"": evaluation}
    for key, metric in asked.items():
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
        for name, rows in sets.items():
            whole = [f"eval_{name}_pass@{k}" if name else f"eval_pass@{k}" for k in draw_sizes(n)]
            tasks = tasks_of(rows)
            known += whole + [f"{each}/{task}" for task in tasks or () for each in whole]
            if tasks is None and full.partition("/")[0] in whole:
                known.append(full)
        if full not in known:
            raise ValueError(
                f"{key}={metric!r} is not measured: with {n} completions a prompt (num_generations_eval, else "
                f"num_generations) an evaluation has {', '.join(known)}. Set it to one of them."
            )


def tasks_of(rows: Any) -> list[str] | None:
    """The names in a dataset's column `task` if they are several; `None` if its rows cannot be looked at."""
    if not isinstance(rows, Dataset):
        return None
    names = sorted({name for name in rows["task"] if isinstance(name, str)}) if "task" in rows.column_names else []
    return names if len(names) > 1 else []


def check_rows(rows: Any, batch: int, num_generations: int) -> None:
    """
    Refuse a training set that does not fill one generation batch: TRL would train 0 steps.

    Args:
        rows ([`~datasets.Dataset`]): The training set; a dataset of another type is left to TRL.
        batch (`int`), num_generations (`int`): Completions of one generation batch, and of one prompt.

    Raises `ValueError`: naming both numbers.
    """
    needed = batch // num_generations
    if isinstance(rows, Dataset) and len(rows) < needed:
        raise ValueError(
            f"the training set has {len(rows)} prompts, and one generation takes {needed} "
            f"(generation_batch_size={batch} / num_generations={num_generations}). Raise train_rows, or lower "
            "per_device_train_batch_size or gradient_accumulation_steps."
        )


def check_in_one_place(model: Any) -> None:
    """
    Refuse a model of which transformers has left a part on the CPU or on disk, because the GPU had no room for it:
    every forward would move that part, and nothing could read its weights.

    Args:
        model ([`~transformers.PreTrainedModel`]): Loaded with a device map, or without one.

    Raises `ValueError`: naming how much was left.
    """
    places = [str(place).split(":")[0] for place in (getattr(model, "hf_device_map", None) or {}).values()]
    left = sum(place in ("cpu", "disk") for place in places)
    if left and (left < len(places) or "disk" in places):
        raise ValueError(
            f"the GPU's free memory does not hold the model: transformers left {left} of its {len(places)} parts on "
            "the CPU or on disk. End what else uses the GPU, take a smaller model, or load this one in 4 bits "
            "(load_in_4bit: true; in a script a quantization_config)."
        )


def check_pack_limit(limit: int | None, lengths: Sequence[int], max_completion_length: int | None, which: str) -> None:
    """
    Refuse a `pack_max_tokens` that would stop the run when its longest prompt comes.

    Args:
        limit (`int`, *optional*): `pack_max_tokens`.
        lengths (`Sequence[int]`): Tokens of every prompt.
        max_completion_length (`int`, *optional*): Most tokens of a completion; `None` if nothing bounds them.
        which (`str`): Which prompts: `"training"` or `"validation"`.

    Raises `ValueError`: naming the prompt and what it needs.
    """
    if limit is None or not lengths:
        return
    longest = max(lengths)
    # A packed row ends each prompt one token early, and begins each completion with that token.
    needed = longest + (max_completion_length or 1)
    if needed > limit:
        raise ValueError(
            f"pack_max_tokens={limit} is less than the {needed} tokens of {which} prompt {lengths.index(longest)} "
            f"({longest}) with a completion of max_completion_length={max_completion_length}: raise it to {needed}, "
            "lower max_completion_length, or drop long prompts."
        )


def check_prompts_fit(train: Any, evaluation: Any, tokenize: Callable[[list], list[list[int]]], args: Any) -> None:
    """
    Refuse prompts that exceed `pack_max_tokens` with the longest completion; streamed prompts are checked later.

    Args:
        train ([`~datasets.Dataset`]), evaluation ([`~datasets.Dataset`] or `dict` of them): The sets of prompts.
        tokenize (`Callable`): Token ids of prompts.
        args ([`ProRLConfig`]): The limit, and the longest completion.

    Raises `ValueError`: as [`check_pack_limit`].
    """
    sets = evaluation if isinstance(evaluation, dict) else {"validation": evaluation}
    for which, rows in {"training": train, **sets}.items():
        if isinstance(rows, Dataset):
            prompts = rows["prompt"]
            lengths: list[int] = []
            for start in range(0, len(prompts), 1000):
                lengths += map(len, tokenize(prompts[start : start + 1000]))
            check_pack_limit(args.pack_max_tokens, lengths, args.max_completion_length, which)
