"""Grade-school math word problems (GSM8K)."""

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from trl_prorl.tasks.base import Task
from trl_prorl.tasks.final_answer import DENIAL, MAX_LENGTH, TAG, as_number, question_of
from trl_prorl.tasks.isolated.units import known
from trl_prorl.tasks.loaded import FILES, LoadedTask, Problem, need, parse_rows, split_training_file


if TYPE_CHECKING:
    from datasets import Dataset


MAX_MARKED = 16
INSTRUCTION = "Reason step by step and end with `#### ` and the number."
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

# The braces of \boxed may contain more braces, as in \boxed{\textbf{\text{\$9{,}500}}}.
BRACED = r"[^{}]*"
for _level in range(5):
    BRACED = rf"(?:[^{{}}]|\{{{BRACED}\}})*"
BOXED = re.compile(rf"\\boxed\s*\{{({BRACED})\}}")
HASHES = re.compile(r"#{4,}((?:(?!####)[^\n])*)")
CURRENCY = r"\\$£€¥₹"
NUMBER = re.compile(
    rf"[\s*_`(\[{CURRENCY}]*"  # emphasis, brackets and currency before the number
    rf"(?:[A-Za-z]\s*=[\s{CURRENCY}]*)?(?:([+-])[{CURRENCY}]*)?"
    r"((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(.*)",  # a unit, a percent sign, a full stop
    re.DOTALL,
)
# Square metres and degrees: their digits and signs are not a calculation.
UNIT_SIGNS = re.compile(r"(?<=[A-Za-z])(?:\^\{?[23]\}?|[²³])|\^\{?\\circ\}?")
# Signs of a calculation in the text after a number: operators, commands of LaTeX, and variables, which are single
# letters other than units, "a" and the T of "T-shirts".
CALCULATION = re.compile(
    r"^[^A-Za-z]*!|[+^=<>]|\\(?!(?:text\w*|math\w*|mbox|operatorname|left|right|quad)(?![A-Za-z]))[A-Za-z]"
    r"|(?<![A-Za-z'’])[b-fi-kn-oqrt-zBDEG-KM-UX-Z](?![A-Za-z]|[-&][A-Za-z]{2})"
)
WORDS = re.compile(r"(?<!\\)[A-Za-z]{2,}(?:['’&][A-Za-z]+)*|[A-Z]&[A-Za-z]+")
# Text around a known unit.
REMARK = re.compile(
    r"(?i:of|the|an|in|on|for|per|each|every|total|left|more|altogether|apiece|away|old|that|is|all|it|answer|quarters)"
    r"|[A-Z][a-z]*['’&]s|[A-Z]&[A-Z][a-z]*"
)
# Things that a question counts are named in its plurals, which these are not.
COUNTED = re.compile(r"[a-z]{3,}s")
NUMBERS = re.compile(
    r"(?:dozen|score|pair|couple|hundred|thousand|half|halve|third|quarter|minu|plu|les|[a-z]+(?:th|illion))s"
)
# Words that change the number in a box after them.
CHANGES = re.compile(
    r"(?i)\b(?:half|third|quarter|twice|minus|plus|negative|below|about|almost|over|under|less|more|or|sqrt|pi|zero|two|three|four"
    r"|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+(?:teen|illion)|twenty|[a-z]+ty|hundred|thousand|dozen)s?\b"
)
SIGNED_BOX = re.compile(r"[-−–][^A-Za-z]*\0")  # NUL stands for the box
HEADING = re.compile(r"[\s*_]*(?:step|part|case|stage|phase|section|method)\s+#?[0-9]{1,2}(?![0-9])", re.IGNORECASE)
NUMBERED = re.compile(r"[\s*_]*[0-9]{1,2}[.)]\s+\S*[A-Za-z]")


def has_digit(text: str) -> bool:
    return any(character.isnumeric() for character in text)


def is_remark(text: str, question: str = "") -> bool:
    """
    Return whether a text after a number leaves it as it is: it has no digit and no sign of a calculation, and every
    word is a known unit, a remark (`18 of Ann's eggs`), or a plural that the question has.
    """
    if has_digit(text) or CALCULATION.search(text):
        return False
    asked = {word for word in COUNTED.findall(question.lower()) if not NUMBERS.fullmatch(word)}
    return all(known(word) or REMARK.fullmatch(word) or word.lower() in asked for word in WORDS.findall(text))


def parse_number(text: str, question: str = "") -> Decimal | None:
    """
    Return the number at the beginning of a text; `None` if the text does not start with a number, or if something else
    than a unit or a remark follows.

    Allowed are thousands separators, a known unit or remark after the number, and before it a currency sign, `x =`, a
    bracket and Markdown emphasis. Not allowed are a second number (`41 42`, `40+2`, `1/2`), a variable (`18/x`), and
    any other word or sign (`2 million`, `2M`, `3!`, `18 or nineteen`).
    """
    if len(text) > MAX_LENGTH:
        return None
    match = NUMBER.fullmatch(TAG.sub(" ", text).replace("−", "-"))
    if match is None:
        return None
    sign, number, rest = match.groups()
    if not is_remark(UNIT_SIGNS.sub("", rest), question):
        return None
    return Decimal((sign or "") + number.replace(",", ""))


