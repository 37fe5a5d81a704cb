"""The prompts of data sets."""

from collections.abc import Iterator, Mapping
from typing import Any

from datasets import Dataset

from ..errors import InputError


def named_sets(train: Any, evaluation: Any) -> dict[str, Any]:
    """Return the data sets of a trainer by argument; there may be several evaluation sets."""
    sets = {"train_dataset": train}
    if isinstance(evaluation, Mapping):
        return sets | {f"eval_dataset[{name!r}]": rows for name, rows in evaluation.items()}
    return sets | {"eval_dataset": evaluation}


def prompts_of(rows: Any) -> Iterator[tuple[int, Any]]:
    """Yield index and prompt of a [`~datasets.Dataset`]; nothing for other objects."""
    if isinstance(rows, Dataset) and "prompt" in rows.column_names:
        parts = rows.select_columns(["prompt"]).with_format(None).iter(batch_size=1000)
        yield from enumerate(prompt for part in parts for prompt in part["prompt"])


def read_prompts(rows: Dataset) -> list:
    return [prompt for _, prompt in prompts_of(rows)]


def has_image_columns(rows: Any) -> bool:
    """Return whether a data set has columns in which TRL looks for images."""
    columns = getattr(rows, "column_names", None) or ()
    return not {"image", "images"}.isdisjoint(columns)


def is_text_only(rows: Any) -> bool:
    """Return whether features show that all prompts are text, or messages of text. A transform's rows may differ."""
    if isinstance(rows, Dataset) and rows.format["type"] == "custom":
        return False
    feature = (getattr(rows, "features", None) or {}).get("prompt")
    message = getattr(feature, "feature", feature)  # of a list of messages, one
    content = message.get("content") if isinstance(message, dict) else message
    return getattr(content, "dtype", None) == "string" and not has_image_columns(rows)


def has_images(trainer) -> bool:
    """Return whether columns, messages, or replies of tools and environments may have images."""
    if not trainer.is_vlm:
        return has_image_columns(trainer.train_dataset)
    if trainer.tools or trainer.environment_factories is not None:
        return True
    sets = named_sets(trainer.train_dataset, trainer.eval_dataset).values()
    return not all(rows is None or is_text_only(rows) for rows in sets)


def check_images(trainer) -> None:
    """Raise `InputError` for a key that selects rows of a batch, with prompts whose images are no rows."""
    for key in ("skip_zero_rows", "dynamic_sampling_rounds"):
        value = getattr(trainer.args, key)
        if value and has_images(trainer):
            raise InputError(f"{key}={value} does not support prompts with images. Remove it.")
