"""math-verify in its own process: verdicts, time limit, and what must not stop it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trl_prorl.tasks.math_equality
from trl_prorl.tasks import get_task
from trl_prorl.tasks.math_equality import WORKER, equal, equal_number, is_integer
from trl_prorl.tasks.worker import Worker


SCRIPT = Path(trl_prorl.tasks.math_equality.__file__).with_name("isolated") / "math_worker.py"


@pytest.mark.parametrize(
    "gold, answer, same",
    [
        ("42", "40+2", True),
        ("2", "1.9999999999", False),
        ("x<5", "(-\\infty,5)", True),
        ("(-\\infty,5)", "x<5", False),
        ("1000000007", "1000000008", False),
        ("", "", False),
        ("5", "", False),
    ],
)
def test_equal(gold, answer, same):
    """What math-verify does where the task `math` does not ask it."""
    assert equal(gold, answer) is same


def test_is_integer():
    found = [is_integer(number) for number in ("42", "-4.00", "0.5", "\\frac12", "")]
    assert found == [True, True, False, False, False]


def test_what_takes_too_long_is_no_answer_and_the_next_question_is_answered():
    worker = Worker(SCRIPT, seconds=1.5)
    assert worker.ask({"gold": "5", "answer": "5"}, seconds=60) == {"equal": True}
    process = worker._process
    # The ends of the interval are compared while it is read: one integer power, which no signal interrupts.
    assert worker.ask({"gold": "5", "answer": "(9^{9^{9^{9}}}, 1)"}) is None
    assert process.poll() is not None
    assert worker.ask({"gold": "5", "answer": "\\frac{10}{2}"}, seconds=60) == {"equal": True}


def test_a_process_that_was_killed_is_replaced():
    equal("1", "1")
    WORKER._process.kill()
    WORKER._process.wait()
    assert not equal("1", "2")
    assert equal("1", "\\frac{2}{2}")


def test_threads_get_their_own_answers():
    pairs = [(str(i / 8), f"\\frac{{{i}}}{{8}}" if i % 2 else f"\\frac{{{i + 1}}}{{8}}") for i in range(40)]
    verdicts = {}

    def work(part):
        for i in part:
            verdicts[i] = equal(*pairs[i])

    threads = [threading.Thread(target=work, args=(range(k, 40, 4),)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {i: i % 2 == 1 for i in range(40)}


def test_a_forked_process_has_a_worker_of_its_own():
    assert equal("1", "1")
    ours = WORKER._process.pid
    reading, writing = os.pipe()
    if os.fork() == 0:
        verdict = equal("0.5", "\\frac{1}{2}") and WORKER._process.pid != ours
        os.write(writing, b"yes" if verdict else b"no")
        os._exit(0)
    assert os.read(reading, 3) == b"yes"
    assert equal("1", "1")
    assert WORKER._process.pid == ours


def test_the_worker_ends_with_its_owner(tmp_path):
    script = "from trl_prorl.tasks.math_equality import WORKER, equal\nequal('1', '1')\nprint(WORKER._process.pid)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    pid = int(out)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_long_texts_are_not_even_asked(monkeypatch):
    monkeypatch.setattr(WORKER, "ask", lambda request: pytest.fail("asked"))
    assert equal("1", "x" * 1001) is False


def test_half_an_answer_is_none_and_does_not_reach_the_next(tmp_path):
    (tmp_path / "halting.py").write_text(
        "import sys, time\nprint('{}', flush=True)\nfor line in sys.stdin:\n"
        "    print('{\"half\": ' if 'slow' in line else '{\"whole\": 1}\\n', end='', flush=True)\n"
        "    time.sleep(100 if 'slow' in line else 0)\n"
    )
    worker = Worker(tmp_path / "halting.py", 60)
    assert worker.ask({"be": "quick"}) == {"whole": 1}
    assert worker.ask({"be": "slow"}, seconds=0.5) is None
    assert worker.ask({"be": "quick"}) == {"whole": 1}


def test_a_worker_that_cannot_start_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    with pytest.raises(RuntimeError, match="broken.py did not start.*No module named 'no_such_library'"):
        Worker(tmp_path / "broken.py", 1).ask({})


texts = st.one_of(st.text(max_size=40), st.text("0123456789\\frac{}()^_+-*/=,. xyz", max_size=30))


@pytest.mark.parametrize("text", ["\ud800", "\x00", "{" * 900, "\\frac" * 150, "x" * 10**6, "\n{}\n", '"}'])
def test_nasty_texts(text, monkeypatch):
    monkeypatch.setattr(WORKER, "seconds", 1.0)
    assert equal(text, "1") is False
    assert equal("1", text) is False
    monkeypatch.undo()
    assert equal("0.5", "\\frac12")


PROBLEMS = [{"problem": f"What is {i} plus {i}?", "answer": str(2 * i)} for i in range(100)]


@pytest.fixture(scope="module")
def task(tmp_path_factory, write_jsonl):
    return get_task("math", path=write_jsonl(tmp_path_factory.mktemp("math") / "problems.jsonl", PROBLEMS))


def test_rows_and_their_gold_answers(task):
    rows = [row for split in ("train", "validation", "test") for row in task.rows(split, None)]
    assert len(rows) == 100
    assert set(rows[0]) == {"prompt", "answer", "task", "level"}
    for row in rows[:20]:
        assert row["task"] == "math"
        assert row["level"] == 1
        assert "\\boxed{}" in row["prompt"][0]["content"]
        assert int(row["answer"]) == 2 * int(row["prompt"][0]["content"].split()[2])
        assert task.verify(task.gold(row), row) is True
        assert task.reward(f"So the answer is $\\boxed{{ {row['answer']} }}$.", row) == 1.0


def test_the_answer_of_a_solution(tmp_path, write_jsonl):
    rows = [
        {"question": f"{i}?", "solution": f"First \\boxed{{0}}, then $\\boxed{{\\frac{{{i}}}{{7}}}}$."}
        for i in range(30)
    ]
    task = get_task("math", path=write_jsonl(tmp_path / "solutions.jsonl", rows))
    for row in task.rows("train", None):
        assert row["answer"] == f"\\frac{{{row['prompt'][0]['content'].split('?')[0]}}}{{7}}"


CORRECT = [
    # Numbers.
    ("42", r"\boxed{42}"),
    ("42", r"It is \boxed{42}. So \boxed{42}"),
    ("42", "\\boxed{ 42 }\n\\boxed{42}."),
    ("42", r"\boxed{x = 42}"),
    ("42", r"\boxed{42\text{ apples}}"),
    ("42", r"\boxed{42.0}"),
    ("1{,}234", r"\boxed{1234}"),
    (r"\$32,348", r"\boxed{32348}"),
    (r"10\%", r"\boxed{10\%}"),
    (r"90^\circ", r"\boxed{90}"),
    (r"\frac{3}{4}", r"\boxed{0.75}"),
    (r"\frac{3}{4}", r"\boxed{\dfrac34}"),
    (r"\frac{3}{4}", r"\boxed{6/8}"),
    # Terms, pairs, sets, words, matrices.
    (r"\frac{\pi}{4}", r"\boxed{\tfrac{1}{4}\pi}"),
    (r"3\sqrt{2}", r"\boxed{\sqrt{18}}"),
    ("x^2+2x+1", r"\boxed{(x+1)^2}"),
    (r"(3, \frac{\pi}{2})", r"\boxed{\left(3, \frac{\pi}{2}\right)}"),
    ("[-2, 7]", r"\boxed{[-2,7]}"),
    (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}"),
    (r"\text{(C)}", r"\boxed{\text{(C)}}"),
    ("1, 2", r"\boxed{2, 1}"),
    ("5!", r"\boxed{5!}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}"),
    ("3x", r"\boxed{3\cdot x}"),
    ("3x", r"\boxed{x*3}"),
    ("3x^2", r"\boxed{x\cdot x\cdot 3}"),
    ("2i", r"\boxed{0+2i}"),
    ("5x", r"\boxed{y=5x}"),
    ("3i", r"\boxed{3\mathrm{i}}"),
    (r"2\mathrm{e}", r"\boxed{2e}"),
    (r"\text{C}", r"\boxed{\mathrm{C}}"),
    # Units.
    (r"12\text{ cm}^2", r"\boxed{12}"),
    ("12", r"\boxed{12\ \mathrm{cm^{2}}}"),
    ("12", r"\boxed{12 \text{ km}/\text{h}}"),
    ("12", r"\boxed{12 units^2}"),
    ("12", r"\boxed{12cm}"),
    # Other bases, logarithms and indices.
    ("2516_8", r"\boxed{2516_{8}}"),
    ("1A_{16}", r"\boxed{\text{1A}_{16}}"),
    (r"101_{\text{two}}", r"\boxed{101_\text{two}}"),
    (r"\log_2 5", r"\boxed{\log_{2}(5)}"),
    ("x_1+2", r"\boxed{2+x_1}"),
    ("2a_1+3", r"\boxed{3+2a_1}"),
    # The same value in another notation.
    (r"-\frac{1}{2}", r"\boxed{\frac{1}{-2}}"),
    (r"3\frac{1}{2}", r"\boxed{3.5}"),
    ("0.125", r"\boxed{\frac18}"),
    ("600", r"\boxed{6\cdot 10^2}"),
    ("10^{-7}", r"\boxed{0.0000001}"),
    ("x=2.50", r"\boxed{\frac52}"),
    (r"\{1, 2\}", r"\boxed{\{2, 1\}}"),
    ("(1, 2)", r"\boxed{(1,\ 2.0)}"),
    (r"(\frac12, 1)", r"\boxed{(0.5, 1)}"),
    ("(0.5, 1)", r"\boxed{(0.50, 1)}"),
    (r"\frac14 x + 1.5", r"\boxed{0.25x+\frac32}"),
    ("0.1x", r"\boxed{\frac{x}{10}}"),
    # Exact numbers, however small or large.
    (r"\frac{1}{2^{98}}", r"\boxed{\frac{2}{2^{99}}}"),
    (r"\frac{1}{21!}", r"\boxed{\frac{1}{21\cdot 20!}}"),
    (r"\frac{2^{2005}+1}{3\cdot 2^{2006}}", r"\boxed{\frac16+\frac{1}{3\cdot 2^{2006}}}"),
    (r"(2^{-99}, 1)", r"\boxed{(\frac{1}{2^{99}}, 1)}"),
    (r"(2.5\%, 5)", r"\boxed{(2.5, 5)}"),
    (r"\frac{\sqrt{2}}{10^{20}}", r"\boxed{\frac{1}{10^{20}\sqrt{2}}\cdot 2}"),
    (r"\sqrt{0.1}", r"\boxed{\frac{1}{\sqrt{10}}}"),
    (r"0.1\pi", r"\boxed{\frac{\pi}{10}}"),
    (r"\cot x", r"\boxed{\frac{1}{\tan x}}"),
    ("9^{9^9}", r"\boxed{9 ^ {9^9}}"),
]
# Reference and answer: two terms of which one is only a part of the other.
NOT_THE_SAME_TERM = [
    ("5x", "5"),
    ("5x", "5y"),
    ("3x^2", "3"),
    ("3x^2", "3y"),
    ("2i", "2"),
    ("-4i", "-4"),
    ("2xy", "2ab"),
    ("7n", "7"),
    ("3a-b", "3"),
    ("3a/b", "3"),
    (r"\frac12 x", r"\frac12"),
    ("5", "5x"),
    ("5", "5ab"),
    ("5", "5 abc"),
    ("5", "5 minus x"),
    ("5", r"5\text{ minus }x"),
    ("5", r"5\text{ or six}"),
    ("5", "5 dozen"),
    ("5", "5 M"),
    ("5", r"5\text{x}y"),
    ("5", r"5\mathrm{x}"),
    ("12", "12x"),
    ("12", "12m"),
    ("12", "12 m^2"),
    (r"3\mathrm{i}", "3"),
    ("3", r"3\mathrm{i}"),
    (r"2\mathrm{e}", "2"),
]
WRONG = [
    # No box, or no single answer in it.
    ("42", ""),
    ("42", "42"),
    ("42", "#### 42"),
    ("42", r"\boxed{42"),
    ("42", r"\boxed{}"),
    ("42", r"\boxed{43}"),
    ("42", r"\boxed{41}\boxed{42}"),
    ("42", r"\boxed{42}\boxed{41}"),
    # A calculation, or several numbers.
    ("42", r"\boxed{40+2}"),
    ("42", r"\boxed{84/2}"),
    ("42", r"\boxed{6 \cdot 7}"),
    ("42", r"\boxed{41 42}"),
    ("42", r"\boxed{41, 42}"),
    ("42", r"\boxed{\{42, 43\}}"),
    ("42", r"\boxed{42 \text{ or } 43}"),
    ("42", r"\boxed{x = 42 = 43}"),
    ("3", r"\boxed{\sqrt{9}}"),
    ("120", r"\boxed{5!}"),
    (r"\frac{\pi}{4}", r"\boxed{\int_0^1 \frac{1}{1+x^2} dx}"),
    (r"\frac{\pi^2}{6}", r"\boxed{\sum_{n=1}^{\infty} \frac{1}{n^2}}"),
    # Another value.
    (r"\frac{3}{4}", r"\boxed{\frac{4}{3}}"),
    (r"\frac{3}{4}", r"\boxed{1 - \frac{1}{4}}"),
    ("p-q", r"\boxed{q-p}"),
    ("[-2, 7]", r"\boxed{(-2, 7)}"),
    (r"\text{Evelyn}", r"\boxed{\text{Bob}}"),
    ("1, 2", r"\boxed{1}"),
    # Another base.
    ("2516_8", r"\boxed{2516}"),
    ("2516_8", r"\boxed{2516_{7}}"),
    ("2516", r"\boxed{2516_8}"),
    ("26", r"\boxed{1A_{16}}"),
    ("FF_{16}", r"\boxed{FF}"),
    # Rounded.
    ("0.00000012", r"\boxed{0.0000001}"),
    ("0", r"\boxed{0.0000001}"),
    (r"\frac13", r"\boxed{0.333333}"),
    ("0.142857", r"\boxed{\frac17}"),
    ("0.5", r"\boxed{\frac{5}{0}}"),
    (r"\sqrt{2}", r"\boxed{1.414214}"),
    (r"\pi", r"\boxed{3.14159265}"),
    ("2x", r"\boxed{\frac{d}{dx} x^2}"),
    (r"\frac13 x", r"\boxed{0.333333x}"),
    (r"\frac{1}{2^{98}}", r"\boxed{\frac{1}{2^{99}}}"),
    (r"\frac{1}{21!}", r"\boxed{\frac{1}{20!}}"),
    (r"\frac{1}{3\cdot 2^{2006}}", r"\boxed{\frac{2^{2005}+1}{3\cdot 2^{2006}}}"),
    (r"10^{-20}", r"\boxed{\frac{1}{10^{21}}}"),
    (r"(2^{-98}, 1)", r"\boxed{(2^{-99}, 1)}"),
    (r"\{\frac13, 1\}", r"\boxed{\{0.3333333333333333, 1\}}"),
    (r"[\frac13, 1]", r"\boxed{[0.3333333333333333, 1]}"),
    (r"(-\infty, \frac13]\cup(2,3)", r"\boxed{(-\infty, 0.3333333333333333]\cup(2,3)}"),
    (r"\begin{pmatrix} \frac13 \\ 1 \end{pmatrix}", r"\boxed{\begin{pmatrix} 0.3333333333333333 \\ 1 \end{pmatrix}}"),
    (r"y=\frac13 x", r"\boxed{y=0.3333333333333333x}"),
    (r"x<26\cdot 10^{-50}", r"\boxed{x<25\cdot 10^{-50}}"),
    (r"\frac{\sqrt{2}}{10^{20}}", r"\boxed{\frac{\sqrt{3}}{10^{20}}}"),
    (r"\sqrt{10^{100}+1}", r"\boxed{10^{50}}"),
    (r"\sqrt{2}", r"\boxed{1.41421356237309505}"),
    (r"\cos(10^{-30})+x", r"\boxed{1+x}"),
    (r"|x-5|", r"\boxed{5-x}"),
    # Too large to be computed.
    ("x+1", r"\boxed{10^{10^{10}}}"),
    ("9^{9^9}+1", r"\boxed{9^{9^9}+2}"),
    # An ordered pair, and a set.
    ("(1, 2)", r"\boxed{2, 1}"),
    ("(1, 2)", r"\boxed{(2, 1)}"),
    ("(1, 2)", r"\boxed{\{1, 2\}}"),
    (r"\{1, 2\}", r"\boxed{(1, 2)}"),
]


@pytest.mark.parametrize("answer, completion", CORRECT)
def test_right_answers(task, answer, completion):
    assert task.verify(completion, {"answer": answer}) is True
    assert task.reward(completion, {"answer": answer}) == 1.0


@pytest.mark.parametrize("answer, completion", WRONG)
def test_wrong_answers(task, answer, completion):
    assert task.verify(completion, {"answer": answer}) is False
    assert task.reward(completion, {"answer": answer}) == 0.0


@pytest.mark.parametrize("answer, boxed", NOT_THE_SAME_TERM)
def test_what_follows_a_number_is_no_unit(task, answer, boxed):
    completion = f"\\boxed{{{boxed}}}"
    assert task.verify(completion, {"answer": answer}) is False
    assert task.reward(completion, {"answer": answer}) == 0.0


@settings(deadline=None, max_examples=100, derandomize=True)
@given(texts, texts)
def test_it_never_raises(task, gold, answer):
    assert type(equal(gold, answer)) is bool
    assert type(equal_number("42", answer)) is bool
    for completion, reference in ((answer, "42"), (f"\\boxed{{{answer}}}", "42"), (f"\\boxed{{{answer}}}", "x+1")):
        assert type(task.verify(completion, {"answer": reference})) is bool


QUESTION = "Simplify $\\sqrt{180}$. Name $x$, (C), $(x + 1)^2$ and \\frac{84}{2}; Evelyn or Bob?"


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


def test_what_takes_too_long_is_wrong(task, monkeypatch):
    monkeypatch.setattr(WORKER, "seconds", 1.0)
    assert task.verify("\\boxed{(9^{9^{9^{9}}}, 1)}", {"answer": "x+1"}) is False


def test_the_same_text_needs_no_second_opinion(task, monkeypatch):
    monkeypatch.setattr(WORKER, "ask", lambda request: pytest.fail("asked"))
    assert task.verify("\\boxed{\\left[ -2, \\dfrac72 \\right]}", {"answer": "[-2,\\frac72]"})
    assert task.verify("\\boxed{ \\left( 1 ,\\, \\dfrac12 \\right) . }", {"answer": "(1,\\frac12)"})


def test_a_long_text_is_not_read(task, monkeypatch):
    # Reading takes more than linear time.
    monkeypatch.setattr("trl_prorl.tasks.math.VARIABLE", None)
    assert not task.verify("\\boxed{" + "x " * 10**6 + "}", {"answer": "42"})


@pytest.mark.parametrize(
    "rows, message",
    [
        ([{"answer": "1"}], "row 0: 'problem' or 'question' is missing .there are: answer.; every row needs"),
        ([{"problem": "a"}], "row 0: 'answer' or 'solution' is missing .there are: problem."),
        ([{"problem": "a", "answer": 1}], "row 0: 'answer' is 1; every row needs 'answer' or 'solution' as text"),
        ([{"problem": "", "answer": "1"}], "row 0: 'problem' is ''"),
        ([{"problem": "a", "solution": "It is 1."}], "row 0: 'solution' holds no .*boxed"),
        (PROBLEMS[:1] + [{"problem": "a"}], "row 1"),
    ],
)
def test_bad_rows(tmp_path, write_jsonl, rows, message):
    path = write_jsonl(tmp_path / "bad.jsonl", rows)
    with pytest.raises(ValueError, match=f"path='{path}', {message}") as error:
        get_task("math", path=path)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="path is missing.*JSON Lines"):
        get_task("math")
