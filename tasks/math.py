"""Competition problems whose answer is an expression (MATH and files like it)."""

import re
from collections.abc import Mapping

from datasets import Dataset

from .base import Task
from .final_answer import as_number, boxed
from .loaded import Problem, load_problems, loaded_rows, need
from .math_equality import equal, equal_number


INSTRUCTION = "Reason step by step and put the final answer in \\boxed{}."
# Signs of a calculation that was left to the reader; an answer has them only if the reference has them too.
UNEVALUATED = re.compile(r"\\(?:int|sum|prod|lim|binom)(?![A-Za-z])|!")
VARIABLE = re.compile(r"\s*[A-Za-z]\s*=(?!=)")
IGNORED = re.compile(r"\s|\\[,;:! ]|\\(?:left|right)(?![A-Za-z])|\\?\$|\.$")


def parse_problem(row: Mapping, source: str) -> Problem:
    """
    A problem from a row with `problem` (or `question`) and `answer`, or `solution` with one `\\boxed{}`.

    Raises:
        `ValueError`: if the row is not like that.
    """
    question = need(row, ["problem", "question"], str, source)
    answer = need(row, ["answer", "solution"], str, source)
    if row.get("answer") is None:
        answers = boxed(answer)
        if not answers:
            raise ValueError(
                f"{source}: 'solution' holds no \\boxed{{}}; put the final answer into one, or add 'answer'"
            )
        answer = answers[-1]
    return Problem(question, answer.strip(), {}, f"{question}\n{INSTRUCTION}")


def normalise(answer: str) -> str:
    """An answer without spaces and dollar signs, with `\\frac` for its relatives: equal texts are equal answers."""
    return IGNORED.sub("", answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").strip())


def is_answer(answer: str, gold: str) -> bool:
    """
    Whether an answer is the reference: the same text, or else the same in the opinion of math-verify.

    Where the reference is a number, the answer has to be one number too, not a sum or a list; elsewhere an expression is
    fine, but no integral, limit, sum sign or factorial that the reference does not have.
    """
    if normalise(answer) == normalise(gold):
        return True
    number = as_number(gold)
    if number is not None:
        return equal_number(number, VARIABLE.sub("", answer, count=1))
    if set(UNEVALUATED.findall(answer)) - set(UNEVALUATED.findall(gold)):
        return False
    return equal(gold, answer)


class Math(Task):
    """
    Problems from a file, answered in `\\boxed{}` ([Hendrycks et al., 2021](https://arxiv.org/abs/2103.03874)).

    The completion needs one answer: all its boxes have to hold the same text. `level` is always 1.

    Args:
        path (`str`): a file of JSON Lines, or a folder with `train.jsonl` and `test.jsonl`; every line is an object with
            `problem` (or `question`) and `answer` (or `solution`, which holds the answer in `\\boxed{}`). How it is
            split says [`load_problems`].

    Raises:
        `ValueError`: if there is no such file, it is empty, or a row is not like that.
    """

    name = "math"
    level = 1

    def __init__(self, path: str | None = None):
        if path is None:
            raise ValueError("path is missing: the task math reads a file of JSON Lines with 'problem' and 'answer'")
        self.path = path
        self._problems = load_problems(self.name, path, parse_problem)

    def rows(self, split: str, n: int | None, seed: int = 0) -> Dataset:
        return loaded_rows(self.name, self.path, self._problems, split, n, seed)

    def verify(self, completion: str, row: Mapping) -> bool:
        answers = {normalise(answer): answer for answer in boxed(completion)}
        return len(answers) == 1 and is_answer(*answers.values(), row["answer"])

    def gold(self, row: Mapping) -> str:
        return f"\\boxed{{{row['answer']}}}"
