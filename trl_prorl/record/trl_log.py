"""What TRL has gathered for its next log when a checkpoint is saved: metrics and the last completions."""

from collections.abc import Mapping
from typing import Any

from trl.trainer.utils import strip_images_from_messages


def saved(metrics: Mapping[str, list[float]], completions: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    The metrics and the table as JSON values.

    Args:
        metrics (`Mapping[str, list[float]]`): TRL's metrics of training since its last log.
        completions (`Mapping[str, Any]`, *optional*): TRL's table of completions, which it writes with every log.
    """
    state: dict[str, Any] = {"metrics": dict(metrics), "completions": None}
    if completions is not None:
        table = {name: list(map(strip_images_from_messages, completions[name])) for name in ("prompt", "completion")}
        table["advantages"] = list(completions["advantages"])
        for name in ("rewards", "extra"):
            table[name] = {column: list(values) for column, values in completions[name].items()}
        state["completions"] = table
    return state


def restored(state: Mapping[str, Any], metrics: dict[str, list[float]], completions: Mapping[str, Any]) -> None:
    """Put the values that [`saved`] returned into TRL's metrics and its table."""
    metrics.update(state["metrics"])
    for name, values in (state["completions"] or {}).items():
        if isinstance(values, dict):
            for column, column_values in values.items():
                completions[name][column].extend(column_values)
        else:
            completions[name].extend(values)
