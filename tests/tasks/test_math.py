"""Answers to competition problems: verdicts, time limit, and what must not stop it. Pairs: test_math_pairs.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_prorl.tasks import get_task
from trl_prorl.tasks.math import WORKER, is_answer


def test_long_texts_are_not_even_asked(monkeypatch):
    monkeypatch.setattr(WORKER, "ask", lambda request: pytest.fail("asked"))
    assert is_answer("x" * 1001, "x+1") is False


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


PROBLEMS = [{"problem": f"What is {i} plus {i}?", "answer": str(2 * i)} for i in range(100)]


@pytest.fixture(scope="module")
def task(tmp_path_factory, write_jsonl):
    return get_task("math", path=write_jsonl(tmp_path_factory.mktemp("math") / "problems.jsonl", PROBLEMS))


def test_rows_and_their_gold_answers(task):
    rows = [row for split in ("train", "validation", "test") for row in task.rows(split, None)]
    assert len(rows) == 100
    for row in rows[:20]:
        assert (row["task"], row["level"]) == ("math", 1)
        assert int(row["answer"]) == 2 * int(row["prompt"][0]["content"].split()[2])
        assert task.verify(task.gold(row), row) is True
        assert task.verify(f"So the answer is $\\boxed{{ {row['answer']} }}$.", row) is True


def test_the_answer_of_a_solution(tmp_path, write_jsonl):
    rows = [
        {"question": f"{i}?", "solution": f"First \\boxed{{0}}, then $\\boxed{{\\frac{{{i}}}{{7}}}}$."}
        for i in range(30)
    ]
    task = get_task("math", path=write_jsonl(tmp_path / "solutions.jsonl", rows))
    for row in task.rows("train", None):
        assert row["answer"] == f"\\frac{{{row['prompt'][0]['content'].split('?')[0]}}}{{7}}"


RIGHT = {
    # Numbers.
    "42": [
        r"\boxed{42}",
        "\\boxed{ 42 }\n\\boxed{42}.",
        r"\boxed{x = 42}",
        r"\boxed{42\text{ apples}}",
        r"\boxed{42.0}",
        # One answer in two notations; boxes that quote the question's instruction.
        r"\boxed{42\text{ cm}}, so \boxed{42}",
        r"<think>The form is \boxed{}, or \boxed{...}.</think> \boxed{42}",
        # With a name.
        r"\boxed{x_1 = 42}",
        r"\boxed{f(2) = 42}",
        r"\boxed{AB = 42}",
        r"\boxed{\angle ABC = 42^\circ}",
        r"\boxed{\text{Area} = 42}",
    ],
    "1{,}234": [r"\boxed{1234}"],
    r"\$32,348": [r"\boxed{32348}"],
    r"10\%": [r"\boxed{10\%}"],
    r"\frac{3}{4}": [r"\boxed{0.75}", r"\boxed{\dfrac34}"],
    # Terms, pairs, sets, words, matrices.
    r"\frac{\pi}{4}": [r"\boxed{\tfrac{1}{4}\pi}"],
    r"3\sqrt{2}": [r"\boxed{\sqrt{18}}"],
    "x^2+2x+1": [r"\boxed{(x+1)^2}"],
    r"(3, \frac{\pi}{2})": [r"\boxed{\left(3, \frac{\pi}{2}\right)}"],
    "[-2, 7]": [r"\boxed{[-2,7]}"],
    r"\text{Evelyn}": [r"\boxed{\text{Evelyn}}"],
    r"\text{(C)}": [r"\boxed{\text{(C)}}"],
    "June 20": [r"\boxed{\text{June 20}}"],
    r"\text{I and II}": [r"\boxed{\text{I} \text{ and } \text{II}}"],
    "x-axis": [r"\boxed{\text{x-axis}}"],
    "12:30 p.m.": [r"\boxed{12:30 \text{ p.m.}}"],
    # Two values.
    r"\frac{3 \pm \sqrt{17}}{4}": [
        r"\boxed{x = \frac{3 \pm \sqrt{17}}{4}}",
        r"\boxed{\frac{3+\sqrt{17}}{4}, \frac{3-\sqrt{17}}{4}}",
    ],
    "1, 2": [r"\boxed{2, 1}"],
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": [r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}"],
    "3x": [r"\boxed{3\cdot x}"],
    "3x^2": [r"\boxed{x\cdot x\cdot 3}"],
    "2i": [r"\boxed{0+2i}"],
    "5x": [r"\boxed{y=5x}"],
    "3i": [r"\boxed{3\mathrm{i}}"],
    r"2\mathrm{e}": [r"\boxed{2e}"],
    r"\text{C}": [r"\boxed{\mathrm{C}}"],
    # Units.
    r"12\text{ cm}^2": [r"\boxed{12}"],
    "12": [r"\boxed{12\ \mathrm{cm^{2}}}", r"\boxed{12 \text{ km}/\text{h}}", r"\boxed{12 units^2}", r"\boxed{12cm}"],
    # Other bases, logarithms and indices.
    "2516_8": [r"\boxed{2516_{8}}"],
    "1A_{16}": [r"\boxed{\text{1A}_{16}}"],
    r"101_{\text{two}}": [r"\boxed{101_\text{two}}"],
    r"\log_2 5": [r"\boxed{\log_{2}(5)}"],
    "2a_1+3": [r"\boxed{3+2a_1}"],
    # The same value in another notation.
    r"-\frac{1}{2}": [r"\boxed{\frac{1}{-2}}"],
    "600": [r"\boxed{6\cdot 10^2}"],
    "10^{-7}": [r"\boxed{0.0000001}"],
    "x=2.50": [r"\boxed{\frac52}"],
    r"\{1, 2\}": [r"\boxed{\{2, 1\}}"],
    "(1, 2)": [r"\boxed{(1,\ 2.0)}"],
    r"(\frac12, 1)": [r"\boxed{(0.5, 1)}"],
    r"\frac14 x + 1.5": [r"\boxed{0.25x+\frac32}"],
    "0.1x": [r"\boxed{\frac{x}{10}}"],
    # Exact numbers, however small or large.
    r"\frac{1}{2^{98}}": [r"\boxed{\frac{2}{2^{99}}}"],
    r"\frac{2^{2005}+1}{3\cdot 2^{2006}}": [r"\boxed{\frac16+\frac{1}{3\cdot 2^{2006}}}"],
    r"(2^{-99}, 1)": [r"\boxed{(\frac{1}{2^{99}}, 1)}"],
    # A percent sign may be missing in the reference, not in the answer: 5 is not 5 %.
    "(2.5, 5)": [r"\boxed{(2.5\%, 5)}"],
    r"\frac{\sqrt{2}}{10^{20}}": [r"\boxed{\frac{1}{10^{20}\sqrt{2}}\cdot 2}"],
    r"\sqrt{0.1}": [r"\boxed{\frac{1}{\sqrt{10}}}"],
    r"0.1\pi": [r"\boxed{\frac{\pi}{10}}"],
    r"\cot x": [r"\boxed{\frac{1}{\tan x}}"],
    "9^{9^9}": [r"\boxed{9 ^ {9^9}}"],
}
# Reference and answer: two terms of which one is only a part of the other.
NOT_THE_SAME_TERM = {
    "5x": ["5", "5y"],
    "3x^2": ["3"],
    "2i": ["2"],
    "2xy": ["2ab"],
    "3a-b": ["3"],
    "3a/b": ["3"],
    r"\frac12 x": [r"\frac12"],
    "5": [
        "5x",
        "5 abc",
        "5 minus x",
        r"5\text{ minus }x",
        r"5\text{ or six}",
        "5 dozen",
        "5 M",
        r"5\text{x}y",
        r"5\mathrm{x}",
    ],
    "12": ["12m", "12 m^2"],
    r"3\mathrm{i}": ["3"],
    "3": [r"3\mathrm{i}"],
}
WRONG = {
    "42": [
        # No box, or no single answer in it.
        "",
        "42",
        "#### 42",
        r"\boxed{42",
        r"\boxed{}",
        r"\boxed{43}",
        r"\boxed{41}\boxed{42}",
        # A calculation, or several numbers.
        r"\boxed{40+2}",
        r"\boxed{84/2}",
        r"\boxed{41, 42}",
        r"\boxed{\{42, 43\}}",
        r"\boxed{42 \text{ or } 43}",
        r"\boxed{x = 42 = 43}",
    ],
    "3": [r"\boxed{\sqrt{9}}", r"\boxed{a+b = 3}", r"\boxed{4 = 3}"],
    # Neither products nor quotients.
    "HTT": [r"\boxed{TTH}"],
    "seat": [r"\boxed{east}"],
    "12:30": [r"\boxed{2:5}"],
    r"1:30 \text{ p.m.}": [r"\boxed{1:30 \text{ a.m.}}"],
    r"\frac{3 \pm \sqrt{17}}{4}": [r"\boxed{\frac{3+\sqrt{17}}{4}}", r"\boxed{\frac{3 \pm \sqrt{13}}{4}}"],
    "120": [r"\boxed{5!}"],
    r"\frac{\pi}{4}": [r"\boxed{\int_0^1 \frac{1}{1+x^2} dx}"],
    r"\frac{\pi^2}{6}": [r"\boxed{\sum_{n=1}^{\infty} \frac{1}{n^2}}"],
    # Another value.
    r"\frac{3}{4}": [r"\boxed{\frac{4}{3}}", r"\boxed{1 - \frac{1}{4}}"],
    "p-q": [r"\boxed{q-p}"],
    "[-2, 7]": [r"\boxed{(-2, 7)}"],
    r"\text{Evelyn}": [r"\boxed{\text{Bob}}"],
    "1, 2": [r"\boxed{1}"],
    # Another base.
    "2516_8": [r"\boxed{2516_{7}}"],
    "2516": [r"\boxed{2516_8}"],
    "26": [r"\boxed{1A_{16}}"],
    "FF_{16}": [r"\boxed{FF}"],
    # Rounded.
    "0.00000012": [r"\boxed{0.0000001}"],
    "0": [r"\boxed{0.0000001}"],
    r"\frac13": [r"\boxed{0.333333}"],
    "0.5": [r"\boxed{\frac{5}{0}}"],
    r"\sqrt{2}": [r"\boxed{1.414214}", r"\boxed{1.41421356237309505}"],
    r"\pi": [r"\boxed{3.14159265}"],
    "2x": [r"\boxed{\frac{d}{dx} x^2}"],
    r"\frac13 x": [r"\boxed{0.333333x}"],
    r"\frac{1}{2^{98}}": [r"\boxed{\frac{1}{2^{99}}}"],
    r"\frac{1}{3\cdot 2^{2006}}": [r"\boxed{\frac{2^{2005}+1}{3\cdot 2^{2006}}}"],
    r"10^{-20}": [r"\boxed{\frac{1}{10^{21}}}"],
    r"(2^{-98}, 1)": [r"\boxed{(2^{-99}, 1)}"],
    r"[\frac13, 1]": [r"\boxed{[0.3333333333333333, 1]}"],
    r"(-\infty, \frac13]\cup(2,3)": [r"\boxed{(-\infty, 0.3333333333333333]\cup(2,3)}"],
    r"\begin{pmatrix} \frac13 \\ 1 \end{pmatrix}": [r"\boxed{\begin{pmatrix} 0.3333333333333333 \\ 1 \end{pmatrix}}"],
    r"y=\frac13 x": [r"\boxed{y=0.3333333333333333x}"],
    r"x<26\cdot 10^{-50}": [r"\boxed{x<25\cdot 10^{-50}}"],
    r"\frac{\sqrt{2}}{10^{20}}": [r"\boxed{\frac{\sqrt{3}}{10^{20}}}"],
    r"\sqrt{10^{100}+1}": [r"\boxed{10^{50}}"],
    r"\cos(10^{-30})+x": [r"\boxed{1+x}"],
    r"|x-5|": [r"\boxed{5-x}"],
    # Too large to be computed.
    "x+1": [r"\boxed{10^{10^{10}}}"],
    "9^{9^9}+1": [r"\boxed{9^{9^9}+2}"],
    # An ordered pair, and a set.
    "(1, 2)": [r"\boxed{2, 1}", r"\boxed{(2, 1)}", r"\boxed{\{1, 2\}}"],
    r"\{1, 2\}": [r"\boxed{(1, 2)}"],
}


@pytest.mark.parametrize("answer", RIGHT)
def test_right_answers(task, answer):
    assert [text for text in RIGHT[answer] if not task.verify(text, {"answer": answer})] == []


@pytest.mark.parametrize("answer", [*WRONG, *NOT_THE_SAME_TERM])
def test_wrong_answers(task, answer):
    texts = WRONG.get(answer, []) + [f"\\boxed{{{term}}}" for term in NOT_THE_SAME_TERM.get(answer, [])]
    assert [text for text in texts if task.verify(text, {"answer": answer})] == []


@settings(deadline=None, max_examples=100, derandomize=True)
@given(texts, texts)
def test_it_never_raises(task, gold, answer):
    assert type(is_answer(answer, gold)) is bool
    for completion, reference in ((answer, "42"), (f"\\boxed{{{answer}}}", "42"), (f"\\boxed{{{answer}}}", "x+1")):
        assert type(task.verify(completion, {"answer": reference})) is bool


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
def test_a_formula_of_the_question_is_no_answer(task, column, answer, gold, right):
    messages = [{"role": "user", "content": QUESTION}]
    assert task.verify(f"\\boxed{{{answer}}}", {"answer": gold, column: messages}) is right
    # Without the question nobody knows.
    assert task.verify(f"\\boxed{{{answer}}}", {"answer": gold}) is True


def test_the_same_text_needs_no_second_opinion(task, monkeypatch):
    monkeypatch.setattr(WORKER, "ask", lambda request: pytest.fail("asked"))
    assert task.verify("\\boxed{\\left[ -2, \\dfrac72 \\right]}", {"answer": "[-2,\\frac72]"})
    assert task.verify("\\boxed{ \\left( 1 ,\\, \\dfrac12 \\right) . }", {"answer": "(1,\\frac12)"})


def test_a_long_text_is_not_read(task, monkeypatch):
    # Reading takes more than linear time.
    monkeypatch.setattr("trl_prorl.tasks.math.plain_text", None)
    assert not task.verify("\\boxed{" + "x " * 10**6 + "}", {"answer": "42"})