def plain(number: Decimal) -> str:
    """Return a number without exponent and trailing zeros, so that equal numbers are equal texts."""
    text = f"{number:f}"
    if "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def is_sentence(line: str) -> bool:
    """
    Return whether a line is a sentence around a box, for which NUL stands, and has no number, sign, word or command
    that changes the one in the box.
    """
    before, box, after = line.partition("\0")
    changes = (DENIAL, CALCULATION, CHANGES)
    return (
        box != ""
        and not SIGNED_BOX.search(line)
        and not has_digit(before)
        and not any(change.search(before) for change in changes)
        and is_remark(after.replace("\0", ""))
    )


def marked_answers(text: str) -> list[str]:
    """
    Return the texts after `####`, up to the end of the line, and in `\\boxed{}`. Markers without a digit, and markers
    like `#### Step 1`, are Markdown headings and are skipped; so are those like `#### 1. Eggs`, beside others. So are
    sentences around a box, like `#### The answer is \\boxed{42}`: the box is the answer.
    """
    # `#### \boxed{42}` is one answer in two markers.
    lines = HASHES.findall(BOXED.sub("\0\\1\0", text.replace("\0", " ")))
    answers = [line.replace("\0", "") for line in lines if not is_sentence(re.sub("\0[^\0]*\0?", "\0", line))]
    parts = [part for part in BOXED.findall(text) + answers if has_digit(part) and not HEADING.match(part)]
    return [part for part in parts if not NUMBERED.match(part)] or parts


def is_number(part: str, gold: str, question: str = "") -> bool:
    """
    Return whether a marked answer equals the number, in any notation (`0.5`, `\\frac{1}{2}`, `4 \\times 10^{3}`). The
    comparison is exact.
    """
    number = parse_number(part, question)
    return as_number(part) == Fraction(gold) if number is None else number == Decimal(gold)


class MarkedNumber(Task):
    """A task with a number as its answer, after `####` or in `\\boxed{}`."""

    def verify(self, completion: str, row: Mapping) -> bool:
        marked = marked_answers(completion)
        question = question_of(row)
        # All markers must agree. More than MAX_MARKED markers count as no answer.
        return 1 <= len(marked) <= MAX_MARKED and all(is_number(part, row["answer"], question) for part in marked)

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        marked = marked_answers(completion)
        if not marked:
            return None
        number = parse_number(marked[-1])
        return marked[-1].strip() if number is None else plain(number)


class GSM8K(MarkedNumber, LoadedTask):
    """
    Grade-school math word problems that end in a number ([Cobbe et al., 2021](https://arxiv.org/abs/2110.14168)).

    The test split is the dataset's own. Validation is 10 % of its training file, selected by content. A completion is
    correct if it has the number after `#### ` or in `\\boxed{}`, and every marker has that number; see [`is_number`].
    `level` is always 1.

    Args:
        path (`str`, *optional*, defaults to `"openai/gsm8k"`): name on the Hub (configuration `main`), or a local
            folder with `train.jsonl` and `test.jsonl`. Their lines are objects with `question` and `answer`; the
            answer ends in `#### 42`.
        instruction (`str`, *optional*): text below each question; by default "Reason step by step and end with `#### `
            and the number." For short completions, ask for "a few short lines".

    Raises:
        `ValueError`: If the path is neither, if a file is missing, or if the instruction is empty or not a string.
    """

    name = "gsm8k"
    level = 1

    def __init__(self, path: str = "openai/gsm8k", instruction: str = INSTRUCTION):
        if not isinstance(instruction, str) or not instruction.strip():
            raise ValueError(f"instruction={instruction!r} must be a non-empty string: the text below each question")
        self.instruction = instruction
        self.path = path
        self._problems = None  # of a dataset on the Hub, which is loaded when rows are needed
        if Path(str(path)).expanduser().is_dir():
            self.load(path, self.parse_problem)
        elif not HUB_NAME.fullmatch(str(path)):
            raise ValueError(
                f"path={str(path)!r} is neither an existing folder nor a name on the Hub (owner/name). "
                "Give a folder with train.jsonl and test.jsonl"
            )

    def rows(self, split: str, n: int | None, seed: int = 0) -> "Dataset":
        if self._problems is None:
            self._problems = self._download()
        return super().rows(split, n, seed)

    def _download(self) -> dict[str, list[Problem]]:
        from datasets import load_dataset  # slow to import, and not needed to list tasks

        try:
            files = {split: load_dataset(self.path, "main", split=split) for split in FILES}
        except OSError as error:
            raise ValueError(
                f"path={self.path!r} is not a local folder, and could not be loaded from the Hub ({error}). Check the "
                "name and the connection, or give a folder with train.jsonl and test.jsonl"
            ) from error
        train, test = (parse_rows(rows, f"{self.path}, {split}", self.parse_problem) for split, rows in files.items())
        return split_training_file(self.name, train, test)

    def parse_problem(self, row: Mapping, source: str) -> Problem:
        """
        Convert a row with `question` and `answer`, which ends in `#### ` and a number.

        Raises:
            `ValueError`: If the row has another form.
        """
        question, solution = (need(row, [key], str, source) for key in ("question", "answer"))
        _, marker, final = solution.rpartition("####")
        number = parse_number(final) if marker else None
        if number is None:
            raise ValueError(f"{source}: 'answer' must end in '#### ' and a number, like '#### 42'")
        return Problem(question, plain(number), {}, f"{question}\n{self.instruction}")

    def gold(self, row: Mapping) -> str:
        return f"#### {row['answer']}"
