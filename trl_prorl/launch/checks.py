"""Is there something to train on, and does it fit? Asked before a model is loaded."""

from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset


def check_columns(rows: Any, name: str = "train_dataset") -> None:
    """
    Refuse a dataset that is empty, or has no prompts.

    Args:
        rows ([`~datasets.Dataset`]):
            The dataset; a dataset of another type is left to TRL.
        name (`str`, *optional*, defaults to `"train_dataset"`):
            Its name in the message.

    Raises:
        `ValueError`: naming the columns that are there, and the one that is needed.
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


def tasks_of(rows: Any) -> set[str] | None:
    """The names in the column `task` of a dataset; `None` if its rows cannot be looked at."""
    if not isinstance(rows, Dataset):
        return None
    return {name for name in rows["task"] if isinstance(name, str)} if "task" in rows.column_names else set()


def check_rows(rows: Any, batch: int, num_generations: int) -> None:
    """
    Refuse a training set that does not fill one generation batch: TRL would train 0 steps.

    Args:
        rows ([`~datasets.Dataset`]):
            The training set; a dataset of another type is left to TRL.
        batch (`int`), num_generations (`int`):
            Completions of one generation batch, and of one prompt.

    Raises:
        `ValueError`: naming both numbers.
    """
    needed = batch // num_generations
    if isinstance(rows, Dataset) and len(rows) < needed:
        raise ValueError(
            f"the training set has {len(rows)} prompts, and one generation takes {needed} "
            f"(generation_batch_size={batch} / num_generations={num_generations}). Raise train_rows, or lower "
            "per_device_train_batch_size or gradient_accumulation_steps."
        )


def check_pack_limit(limit: int | None, lengths: Sequence[int], max_completion_length: int | None, which: str) -> None:
    """
    Refuse a `pack_max_tokens` that would stop the run when its longest prompt comes.

    Args:
        limit (`int`, *optional*):
            `pack_max_tokens`.
        lengths (`Sequence[int]`):
            Tokens of every prompt.
        max_completion_length (`int`, *optional*):
            Most tokens of a completion; `None` if nothing bounds them.
        which (`str`):
            Which prompts: `"training"` or `"validation"`.

    Raises:
        `ValueError`: naming the prompt and what it needs.
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
        train ([`~datasets.Dataset`]), evaluation ([`~datasets.Dataset`] or `dict` of them):
            The sets of prompts.
        tokenize (`Callable`):
            Token ids of prompts.
        args ([`ProRLConfig`]):
            The limit, and the longest completion.

    Raises:
        `ValueError`: as [`check_pack_limit`].
    """
    sets = evaluation if isinstance(evaluation, dict) else {"validation": evaluation}
    for which, rows in {"training": train, **sets}.items():
        if isinstance(rows, Dataset):
            prompts = rows["prompt"]
            lengths: list[int] = []
            for start in range(0, len(prompts), 1000):
                lengths += map(len, tokenize(prompts[start : start + 1000]))
            check_pack_limit(args.pack_max_tokens, lengths, args.max_completion_length, which)
