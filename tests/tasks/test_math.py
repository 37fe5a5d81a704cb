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
from tables import pairs

import tasks.math_equality
from tasks import get_task
from tasks.math_equality import WORKER, equal, equal_number, is_integer
from tasks.worker import Worker


SCRIPT = Path(tasks.math_equality.__file__).with_name("isolated") / "math_worker.py"


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
    # One integer power, which no signal interrupts.
    assert worker.ask({"gold": "5", "answer": "9^{9^{9^{9}}}"}) is None
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
    assert equal("1", "1") and WORKER._process.pid == ours


def test_the_worker_ends_with_its_owner(tmp_path):
    script = "from tasks.math_equality import WORKER, equal\nequal('1', '1')\nprint(WORKER._process.pid)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    pid, deadline = int(out), time.monotonic() + 30
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
    assert len(rows) == 100 and set(rows[0]) == {"prompt", "answer", "task", "level"}
    for row in rows[:20]:
        assert row["task"] == "math" and row["level"] == 1 and "\\boxed{}" in row["prompt"][0]["content"]
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


CORRECT = pairs(
    r"""
    42 ≟ \boxed{42} ¦ It is \boxed{42}. So \boxed{42} ¦ \boxed{ 42 }⏎\boxed{42}. ¦ \boxed{x = 42}
    \boxed{42\text{ apples}} ¦ \boxed{42.0} ¦ 1{,}234 ≟ \boxed{1234} ¦ \$32,348 ≟ \boxed{32348} ¦ 10\% ≟ \boxed{10\%}
    90^\circ ≟ \boxed{90} ¦ \frac{3}{4} ≟ \boxed{0.75} ¦ \boxed{\dfrac34} ¦ \boxed{6/8}
    \frac{\pi}{4} ≟ \boxed{\tfrac{1}{4}\pi} ¦ 3\sqrt{2} ≟ \boxed{\sqrt{18}} ¦ x^2+2x+1 ≟ \boxed{(x+1)^2}
    (3, \frac{\pi}{2}) ≟ \boxed{\left(3, \frac{\pi}{2}\right)} ¦ [-2, 7] ≟ \boxed{[-2,7]}
    \text{Evelyn} ≟ \boxed{\text{Evelyn}} ¦ \text{(C)} ≟ \boxed{\text{(C)}} ¦ 1, 2 ≟ \boxed{2, 1} ¦ 5! ≟ \boxed{5!}
    \begin{pmatrix} 1 \\ 2 \end{pmatrix} ≟ \boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}} ¦ 3x ≟ \boxed{3\cdot x}
    \boxed{x*3} ¦ 3x^2 ≟ \boxed{x\cdot x\cdot 3} ¦ 2i ≟ \boxed{0+2i} ¦ 5x ≟ \boxed{y=5x} ¦ 3i ≟ \boxed{3\mathrm{i}}
    2\mathrm{e} ≟ \boxed{2e} ¦ \text{C} ≟ \boxed{\mathrm{C}} ¦ 12\text{ cm}^2 ≟ \boxed{12}
    12 ≟ \boxed{12\ \mathrm{cm^{2}}} ¦ \boxed{12 \text{ km}/\text{h}} ¦ \boxed{12 units^2} ¦ \boxed{12cm}
    2516_8 ≟ \boxed{2516_{8}} ¦ 1A_{16} ≟ \boxed{\text{1A}_{16}} ¦ 101_{\text{two}} ≟ \boxed{101_\text{two}}
    \log_2 5 ≟ \boxed{\log_{2}(5)} ¦ x_1+2 ≟ \boxed{2+x_1} ¦ 2a_1+3 ≟ \boxed{3+2a_1}
    -\frac{1}{2} ≟ \boxed{\frac{1}{-2}} ¦ 3\frac{1}{2} ≟ \boxed{3.5} ¦ 0.125 ≟ \boxed{\frac18}
    600 ≟ \boxed{6\cdot 10^2} ¦ 10^{-7} ≟ \boxed{0.0000001} ¦ x=2.50 ≟ \boxed{\frac52} ¦ \{1, 2\} ≟ \boxed{\{2, 1\}}
    (1, 2) ≟ \boxed{(1,\ 2.0)} ¦ (\frac12, 1) ≟ \boxed{(0.5, 1)} ¦ (0.5, 1) ≟ \boxed{(0.50, 1)}
    \frac14 x + 1.5 ≟ \boxed{0.25x+\frac32} ¦ 0.1x ≟ \boxed{\frac{x}{10}}
    """
)
# Reference and answer: two terms of which one is only a part of the other.
NO_UNITS = pairs(
    r"""
    5x ≟ 5 ¦ 5y ¦ 3x^2 ≟ 3 ¦ 3y ¦ 2i ≟ 2 ¦ -4i ≟ -4 ¦ 2xy ≟ 2ab ¦ 7n ≟ 7 ¦ 3a-b ≟ 3 ¦ 3a/b ≟ 3 ¦ \frac12 x ≟ \frac12
    5 ≟ 5x ¦ 5ab ¦ 5 abc ¦ 5 minus x ¦ 5\text{ minus }x ¦ 5\text{ minus two} ¦ 5\text{ or six} ¦ 5 dozen
    5 hundredths ¦ 5 M ¦ 5\text{x}y ¦ 5\mathrm{x} ¦ 12 ≟ 12x ¦ 12m ¦ 12 m^2 ¦ 3\mathrm{i} ≟ 3 ¦ 3 ≟ 3\mathrm{i}
    2\mathrm{e} ≟ 2
    """
)
WRONG = pairs(
    r"""
    42 ≟ ∅ ¦ 42 ¦ #### 42 ¦ \boxed{42 ¦ \boxed{} ¦ \boxed{43} ¦ \boxed{41}\boxed{42} ¦ \boxed{42}\boxed{41}
    \boxed{40+2} ¦ \boxed{84/2} ¦ \boxed{6 \cdot 7} ¦ \boxed{41 42} ¦ \boxed{41, 42} ¦ \boxed{\{42, 43\}}
    \boxed{42 \text{ or } 43} ¦ \boxed{x = 42 = 43} ¦ 3 ≟ \boxed{\sqrt{9}} ¦ 120 ≟ \boxed{5!}
    \frac{\pi}{4} ≟ \boxed{\int_0^1 \frac{1}{1+x^2} dx} ¦ \frac{\pi^2}{6} ≟ \boxed{\sum_{n=1}^{\infty} \frac{1}{n^2}}
    \frac{3}{4} ≟ \boxed{\frac{4}{3}} ¦ \boxed{1 - \frac{1}{4}} ¦ p-q ≟ \boxed{q-p} ¦ [-2, 7] ≟ \boxed{(-2, 7)}
    \text{Evelyn} ≟ \boxed{\text{Bob}} ¦ 1, 2 ≟ \boxed{1} ¦ 2516_8 ≟ \boxed{2516} ¦ \boxed{2516_7} ¦ \boxed{2516_{7}}
    2516 ≟ \boxed{2516_8} ¦ 26 ≟ \boxed{1A_{16}} ¦ FF_{16} ≟ \boxed{FF} ¦ 0.00000012 ≟ \boxed{0.0000001}
    0 ≟ \boxed{0.0000001} ¦ \frac13 ≟ \boxed{0.333333} ¦ 0.142857 ≟ \boxed{\frac17} ¦ 0.5 ≟ \boxed{\frac{5}{0}}
    \sqrt{2} ≟ \boxed{1.414214} ¦ \pi ≟ \boxed{3.14159265} ¦ 2x ≟ \boxed{\frac{d}{dx} x^2}
    \frac13 x ≟ \boxed{0.333333x} ¦ (1, 2) ≟ \boxed{2, 1} ¦ \boxed{(2, 1)} ¦ \boxed{\{1, 2\}}
    \{1, 2\} ≟ \boxed{(1, 2)}
    """
) + [(gold, f"\\boxed{{{answer}}}") for gold, answer in NO_UNITS]


@pytest.mark.parametrize(
    "right, answer, completion", [(cases is CORRECT, *case) for cases in (CORRECT, WRONG) for case in cases]
)
def test_verdicts(task, right, answer, completion):
    assert task.verify(completion, {"answer": answer}) is right
    assert task.reward(completion, {"answer": answer}) == float(right)


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
    assert task.verify("\\boxed{9^{9^{9^{9}}}}", {"answer": "x+1"}) is False


def test_the_same_text_needs_no_second_opinion(task, monkeypatch):
    monkeypatch.setattr(WORKER, "ask", lambda request: pytest.fail("asked"))
    assert task.verify("\\boxed{\\left[ -2, \\dfrac72 \\right]}", {"answer": "[-2,\\frac72]"})
    assert task.verify("\\boxed{ \\left( 1 ,\\, \\dfrac12 \\right) . }", {"answer": "(1,\\frac12)"})


def test_a_long_text_is_not_read(task, monkeypatch):
    # Reading takes more than linear time.
    monkeypatch.setattr("tasks.math.VARIABLE", None)
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
