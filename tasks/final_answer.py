"""Find the marked final answer of a text, and decide whether it is a single number, not a sum or a list."""

import re
from collections.abc import Mapping
from fractions import Fraction

from trl_prorl.tasks.isolated.latex import number, tokens
from trl_prorl.tasks.isolated.units import split_unit


# An opening \boxed{, any escaped character, or a brace.
TOKENS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)

MAX_LENGTH = 200  # characters; longer texts are not parsed, because parsing is slower than linear

DENIAL = re.compile(r"\bnot\b|n['’]t\b", re.IGNORECASE)

TAG = re.compile(r"</?\w{1,20}>")
TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{((?:[^{}]|\^\{(?:[23]|\\circ)\})*)\}"
)
EMPHASIS = " \t\r\n*_`"


def boxed(text: str) -> list[str]:
    """
    Return the contents of every `\\boxed{}` of a text, in order of their ends. Unclosed boxes are skipped. Only the
    innermost of nested boxes counts. The function takes linear time.
    """
    found = []
    opened = 0
    # For each open brace: the start of its content and the number of the box that it opens, or nothing.
    stack: list[tuple[int, int] | None] = []
    for token in TOKENS.finditer(text):
        if token.group().startswith(("\\boxed", "\\fbox")):
            opened += 1
            stack.append((token.end(), opened))
        elif token.group() == "{":
            stack.append(None)
        elif token.group() == "}" and stack:
            box = stack.pop()
            # Skip this box if another box was opened inside it.
            if box is not None and box[1] == opened:
                found.append(text[box[0] : token.start()])
    return found


def question_of(row: Mapping) -> str:
    """
    Return the text of a row's prompt, which TRL's reward functions call `prompts`; empty if there is none.
    """
    messages = row.get("prompt") or row.get("prompts") or []
    if isinstance(messages, str):
        return messages
    return "\n".join(message["content"] for message in messages)


def as_number(text: str) -> Fraction | None:
    """
    Return the exact value of a text that is one number, in any notation, without its unit; `None` for anything else.

    Fractions (`\\frac{1}{2}`, `\\dfrac12`, `1/2`), repeating decimals, mixed numbers, powers of ten (`4\\times
    10^{3}`), thousands separators (`1,234`, `1{,}234`, `1\\,234`), signs, currencies, the units of `units.py`,
    `million`, tags and emphasis are accepted. Calculations (`40+2`, `6\\cdot 7`, `\\sqrt{9}`), several numbers (`41
    42`, `1, 2`) and terms (`5x`, `2ab`) are not. A fraction that is an integer, such as `84/2`, is an unevaluated
    division, not a number.
    """
    if len(text) > MAX_LENGTH:
        return None
    return number(split_unit(tokens(TAG.sub(" ", text).strip(EMPHASIS)))[0])
