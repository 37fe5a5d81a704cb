"""Competition problems with an expression as their answer (MATH and similar files)."""

import re
from collections.abc import Mapping
from pathlib import Path

from trl_prorl.tasks.final_answer import boxed, question_of
from trl_prorl.tasks.isolated.latex import number, plain_text, tokens
from trl_prorl.tasks.isolated.units import split_unit
from trl_prorl.tasks.loaded import LoadedTask, Problem, need
from trl_prorl.tasks.worker import Worker


SECONDS = 5.0
WORKER = Worker(Path(__file__).with_name("isolated") / "math_worker.py", SECONDS)
INSTRUCTION = "Reason step by step and put the final answer in \\boxed{}."
MAX_LENGTH = 1000  # characters
MAX_BOXES = 4  # different contents of boxes; each may take SECONDS
BLANK = re.compile(r"\.*|\\[lc]?dots")
IGNORED = re.compile(r"\s|\\[,;:! ]|\\(?:left|right)(?![A-Za-z])|\\?\$|\.$")
FRACTION = re.compile(r"\\frac \{ ([^{}]*) \} \{ ([^{}]*) \}")


def parse_problem(row: Mapping, source: str) -> Problem:
    """
    Convert a row with `problem` (or `question`) and `answer`, or `solution` with one `\\boxed{}`.

    Raises:
        `ValueError`: If the row has another form.
    """
    question = need(row, ["problem", "question"], str, source)
    answer = need(row, ["answer", "solution"], str, source)
    if row.get("answer") is None:
        answers = boxed(answer)
        if not answers:
            raise ValueError(
                f"{source}: 'solution' has no \\boxed{{}}. Put the final answer into one, or add 'answer'"
            )
        answer = answers[-1]
    return Problem(question, answer.strip(), {}, f"{question}\n{INSTRUCTION}")


def normalise(answer: str) -> str:
    """
    Normalise an answer: no spaces or dollar signs, and `\\frac` for `\\dfrac` and `\\tfrac`. Equal texts are equal
    answers.
    """
    return IGNORED.sub("", answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").strip())


def is_answer(answer: str, gold: str) -> bool:
    """
    Return whether an answer equals the reference answer: as text, or as a value of a class that both are read as.

    Never raises on any text, and returns `False` after 5 s. Values are compared in a separate process, which is killed
    at the limit.

    Raises:
        `RuntimeError`: If that process cannot be started.
    """
    if answer.strip() == gold.strip():
        return True
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return False
    gold_tokens = tokens(gold)
    answer_tokens = tokens(answer)
    if plain_text(gold_tokens) == plain_text(answer_tokens):
        return True
    value = number(gold_tokens)
    answer_value = number(answer_tokens)
    if value is not None and answer_value is not None:
        return value == answer_value
    reply = WORKER.ask({"gold": gold_tokens, "answer": answer_tokens})
    return reply is not None and reply.get("equal", False)


def repeats(answer: str, gold: str, question: str) -> bool:
    """
    Return whether an answer is a formula, a list or a fraction copied from the question, and the question lacks the
    reference answer.
    """
    value = tokens(answer)
    if "=" in value:
        value = value[value.index("=") + 1 :]
    is_fraction = "/" in value or r"\frac" in value
    amount = number(split_unit(value)[0])
    if len(value) < 2 or (amount is not None and not is_fraction):
        return False
    text = spelled(tokens(question))
    return spelled(value) in text and spelled(tokens(gold)) not in text


def spelled(parts: list[str]) -> str:
    """Return tokens as a text with one spelling of fractions: `1/2` for `\\frac{1}{2}`."""
    return FRACTION.sub(r"\1 / \2", f" {plain_text(parts)} ")


def filled_boxes(completion: str) -> list[str]:
    """Return the contents of all boxes but those that quote the instruction: `\\boxed{}` and `\\boxed{...}`."""
    return [answer for answer in boxed(completion) if not BLANK.fullmatch(normalise(answer))]


class Math(LoadedTask):
    """
    Problems from a file, answered in `\\boxed{}` ([Hendrycks et al., 2021](https://arxiv.org/abs/2103.03874)).

    Every box must contain the answer, in any form; empty boxes are skipped. A formula, a list or a fraction copied
    from the question is not an answer, unless the question contains the reference answer. `level` is always 1.

    Args:
        path (`str`): a JSON Lines file, or a folder with `train.jsonl` and `test.jsonl`. Every line is an object with
            `problem` (or `question`) and `answer` (or `solution`, with the answer in `\\boxed{}`).
            [`load_problems`] describes the split.

    Raises:
        `ValueError`: If there is no such file, it is empty, or a row has another form.
    """

    name = "math"
    level = 1

    def __init__(self, path: str | None = None):
        if path is None:
            raise ValueError("path is missing: the task math needs a JSON Lines file with 'problem' and 'answer'")
        self.load(path, parse_problem)

    def verify(self, completion: str, row: Mapping) -> bool:
        answers = {normalise(answer): answer for answer in filled_boxes(completion)}
        gold = row["answer"]
        question = question_of(row)
        return 1 <= len(answers) <= MAX_BOXES and all(
            is_answer(answer, gold) and not repeats(answer, gold, question) for answer in answers.values()
        )

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        answers = filled_boxes(completion)
        return normalise(answers[-1]) if answers else None

    def gold(self, row: Mapping) -> str:
        return f"\\boxed{{{row['answer']}}}"
