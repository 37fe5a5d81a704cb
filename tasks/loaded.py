"""Tasks that read questions from a JSON Lines file, validate it, and split it by content."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trl_prorl.tasks.base import SPLITS, Task, build_dataset, check_request, content_split, stable_hash
from trl_prorl.text import parse_json, short


if TYPE_CHECKING:
    from datasets import Dataset


logger = logging.getLogger(__name__)

FILES = {"train": "train.jsonl", "test": "test.jsonl"}
KINDS = {str: "text", list: "a list", int: "an integer"}


class Problem(NamedTuple):
    """
    One question of a file.

    Attributes:
        question (`str`): decides the split and the order; two questions that differ only in case and whitespace are
            duplicates.
        answer (`str`): the column `answer`.
        columns (`dict`): further columns.
        prompt (`str`): the text of the prompt.
    """

    question: str
    answer: str
    columns: dict
    prompt: str


def normalise_question(question: str) -> str:
    """Return the question in lower case, with single spaces."""
    return " ".join(question.casefold().split())


def read_jsonl(file: Path) -> list[dict]:
    """
    Return the objects of a JSON Lines file; empty lines are skipped.

    Raises:
        `ValueError`: If the file is missing or not UTF-8, or a line is not JSON.
    """
    if not file.is_file():
        raise ValueError(f"path={str(file)!r}: there is no such file. Use a JSON Lines file, one object per line")
    rows = []
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors write a byte order mark at the start of a file
    except UnicodeDecodeError as error:
        raise ValueError(
            f"path={str(file)!r} is not UTF-8: {error}. Convert it, for example from Latin-1: iconv -f latin1 -t utf-8"
        ) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(parse_json(line))
        except ValueError as error:
            raise ValueError(f"path={str(file)!r}, line {number} is not JSON: {error}") from error
    return rows


def need(row: Mapping, keys: Sequence[str], kind: type | tuple, source: str):
    """
    Return the value of the first of `keys` that the row has.

    Raises:
        `ValueError`: If none exists, or if the value has another type or is empty.
    """
    value = next((row[key] for key in keys if row.get(key) is not None), None)
    if not isinstance(value, kind) or value in ("", []):
        names = " or ".join(map(repr, keys))
        state = "missing" if value is None else short(value)
        types = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(KINDS[type_] for type_ in types)
        raise ValueError(f"{source}: {names} is {state}. Every row needs {names} as {expected}, not empty")
    return value


def load_problems(name: str, path: str | Path, parse: Callable[[dict, str], Problem]) -> dict[str, list[Problem]]:
    """
    Read a file, or a folder with `train.jsonl` and `test.jsonl`, and split it by content.

    A single file is split by the hash of the question: 10 % test and 10 % validation. A folder keeps its test file;
    10 % of its training file becomes validation, and training questions that occur in the test file are dropped.

    Args:
        name (`str`): name of the task; part of the hash.
        path (`str` or `Path`): the file or the folder.
        parse (`Callable[[dict, str], Problem]`): converts a row to a problem; gets the row and its position, for error
            messages.

    Returns:
        The problems of `"train"`, `"validation"` and `"test"`.

    Raises:
        `ValueError`: If the path does not exist, or if `parse` rejects a row.
    """
    if not isinstance(path, (str, Path)):
        raise ValueError(f"path={path!r} must be a JSON Lines file, or a folder with {' and '.join(FILES.values())}")
    place = Path(path).expanduser()
    if place.is_dir():
        train, test = (parse_rows(read_jsonl(place / file), place / file, parse) for file in FILES.values())
        return split_training_file(name, train, test)
    splits: dict[str, list[Problem]] = {split: [] for split in SPLITS}
    for text, problem in parse_rows(read_jsonl(place), place, parse).items():
        splits[content_split(name, text)].append(problem)
    return splits


def parse_rows(rows: Iterable[Mapping], path: str | Path, parse: Callable[[dict, str], Problem]) -> dict[str, Problem]:
    """Return problems by normalised question; the first of several duplicates is kept. Warns if answers differ."""
    problems: dict[str, Problem] = {}
    contradictions = []
    for index, row in enumerate(rows):
        problem = parse(row, f"path={str(path)!r}, row {index}")
        first = problems.setdefault(normalise_question(problem.question), problem)
        if problem.answer != first.answer:
            contradictions.append(f"row {index} has {short(problem.answer)}, and an earlier row {short(first.answer)}")
    if contradictions:
        logger.warning(
            "path=%r: %d rows repeat a question with another answer, and are left out (%s). Correct the file.",
            str(path),
            len(contradictions),
            contradictions[0],
        )
    return problems


def split_training_file(name: str, train: Mapping[str, Problem], test: Mapping[str, Problem]) -> dict:
    """Move 10 % of the training problems to validation; drop training problems that are in the test file too."""
    splits: dict[str, list[Problem]] = {"train": [], "validation": [], "test": list(test.values())}
    for text, problem in train.items():
        if text not in test:
            held_out = content_split(name, text) == "validation"
            splits["validation" if held_out else "train"].append(problem)
    return splits


def level_of(level: int | None, path: str | None) -> int:
    """
    Return the level of a task that reads `path`, which is 1, or else generates its questions: `level`, by default 3.

    Raises:
        `ValueError`: If both are given.
    """
    if path is None:
        return 3 if level is None else level
    if level is not None:
        raise ValueError(f"level={level!r} has no effect with path={path!r}: remove it")
    return 1


class LoadedTask(Task):
    """A task that reads its questions from `path`, or generates them by its other base class if there is no path."""

    def load(self, path: str | None, parse: Callable[[dict, str], Problem]) -> None:
        """Read the questions of a file or folder with [`load_problems`], unless `path` is `None`."""
        self.path = path
        self._problems = None if path is None else load_problems(self.name, path, parse)

    def rows(self, split: str, n: int | None, seed: int = 0) -> "Dataset":
        """
        See [`Task.rows`]. Only questions from a file support `n=None`. Their order depends on the seed and not on the
        file.
        """
        if self._problems is None:
            return super().rows(split, n, seed)
        check_request(split, n, seed)
        problems = self._problems[split]
        if not problems or (n is not None and n > len(problems)):
            raise ValueError(
                f"n={n}: {self.name} has {len(problems)} {split} questions in path={str(self.path)!r}. Use fewer rows "
                "or a larger file"
            )
        shuffled = sorted(problems, key=lambda problem: stable_hash(self.name, split, seed, problem.question))[:n]
        questions = ((problem.prompt, problem.answer, problem.columns) for problem in shuffled)
        return build_dataset(self.name, 1, *zip(*questions, strict=True))
