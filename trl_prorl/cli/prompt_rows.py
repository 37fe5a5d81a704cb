"""The prompts of data sets."""

from collections.abc import Iterator, Mapping
from typing import Any

from datasets import Dataset


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


def has_images(trainer) -> bool:
    """Return whether a model may see images: then TRL scores every model."""
    columns = getattr(trainer.train_dataset, "column_names", None) or ()
    return trainer.is_vlm or not {"image", "images"}.isdisjoint(columns)
