"""Compare two mathematical answers with math-verify. Used by `tasks/math_equality.py`."""

import logging

from answering import answer_lines
from exact import decimal, same_value
from latex2sympy2_extended import latex2sympy2
from math_verify import grader, parse, verify


# math-verify parses decimals as floats, and accepts numbers that agree in 6 decimals or 15 digits.
latex2sympy2._Latex2Sympy.parse_number = lambda self, text: decimal(text)
latex2sympy2.Number = decimal
grader.sympy_numeric_eq = same_value
grader.sympy_symbolic_eq = same_value


def compare(request: dict) -> dict:
    """Answer `{"gold", "answer"}`, both LaTeX without delimiters, with `{"equal"}`."""
    # math-verify's own time limits are signals, which cannot interrupt a power of integers. The owner kills this
    # process instead.
    gold, answer = (parse(f"\\boxed{{{request[key]}}}", parsing_timeout=None) for key in ("gold", "answer"))
    return {"equal": bool(verify(gold, answer, timeout_seconds=None))}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    answer_lines(compare, memory_mib=4096, seconds=60)
