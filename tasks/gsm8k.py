"""Grade-school math word problems (GSM8K)."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetGenerationError

from .base import VALIDATION_BUCKET, Task, build_dataset, check_request, content_bucket, stable_hash


INSTRUCTION = "Reason step by step and end with `#### ` and the number."
FILES = {"train": "train.jsonl", "test": "test.jsonl"}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

# The braces of \boxed may hold one more level of braces, as in \boxed{18\text{ dollars}}.
BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
HASHES = re.compile(r"#{4,}((?:(?!####)[^\n])*)")
NUMBER = re.compile(
    r"[\s*_`\\$]*"  # emphasis and currency before the number
    r"([+-]?)[\\$]*"
    r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(.*)",  # a unit, a percent sign, a full stop
    re.DOTALL,
)
SCALE_WORD = re.compile(r"\s*(?:k|hundred|thousand|million|billion|trillion)\b", re.IGNORECASE)


class Problem(NamedTuple):
    question: str
    answer: str


def parse_number(text: str) -> Decimal | None:
    """
    The number that a text begins with, or `None` if it does not begin with one or does not end with it.

    Thousands separators, a currency sign and Markdown emphasis before the number and a unit after it are allowed, but
    neither a second number (`41 42`, `40+2`, `1/2`) nor a word that scales the first (`2 million`).
    """
    match = NUMBER.fullmatch(text.replace("−", "-"))
    if match is None:
        return None
    sign, number, rest = match.groups()
    if SCALE_WORD.match(rest) or any(character.isnumeric() for character in rest):
        return None
    return Decimal(sign + number.replace(",", ""))


def extract_answer(text: str) -> Decimal | None:
    """
    The final answer of a solution: the number after `####`, up to the end of the line, or in `\\boxed{}`.

    The answer has to be unambiguous. Markers without any digit, such as a Markdown heading, are passed over; all
    others have to hold one and the same number, or there is no answer: `None`.
    """
    # `#### \boxed{42}` is one answer in two markers.
    marked = BOXED.findall(text) + HASHES.findall(BOXED.sub(r"\1", text))
    answers = {parse_number(part) for part in marked if any(character.isnumeric() for character in part)}
    return answers.pop() if len(answers) == 1 else None


def normalise_question(question: str) -> str:
    """The question in lower case, with single spaces: two questions of the same such text count as one."""
    return " ".join(question.casefold().split())


def check_path(path: str) -> str:
    """
    Where the data lie: the absolute path of a local folder, or the name of a data set on the Hub.

    Raises:
        `ValueError`: if the path is neither, or if the folder misses a file.
    """
    if not isinstance(path, (str, Path)):
        raise ValueError(f"path={path!r} must be a folder or the name of a data set on the Hub")
    folder = Path(path).expanduser()
    if folder.is_dir():
        for file in FILES.values():
            if not (folder / file).is_file():
                raise ValueError(
                    f"path={str(path)!r}: the folder has no {file}; put {' and '.join(FILES.values())} there"
                )
        return str(folder.resolve())
    if not HUB_NAME.fullmatch(str(path)):
        raise ValueError(
            f"path={str(path)!r} is neither an existing folder nor a name on the Hub (owner/name); "
            "give the folder that holds train.jsonl and test.jsonl"
        )
    return str(path)


def read_problems(rows: Iterable[Mapping], source: str) -> dict[str, Problem]:
    """
    Checks the rows of one file and keys them by their normalised question; of equal questions the first is kept.

    Args:
        rows (`Iterable[Mapping]`): objects with `question` and `answer`, which ends in `#### ` and a number.
        source (`str`): what to call the file in an error.

    Raises:
        `ValueError`: if there is no row, or if a row has no such question or answer.
    """
    problems: dict[str, Problem] = {}
    for index, row in enumerate(rows):
        for key in ("question", "answer"):
            if not isinstance(row.get(key), str):
                raise ValueError(f"{source}, row {index}: {key!r} is missing; every row needs it, as text")
        _, marker, final = row["answer"].rpartition("####")
        number = parse_number(final) if marker else None
        if number is None:
            raise ValueError(f"{source}, row {index}: 'answer' must end in '#### ' and a number, like '#### 42'")
        answer = f"{number:f}"
        answer = answer.rstrip("0").rstrip(".") if "." in answer else answer
        problems.setdefault(normalise_question(row["question"]), Problem(row["question"], answer))
    if not problems:
        raise ValueError(f"{source} has no rows; every row is an object with 'question' and 'answer'")
    return problems


@lru_cache(maxsize=8)
def load_problems(path: str) -> dict[str, list[Problem]]:
    """
    Loads the data, once per process, and splits it by content.

    Args:
        path (`str`): what [`check_path`] returned.

    Returns:
        The problems of `"train"`, `"validation"` (the tenth of the training file that the hash of the question picks)
        and `"test"` (the test file). A training question whose normalised text is in the test file as well is dropped.

    Raises:
        `ValueError`: if the data cannot be read or do not have the form described in [`GSM8K`].
    """
    sources = {split: f"path={path!r}, {file if Path(path).is_dir() else split}" for split, file in FILES.items()}
    train, test = (read_problems(_load_rows(path, split), sources[split]) for split in ("train", "test"))
    splits: dict[str, list[Problem]] = {"train": [], "validation": [], "test": list(test.values())}
    for text, problem in train.items():
        if text not in test:
            held_out = content_bucket(GSM8K.name, text) == VALIDATION_BUCKET
            splits["validation" if held_out else "train"].append(problem)
    return splits


def _load_rows(path: str, split: str) -> Iterable[Mapping]:
    """The rows of one split as they are stored."""
    folder = Path(path)
    if not folder.is_dir():
        try:
            return load_dataset(path, "main", split=split)
        except OSError as error:
            raise ValueError(
                f"path={path!r} is not a folder here, and the Hub did not give it ({error}); "
                "check the name and the connection, or give the folder that holds train.jsonl and test.jsonl"
            ) from error
    file = folder / FILES[split]
    if not file.read_bytes().strip():
        return []
    try:
        return load_dataset("json", data_files=str(file), split="train")
    except DatasetGenerationError as error:
        raise ValueError(
            f"path={path!r}, {file.name} cannot be read as JSON Lines: {error.__cause__ or error}"
        ) from error


class GSM8K(Task):
    """
    Grade-school math word problems that end in a number ([Cobbe et al., 2021](https://arxiv.org/abs/2110.14168)).

    The test split is the data set's own; validation is a tenth of its training file, picked by content. A solution has
    to end with `#### ` and the number, or hold it in `\\boxed{}`; see [`extract_answer`]. `level` is always 1.

    Args:
        path (`str`, *optional*, defaults to `"openai/gsm8k"`): name on the Hub (configuration `main`), or a local
            folder with `train.jsonl` and `test.jsonl`, whose lines are objects with `question` and `answer`, the
            answer ending in `#### 42`.

    Raises:
        `ValueError`: if the path is neither, or if the folder misses a file.
    """

    name = "gsm8k"
    level = 1

    def __init__(self, path: str = "openai/gsm8k"):
        self.path = check_path(path)

    def rows(self, split: str, n: int | None, seed: int = 0) -> Dataset:
        check_request(split, n, seed)
        problems = load_problems(self.path)[split]
        if not problems or (n is not None and n > len(problems)):
            raise ValueError(f"n={n}: {self.name} has {len(problems)} {split} questions in path={self.path!r}")
        # Sorting by a hash shuffles alike whatever the order of the file.
        shuffled = sorted(problems, key=lambda problem: stable_hash(self.name, split, seed, problem.question))[:n]
        prompts = [f"{problem.question}\n{INSTRUCTION}" for problem in shuffled]
        return build_dataset(self.name, self.level, prompts, [problem.answer for problem in shuffled])

    def verify(self, completion: str, row: Mapping) -> bool:
        return extract_answer(completion) == Decimal(row["answer"])

    def gold(self, row: Mapping) -> str:
        return f"#### {row['answer']}"
