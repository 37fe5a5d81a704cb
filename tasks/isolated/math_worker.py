"""Compares two mathematical answers with math-verify; `tasks/math_equality.py` talks to it."""

import logging

from answering import answer_lines
from math_verify import parse, verify


def compare(request: dict) -> dict:
    """Answer `{"gold", "answer"}`, both LaTeX without delimiters -> `{"equal"}`."""
    # math-verify's own time limits are signals, which cannot interrupt a power of integers; the owner kills this
    # process instead.
    gold, answer = (parse(f"\\boxed{{{request[key]}}}", parsing_timeout=None) for key in ("gold", "answer"))
    return {"equal": bool(verify(gold, answer, timeout_seconds=None))}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    answer_lines(compare, memory_mib=4096, seconds=60)
