"""A user's rows and verifier in place of a task, and the rows of a JSON Lines file."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from datasets import Dataset

from trl_prorl.cli.training_prompts import prompt_key
from trl_prorl.errors import InputError, RunError
from trl_prorl.pass_at_k import as_verdict
from trl_prorl.tasks.base import SPLITS, Task, check_request, stable_hash
from trl_prorl.tasks.loaded import need, read_jsonl
from trl_prorl.tasks.plugin import OWN, find_function


HELD_OUT = 20  # test prompts: with fewer, an evaluation has no interval
# What TRL passes to a reward function in addition to the columns, and the columns that it does not pass.
PASSED = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
NOT_PASSED = {"prompt", "completion", "completion_ids"}


class OwnTask(Task):
    """
    A task of a user's rows.

    Args:
        verifier (`Callable`, *optional*): `verifier(completion, row) -> bool` for the text of a completion. Without
            one, completions have no verdict.
    """

    name = OWN
    level = None

    def __init__(self, verifier: Callable | None):
        self.verifier = verifier

    def verify(self, completion: str, row: Mapping) -> bool | None:
        if self.verifier is None:
            return None
        try:
            return as_verdict(self.verifier(completion, row), "verifier")
        except Exception as error:
            raise RunError(f"the verifier failed on {completion[:80]!r}, and must accept any text: {error}") from error


class FileRows(OwnTask):
    """
    The rows of a JSON Lines file: `prompt`, text or chat messages, and any columns.

    The hash of a prompt's content decides its split, whatever the order of the file: of all prompts 10 % are for test,
    but at least 20, and as many for validation; at most a third each.

    Args:
        path (`str`): The file.
        verifier (`Callable`, *optional*): As in [`OwnTask`].

    Raises:
        `ValueError`: There is no such file, a row has no prompt, or there are fewer than three prompts.
    """

    def __init__(self, path: str, verifier: Callable | None):
        super().__init__(verifier)
        rows = read_jsonl(Path(path))
        for place, row in enumerate(rows):
            need(row, ["prompt"], (str, list), f"path={path!r}, row {place}")
        contents = [prompt_key(row["prompt"]) for row in rows]
        split_of = split_contents(contents)
        if len(split_of) < 3:
            raise ValueError(
                f"path={path!r} has {len(split_of)} different prompts: give one for each split, at least 3"
            )
        columns = sorted({column for row in rows for column in row})
        self._rows = {split: [] for split in SPLITS}
        for content, row in zip(contents, rows, strict=True):
            self._rows[split_of[content]].append({column: row.get(column) for column in columns})

    def rows(self, split: str, n: int | None, seed: int = 0) -> Dataset:
        """See [`Task.rows`], but `n` is the largest number of rows. The order depends on the seed, not on the file."""
        check_request(split, n, seed)
        ordered = sorted(self._rows[split], key=lambda row: stable_hash(seed, json.dumps(row, sort_keys=True)))
        return Dataset.from_list(ordered[:n])

    def accepts_answers(self, rows: Iterable[Mapping]) -> bool:
        """Return whether the column `answer` has a completion that is correct, in any of some rows."""
        texts = [(row.get("answer"), row) for row in rows]
        return any(isinstance(text, str) and self.verify(text, row) for text, row in texts)


def split_contents(contents: Iterable[str]) -> dict[str, str]:
    """Return the split of each different content, see [`FileRows`]."""
    ordered = sorted(set(contents), key=stable_hash)
    size = min(max(len(ordered) // 10, HELD_OUT), len(ordered) // 3)
    splits = dict.fromkeys(ordered, "train")
    splits |= dict.fromkeys(ordered[size : 2 * size], "validation")
    return splits | dict.fromkeys(ordered[:size], "test")


def load_rows(path: str | None, verify: str | None) -> FileRows:
    """Make a [`FileRows`] of the keys `dataset_name` and `verify`. The verifier is tested on a row."""
    if path is None:
        raise InputError("reward needs dataset_name: FILE.jsonl, whose rows have a prompt")
    verifier = None if verify is None else find_function(verify, "verify")
    task = FileRows(path, verifier)
    if verifier is not None:
        check_verifier(verifier, task.rows("test", 1)[0], verify)
    return task


def load_rewards(names: Iterable[str], rows: Dataset) -> list[Callable]:
    """Return the functions of the key `reward`, checked against the columns of the rows."""
    functions = []
    for name in names:
        function = find_function(name, "reward")
        check_reward(function, name, rows)
        functions.append(function)
    return functions


def check_reward(function: Callable, name: str, rows: Dataset) -> None:
    """
    Check whether TRL can call a reward function with the columns of the rows.

    Raises:
        `InputError`: It does not take all columns, or wants one that the rows lack.
    """
    parameters = inspect.signature(function).parameters.values()
    if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters):
        raise InputError(
            f"{name}{inspect.signature(function)} does not accept all that TRL passes; write "
            f"{function.__name__}(completions, **columns), which returns one number for each completion"
        )
    columns = set(rows.column_names)
    wanted = {
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    missing = sorted(wanted - PASSED - (columns - NOT_PASSED))
    if missing:
        raise InputError(
            f"{name} wants {missing[0]!r}, which is no column of the rows. Columns: {', '.join(sorted(columns))}; "
            "TRL also passes prompts and completions"
        )


def check_verifier(verifier: Callable, row: Mapping, name: str) -> None:
    """
    Test a verifier on a row, with a text that no model sampled.

    Raises:
        InputError: It does not return a verdict.
    """
    write = f"write it as {name}(completion, row), which returns True or False for any text"
    try:
        verdict = verifier("", row)
    except KeyError as error:
        columns = ", ".join(sorted(row))
        raise InputError(f"{name}('', row) raised KeyError: {error}. The row has the columns: {columns}") from error
    except Exception as error:
        raise InputError(f"{name}('', row) raised {type(error).__name__}: {error}; {write}") from error
    if not isinstance(verdict, bool | np.bool_):
        raise InputError(f"{name}('', row) returned {verdict!r}; {write}")
