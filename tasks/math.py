"""Competition problems whose answer is an expression (MATH and similar files)."""

import re
from collections.abc import Mapping
from pathlib import Path

from trl_prorl.tasks.final_answer import TEXT_COMMAND, as_number, boxed
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
# What an answer may name before its value: x, x_1, f(2), AB, \theta, \text{Area}.
VARIABLE = re.compile(
    r"\s*(?:\\(?:angle|triangle)\s*)?(?:\\text\{[A-Za-z ]+\}|\\?[A-Za-z]+)(?:_\{?\w+\}?)?(?:\([\w, ]*\))?\s*=(?!=)"
)
MAX_BOXES = 4  # different contents of boxes; each may take SECONDS
BLANK = re.compile(r"\.*|\\[lc]?dots")
IGNORED = re.compile(r"\s|\\[,;:! ]|\\(?:left|right)(?![A-Za-z])|\\?\$|\.$")
# A number with its base: 2516_8, 1A_{16}, (101)_{\text{two}}. math-verify ignores the base. Letters are digits only in
# bases above ten; 2A_1 is a term.
BASE = re.compile(r"[0-9][)}]*_(?:[0-9]|\{)|(?<![A-Za-z\\])[0-9A-F]{2,}[)}]*_\{?(?:1[1-9]|[23][0-9]|\\text)")
# Upright i and e, which math-verify ignores.
UPRIGHT = re.compile(r"([A-Za-z]?)\\(?:text|mathrm)\s*\{\s*([A-Za-z])\s*\}")
# Words, sequences of letters, and times, which math-verify reads as products and quotients.
NO_PRODUCT = re.compile(r"[A-Z]{3,}|[A-Za-z]{4,}|[0-9]{1,2}:[0-9]{2}.*")
BOTH_SIGNS = re.compile(r"\\pm(?![A-Za-z])")
FRACTION = re.compile(r"\\frac(\{[^{}]*\}|\w)(\{[^{}]*\}|\w)")
WRAPPING = re.compile(r"\\(?:text|mathrm|mathbf|textbf)(?![A-Za-z])|[{}()]")
# Signs of a calculation, formula or list, in contrast to a name or a letter from the question.
FORMULA = re.compile(r"[-+*/^,]|\\[A-Za-z]")


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
    number with a base, a word and a time are compared as text. A tuple in parentheses is ordered, and does not equal a
    set. `\\pm` stands for two values.
    """
    short = normalise(answer)
    wanted = normalise(gold)
    words = normalise(TEXT_COMMAND.sub(r"\1", gold))
    if short == wanted or normalise(TEXT_COMMAND.sub(r"\1", answer)) == words:
        return True
    if len(answer) > MAX_LENGTH:
        return False
    if BASE.search(short) or BASE.search(wanted):
        return WRAPPING.sub("", short) == WRAPPING.sub("", wanted)
    number = as_number(gold)
    if number is not None:
        return as_number(VARIABLE.sub("", answer, count=1)) == number
    if NO_PRODUCT.fullmatch(words):
        return False
    if set(UNEVALUATED.findall(answer)) - set(UNEVALUATED.findall(gold)):
        return False
    brackets = {bracketed(short), bracketed(wanted)}
    if brackets == {"(", "\\{"}:
        return False
    return equal(both_signs(plain(gold)), both_signs(plain(answer)))


def both_signs(answer: str) -> str:
    """Write an answer with one `\\pm` as two values; math-verify does not read it inside a fraction."""
    if len(BOTH_SIGNS.findall(answer)) != 1:
        return answer
    value = VARIABLE.sub("", answer, count=1)
    return f"{BOTH_SIGNS.sub('+', value)}, {BOTH_SIGNS.sub('-', value)}"


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


def spelled(text: str) -> str:
    """Normalise a text, with one spelling: `1/2` for `\\frac{1}{2}`, and `\\sqrt2` for `\\sqrt{2}`."""
    return re.sub("[{}]", "", FRACTION.sub(r"\1/\2", normalise(text)))


def repeats(answer: str, gold: str, question: str) -> bool:
    """
    Return whether an answer is a formula, a list or a fraction copied from the question, and the question lacks the
    reference answer.
    """
    question = spelled(question)
    value = VARIABLE.sub("", answer, count=1)
    formula = spelled(value)
    if FORMULA.search(formula) is None or (as_number(value) is not None and "/" not in formula):
        return False
    return formula in question and spelled(gold) not in question


def filled_boxes(completion: str) -> list[str]:
    """Return the contents of all boxes but those that quote the instruction: `\\boxed{}` and `\\boxed{...}`."""
    return [answer for answer in boxed(completion) if not BLANK.fullmatch(normalise(answer))]


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
