"""A user's held-out rows and verifier in place of a task: from a script, or from the two functions of a plugin."""

from collections.abc import Callable, Mapping

from datasets import Dataset

from trl_prorl.errors import InputError
from trl_prorl.eval.samples.store import distinct
from trl_prorl.tasks import plugin
from trl_prorl.tasks.own import OwnTask, check_verifier


def has_image(row: Mapping) -> bool:
    """Return whether TRL finds an image in a row: in its columns, or in parts of its messages."""
    messages = row["prompt"] if isinstance(row["prompt"], list) else []
    parts = [part for message in messages for part in message.get("content") or ()]
    in_parts = any(isinstance(part, dict) and part.get("type") == "image" for part in parts)
    return in_parts or row.get("image") is not None or bool(row.get("images"))


class OwnRows(OwnTask):
    """
    A user's rows and verifier.

    Args:
        rows (`datasets.Dataset`): Held-out rows: `prompt` (messages or text), and the columns that the verifier needs.
            Rows that equal an earlier one are left out.
        verifier (`Callable`, *optional*): As in [`~trl_prorl.tasks.own.OwnTask`].

    Raises:
        InputError: If the rows have no prompts, or if the verifier fails on the first one.
    """

    def __init__(self, rows: Dataset, verifier: Callable | None):
        super().__init__(verifier)
        if not isinstance(rows, Dataset) or "prompt" not in rows.column_names:
            raise InputError("rows must be a datasets.Dataset with a column prompt")
        if any(map(has_image, rows)):
            raise InputError("rows have images, and held-out evaluations read text alone: pass them as eval_dataset")
        self.all_rows = rows.select(distinct(rows, "rows"))
        if verifier is not None:
            check_verifier(verifier, rows[0], "verifier")

    def rows(self, split: str, n: int | None, seed: int = 0) -> Dataset:
        if n is not None and n > len(self.all_rows):
            raise ValueError(f"there are {len(self.all_rows)} rows")
        return self.all_rows if n is None else self.all_rows.select(range(n))


def plugin_rows() -> OwnRows:
    """
    Return the rows and the verifier of the one plugin that has them.

    Raises:
        InputError: If no plugin or several have them, or they cannot be used.
    """
    if len(plugin.HELD_OUT) != 1:
        raise InputError(f"give one --plugin FILE.py with {plugin.ROWS}() and {plugin.VERIFY}(completion, row)")
    (module,) = plugin.HELD_OUT.values()
    return OwnRows(getattr(module, plugin.ROWS)(), getattr(module, plugin.VERIFY, None))
