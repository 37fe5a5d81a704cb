"""Answers to competition problems: which box counts, time limit, what must not stop it. Verdicts: test_math_pairs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_prorl.tasks import get_task
from trl_prorl.tasks.math import WORKER, is_answer


def test_what_takes_too_long_is_wrong_and_the_next_question_is_answered(monkeypatch):
    assert is_answer("1+x", "x+1")
    monkeypatch.setattr(WORKER, "seconds", 1e-6)
    assert is_answer("2+x", "x+1") is False
    assert WORKER._process is None  # killed at the limit
    monkeypatch.undo()
    assert is_answer("x+3-2", "x+1") is True


@pytest.mark.parametrize(
    "text", ["(9^{9^{9^{9}}}, 1)", "9^{9^{9}}!", "x^{9^{99}}", "\\binom{9^{99}}{9}", "e^{e^{e^{e^{9}}}}"]
)
def test_what_is_too_large_to_compute_is_no_answer_but_itself(text):
    assert is_answer(text, "x+1") is False
    assert is_answer(text, text) is True


@pytest.mark.parametrize("text", ["\ud800", "\x00", "\n{}\n", '"}'])
def test_nasty_texts(text):
    assert is_answer(text, "1") is is_answer("1", text) is False
    assert is_answer("\\sqrt{4}x", "2x")


texts = st.one_of(st.text(max_size=40), st.text("0123456789\\frac{}()^_+-*/=,. xyz", max_size=30))


def test_rows_and_their_gold_answers(math_task):
    for row in math_task.rows("test", None):
        assert int(row["answer"]) == 2 * int(row["prompt"][0]["content"].split()[2])
        assert math_task.verify(math_task.gold(row), row) is True


def test_the_answer_of_a_solution(tmp_path, write_jsonl):
    rows = [
        {"question": f"{i}?", "solution": f"First \\boxed{{0}}, then $\\boxed{{\\frac{{{i}}}{{7}}}}$."}
        for i in range(30)
    ]
    task = get_task("math", path=write_jsonl(tmp_path / "solutions.jsonl", rows))
    for row in task.rows("train", None):
        assert row["answer"] == f"\\frac{{{row['prompt'][0]['content'].split('?')[0]}}}{{7}}"


# Completions by the number that they give, or not.
RIGHT = [
    "\\boxed{ 42 }\n\\boxed{42}.",
    # One answer in two notations; boxes that quote the question's instruction.
    r"\boxed{42\text{ cm}}, so \boxed{42}",
    r"<think>The form is \boxed{}, or \boxed{...}.</think> \boxed{42}",
]
WRONG = ["", "42", "#### 42", r"\boxed{42", r"\boxed{}", r"\boxed{41}\boxed{42}"]


def test_every_box_has_the_answer(math_task):
    assert [text for text in RIGHT + WRONG if math_task.verify(text, {"answer": "42"})] == RIGHT


@settings(deadline=None, max_examples=100, derandomize=True)
@given(texts, texts)
def test_it_never_raises(math_task, gold, answer):
    assert type(is_answer(answer, gold)) is bool
    for completion, reference in ((answer, "42"), (f"\\boxed{{{answer}}}", "42"), (f"\\boxed{{{answer}}}", "x+1")):
        assert type(math_task.verify(completion, {"answer": reference})) is bool


QUESTION = "Simplify $\\sqrt{180}$. Name $x$, (C), $(x + 1)^2$, $\\pi/2$, \\frac{12}{18}; 7, 3, 5; Evelyn or Bob?"


@pytest.mark.parametrize("column", ["prompt", "prompts"])
@pytest.mark.parametrize(
    "answer, gold, right",
    [
        ("\\sqrt{180}", "6\\sqrt{5}", False),
        ("y = \\sqrt{ 180 }", "6\\sqrt{5}", False),
        ("6\\sqrt{5}", "6\\sqrt{5}", True),
        ("2\\sqrt{45}", "6\\sqrt{5}", True),
        ("(x+1)^2", "x^2+2x+1", False),
        ("1+2x+x^2", "x^2+2x+1", True),
        # The reference stands there too, so it was a matter of choosing.
        ("(x+1)^2", "(x+1)^2", True),
        ("(1+x)^2", "(x+1)^2", True),
        ("\\pi/2", "\\frac{\\pi}{2}", True),
        ("\\frac{12}{18}", "\\frac{2}{3}", False),
        ("7, 3, 5", "3, 5, 7", False),
        ("5, 7, 3", "3, 5, 7", True),
        # Neither numbers nor names.
        ("180", "180.0", True),
        ("C", "\\text{(C)}", True),
        ("Evelyn", "\\text{Evelyn}", True),
        ("x", "x", True),
    ],
)
def test_a_formula_of_the_question_is_no_answer(math_task, column, answer, gold, right):
    messages = [{"role": "user", "content": QUESTION}]
    assert math_task.verify(f"\\boxed{{{answer}}}", {"answer": gold, column: messages}) is right
    # Without the question nobody knows.
    assert math_task.verify(f"\\boxed{{{answer}}}", {"answer": gold}) is True


def test_a_long_text_is_not_read(math_task, monkeypatch):
    # Reading takes more than linear time.
    monkeypatch.setattr("trl_prorl.tasks.math.plain_text", None)
    assert not math_task.verify("\\boxed{" + "x " * 10**6 + "}", {"answer": "42"})
