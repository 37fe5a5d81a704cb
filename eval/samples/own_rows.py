"""A user's held-out rows and verifier in place of a task: from a script, or from the two functions of a plugin."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from datasets import Dataset

from trl_prorl.errors import InputError, RunError
from trl_prorl.eval.samples.store import distinct
from trl_prorl.pass_at_k import as_verdict
from trl_prorl.tasks import plugin
from trl_prorl.tasks.base import Task


TRIED = ("", "42")  # texts to test a verifier with: a completion may be empty


def has_image(row: Mapping) -> bool:
    """Return whether TRL finds an image in a row: in its columns, or in parts of its messages."""
    messages = row["prompt"] if isinstance(row["prompt"], list) else []
    parts = [part for message in messages for part in message.get("content") or ()]
    in_parts = any(isinstance(part, dict) and part.get("type") == "image" for part in parts)
    return in_parts or row.get("image") is not None or bool(row.get("images"))


class OwnRows(Task):
    """
    A user's rows and verifier.

    Args:
        rows (`datasets.Dataset`): Held-out rows: `prompt` (messages or text), and the columns that the verifier needs.
            Rows that equal an earlier one are left out.
        verifier (`Callable`, *optional*): `verifier(completion, row) -> bool` for the text of a completion. Without
            one, completions have no verdict.
        rows_name (`str`, *optional*), verifier_name (`str`, *optional*): Their names in messages.

    Raises:
        InputError: If the rows have no prompts, or if the verifier fails on the first one.
    """

    name = plugin.OWN
    level = None

    def __init__(
        self, rows: Dataset, verifier: Callable | None, rows_name: str = "rows", verifier_name: str = "verifier"
    ):
        self.verifier = verifier
        self.rows_name = rows_name
        self.verifier_name = verifier_name
        if not isinstance(rows, Dataset) or "prompt" not in rows.column_names:
            columns = getattr(rows, "column_names", type(rows).__name__)
            raise InputError(f"{rows_name} must be a datasets.Dataset with a column prompt, not {columns}")
        seen = next((place for place, row in enumerate(rows) if has_image(row)), None)
        if seen is not None:
            raise InputError(
                f"{rows_name}[{seen}] has an image, and held-out evaluations read text alone; leave such rows out, or "
                "pass them as eval_dataset and set eval_strategy"
            )
        rows = self.all_rows = rows.select(distinct(rows, rows_name))
        if len(rows) < 2:
            raise InputError(
                f"{rows_name} has {len(rows)} different rows; at least 2 are needed, and 20 for an interval"
            )
        if verifier is not None:
            check_verifier(verifier, rows[0], verifier_name)

    def rows(self, split: str, n: int | None, seed: int = 0) -> Dataset:
        if split != "test":
            raise ValueError(f"{self.rows_name} has no splits; leave out --split")
        if n is None:
            return self.all_rows
        if n > len(self.all_rows):
            raise ValueError(f"{self.rows_name} has only {len(self.all_rows)} rows; lower --prompts, or leave it out")
        return self.all_rows.select(range(n))

    def verify(self, completion: str, row: Mapping) -> bool | None:
        if self.verifier is None:
            return None
        try:
            verdict = self.verifier(completion, row)
        except Exception as error:
            raise RunError(
                f"{self.verifier_name} raised {type(error).__name__}: {error}, on the completion {completion[:80]!r}; "
                "it must accept any text"
            ) from error
        return as_verdict(verdict, f"{self.verifier_name}, on the completion {completion[:80]!r},")


def check_verifier(verifier: Callable, row: Mapping, name: str) -> None:
    """
    Test a verifier on a row, with texts that no model sampled.

    Raises:
        InputError: If it fails, in one line.
    """
    form = f"write it as {name}(completion, row): it gets the text of one completion and returns True or False"
    if not callable(verifier):
        raise InputError(f"{name}={verifier!r} is not a function; {form}")
    for text in TRIED:
        try:
            verdict = verifier(text, row)
        except Exception as error:
            raise InputError(
                f"{name}({text!r}, row) raised {type(error).__name__}: {error}; the row has the columns "
                f"{', '.join(row)}, and a completion can be any text, even an empty one; {form}"
            ) from error
        if not isinstance(verdict, bool | np.bool_):
            raise InputError(f"{name}({text!r}, row) returned {verdict!r}, a {type(verdict).__name__}; {form}")


@functools.cache
def _rows_of(path: Path) -> OwnRows:
    """Return the rows of a plugin, loaded once."""
    module = plugin.HELD_OUT[path]
    rows_name = f"{plugin.ROWS}() of {path.name}"
    try:
        rows = getattr(module, plugin.ROWS)()
    except Exception as error:
        raise InputError(f"{rows_name} raised {type(error).__name__}: {error}") from error
    verifier_name = f"{plugin.VERIFY} of {path.name}"
    return OwnRows(rows, getattr(module, plugin.VERIFY, None), rows_name, verifier_name)


def plugin_rows() -> OwnRows:
    """
    Return the rows and the verifier of the one plugin that has them.

    Raises:
        InputError: If no plugin or several have them, or they cannot be used.
    """
    if not plugin.HELD_OUT:
        raise InputError(f"give --plugin FILE.py, a file with {plugin.ROWS}() and {plugin.VERIFY}(completion, row)")
    if len(plugin.HELD_OUT) > 1:
        names = " and ".join(path.name for path in plugin.HELD_OUT)
        raise InputError(f"--plugin: both {names} have {plugin.ROWS}(); give only one of them")
    (path,) = plugin.HELD_OUT
    return _rows_of(path)
