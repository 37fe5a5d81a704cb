"""Multiple-choice science questions."""

import re
from collections.abc import Mapping
from random import Random

from trl_prorl.tasks.final_answer import DENIAL, TEXT_COMMAND, boxed
from trl_prorl.tasks.generated import GeneratedTask
from trl_prorl.tasks.gsm8k import BOXED
from trl_prorl.tasks.loaded import LoadedTask, Problem, level_of, need
from trl_prorl.tasks.stem_templates import sample_question


LETTERS = "ABCDEFGHIJ"
NUM_CHOICES = 4
INSTRUCTION = "Reason step by step and end with `Answer: ` and the letter."
# The letter may be below, after a heading.
MARKED = re.compile(r"(?i:answer)[*_]{0,3}[ \t]*:[ \t*_]*\n*([^\n]*)")
DRESS = ' *_`$.()}"'
# The letter, plain or with the usual marks. Only the text of its choice may follow.
LETTER = re.compile(r"[\s*_`$(\[\"]*([A-Z])(?![A-Za-z])(?:\s[-–]\s|[\s*_`$)\]}.:,\"])*(.*)", re.DOTALL | re.IGNORECASE)
LONE_LETTER = re.compile(rf"(?<![A-Za-z])[{LETTERS}](?![A-Za-z])")
LATEX_SPACE = re.compile(r"\\[(),; ]")


def format_question(question: str, choices: list[str]) -> str:
    lines = [f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    return "\n".join([question, *lines, INSTRUCTION])


def parse_problem(row: Mapping, source: str) -> Problem:
    """
    Convert a row with `question`, `choices` (2 to 10 strings) and `answer` (a letter, or an index from 0).

    Raises:
        `ValueError`: if the row has another form.
    """
    question = need(row, ["question"], str, source)
    choices = need(row, ["choices"], list, source)
    answer = need(row, ["answer"], (str, int), source)
    if not 2 <= len(choices) <= len(LETTERS) or not all(isinstance(choice, str) for choice in choices):
        raise ValueError(f"{source}: 'choices' must be 2 to {len(LETTERS)} strings")
    letters = LETTERS[: len(choices)]
    if answer in range(len(letters)):
        answer = letters[answer]
    if answer not in tuple(letters):
        raise ValueError(
            f"{source}: 'answer' is {answer!r}. It must be a letter from A to {letters[-1]}, or an index from 0"
        )
    # Other choices make it another question; the same choices in another order do not.
    content = "\n".join([question, *sorted(choices)])
    return Problem(content, answer, {"choices": choices}, format_question(question, choices))


def extract_letter(completion: str, choices: list[str]) -> str | None:
    """
    Return the letter after `Answer:` or in `\\boxed{}`, or the letter that is the entire completion; `None` unless
    there is exactly one. Only the text of its choice may follow the letter. A sentence around a box, like `Answer: it
    is \\boxed{B}`, has its answer in the box. What names no choice, like `the answer: 30/2 = 15`, is not an answer.
    """
    marked = [part for part in MARKED.findall(completion) if not (boxed(part) and is_sentence(part))]
    marked += boxed(completion)
    read = {part: read_letter(part, choices) for part in marked or [completion]}
    letters = {letter for part, letter in read.items() if letter or LONE_LETTER.search(part)}
    return letters.pop() if len(letters) == 1 else None


def is_sentence(text: str) -> bool:
    """Return whether a text around a box names no other choice and denies nothing."""
    around = BOXED.sub("", text)
    return not (LONE_LETTER.search(around) or DENIAL.search(around))


def unwrapped(text: str) -> str:
    """Return a text without LaTeX's text commands and spaces, and with single spaces."""
    return " ".join(LATEX_SPACE.sub(" ", TEXT_COMMAND.sub(r"\1", text)).split())


def read_letter(text: str, choices: list[str]) -> str | None:
    match = LETTER.fullmatch(unwrapped(text.replace("\\boxed{", " ")))
    if match is None:
        return None
    letter = match.group(1).upper()
    texts = dict(zip(LETTERS, map(unwrapped, choices), strict=False))
    is_choice = letter in texts and match.group(2).strip(DRESS) in ("", texts[letter].strip(DRESS))
    return letter if is_choice else None


class Stem(LoadedTask, GeneratedTask):
    """
    Multiple-choice science questions: physics, chemistry and biology.

    Without a path, questions are generated from formulas, with four choices. Level L, 1 to 8, draws from the 2 + 2 L
    simplest of 18 kinds. The choices are the correct answers of four questions of the same kind, so guessing scores
    25 %, even if the guess takes the choices into account.

    Args:
        level (`int`, *optional*): difficulty of the generated questions, from 1 to 8; by default 3. Not with a path.
        path (`str`, *optional*): a JSON Lines file, or a folder with `train.jsonl` and `test.jsonl`. Every line is an
            object with `question`, `choices` (a list of strings) and `answer` (a letter, or an index from 0).

    Raises:
        `ValueError`: If the level is not from 1 to 8 or has no effect, or the file has another form.
    """

    name = "stem"

    def __init__(self, level: int | None = None, path: str | None = None):
        super().__init__(level_of(level, path))
        self.load(path, parse_problem)

    def sample(self, rng: Random) -> tuple[str, str, dict]:
        question, choices, place = sample_question(rng, self.level, NUM_CHOICES)
        return format_question(question, choices), LETTERS[place], {"choices": choices}

    def content(self, prompt: str) -> str:
        return prompt.partition(f"\n{LETTERS[0]})")[0]

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        return extract_letter(completion, row["choices"])

    def gold(self, row: Mapping) -> str:
        return f"Answer: {row['answer']}"
