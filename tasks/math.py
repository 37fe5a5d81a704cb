"""Competition problems whose answer is an expression (MATH and similar files)."""

import re
from collections.abc import Mapping
from pathlib import Path

from trl_prorl.tasks.final_answer import as_number, boxed
from trl_prorl.tasks.loaded import LoadedTask, Problem, need
from trl_prorl.tasks.worker import Worker


SECONDS = 5.0
MAX_LENGTH = 1000  # characters; longer answers are not parsed, because parsing is slower than linear
WORKER = Worker(Path(__file__).with_name("isolated") / "math_worker.py", SECONDS)
INSTRUCTION = "Reason step by step and put the final answer in \\boxed{}."
# Signs of an unevaluated calculation. An answer may contain them only if the reference answer does.
UNEVALUATED = re.compile(
    r"\\(?:int|sum|prod|lim|binom|partial)(?![A-Za-z])|\\d?frac\s*\{\s*d\s*\}\s*\{\s*d\s*[A-Za-z]|!"
)
VARIABLE = re.compile(r"\s*[A-Za-z]\s*=(?!=)")
IGNORED = re.compile(r"\s|\\[,;:! ]|\\(?:left|right)(?![A-Za-z])|\\?\$|\.$")
# A number with its base: 2516_8, 1A_{16}, (101)_{\text{two}}. math-verify ignores the base. Letters are digits only in
# bases above ten; 2A_1 is a term.
BASE = re.compile(r"[0-9][)}]*_(?:[0-9]|\{)|(?<![A-Za-z\\])[0-9A-F]{2,}[)}]*_\{?(?:1[1-9]|[23][0-9]|\\text)")
# Upright i and e, which math-verify ignores.
UPRIGHT = re.compile(r"([A-Za-z]?)\\(?:text|mathrm)\s*\{\s*([A-Za-z])\s*\}")
WRAPPING = re.compile(r"\\(?:text|mathrm|mathbf|textbf)(?![A-Za-z])|[{}()]")
# Signs of a calculation or formula, in contrast to a name or a letter from the question.
FORMULA = re.compile(r"[-+*/^]|\\[A-Za-z]")


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


def bracketed(text: str) -> str | None:
    """Return the opening bracket of a normalised tuple or set, `(` or `\\{`; `None` for anything else."""
    for opening, closing in (("(", ")"), ("\\{", "\\}")):
        if text.startswith(opening) and text.endswith(closing) and "," in text:
            return opening
    return None


def is_answer(answer: str, gold: str) -> bool:
    """
    Return whether an answer equals the reference answer, as text or according to math-verify.

    If the reference is a number, the answer must be a single number, not a sum or a list. Otherwise an expression is
    allowed, but no integral, limit, sum sign or factorial that the reference does not have, and no rounded decimal. A
    number with a base is compared as text. A tuple in parentheses is ordered, and does not equal a set.
    """
    short = normalise(answer)
    wanted = normalise(gold)
    if short == wanted:
        return True
    if len(answer) > MAX_LENGTH:
        return False
    if BASE.search(short) or BASE.search(wanted):
        return WRAPPING.sub("", short) == WRAPPING.sub("", wanted)
    number = as_number(gold)
    if number is not None:
        return as_number(VARIABLE.sub("", answer, count=1)) == number
    if set(UNEVALUATED.findall(answer)) - set(UNEVALUATED.findall(gold)):
        return False
    brackets = {bracketed(short), bracketed(wanted)}
    if brackets == {"(", "\\{"}:
        return False
    return equal(plain(gold), plain(answer))


def equal(gold: str, answer: str) -> bool:
    """
    Return whether math-verify considers two answers equal, with exact numbers instead of its 15 digits. Never raises
    on any text, and returns `False` after 5 s.

    It runs in a separate process, which is killed at the limit: no signal interrupts the single integer power in
    `(9^{9^{9^{9}}}, 1)`, and math-verify's signals fail outside the main thread.

    Args:
        gold (`str`), answer (`str`): LaTeX without delimiters, such as `\\frac{1}{2}`.

    Raises:
        `RuntimeError`: If math-verify cannot be started.
    """
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return False
    reply = WORKER.ask({"gold": gold, "answer": answer})
    return reply is not None and reply.get("equal", False)


def plain(answer: str) -> str:
    """
    Replace upright letters (`\\text{e}`) by plain ones; a space separates a letter from a command before it.
    """
    return UPRIGHT.sub(lambda match: f"{match.group(1)} {match.group(2)}".strip(), answer)


def repeats(answer: str, gold: str, question: str) -> bool:
    """Return whether an answer is a formula copied from the question, and the question lacks the reference answer."""
    question = normalise(question)
    formula = normalise(VARIABLE.sub("", answer, count=1))
    if FORMULA.search(formula) is None or as_number(formula) is not None:
        return False
    return formula in question and gold not in question


def question_of(row: Mapping) -> str:
    """
    Return the text of a row's prompt, which TRL's reward functions call `prompts`; empty if there is none.
    """
    messages = row.get("prompt") or row.get("prompts") or []
    if isinstance(messages, str):
        return messages
    return "\n".join(message["content"] for message in messages)


class Math(LoadedTask):
    """
    Problems from a file, answered in `\\boxed{}` ([Hendrycks et al., 2021](https://arxiv.org/abs/2103.03874)).

    The completion needs a single answer: all its boxes must contain the same text. A formula copied from the question
    is not an answer, unless the question contains the reference answer. `level` is always 1.

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
        answers = {normalise(answer): answer for answer in boxed(completion)}
        if len(answers) != 1:
            return False
        (answer,) = answers.values()
        gold = row["answer"]
        return is_answer(answer, gold) and not repeats(answer, normalise(gold), question_of(row))

    def answer_of(self, completion: str, row: Mapping) -> str | None:
        answers = boxed(completion)
        return normalise(answers[-1]) if answers else None

    def gold(self, row: Mapping) -> str:
        return f"\\boxed{{{row['answer']}}}"
