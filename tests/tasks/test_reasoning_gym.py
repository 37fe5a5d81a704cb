import importlib.util
import re
import subprocess
import sys

import pytest

from trl_prorl.tasks import get_task
from trl_prorl.tasks.reasoning_gym import WORKER, extract_answer


installed = importlib.util.find_spec("reasoning_gym") is not None
pytestmark = pytest.mark.skipif(not installed, reason="reasoning-gym is not installed (the extra `rg`)")


@pytest.fixture(scope="module")
def task():
    return get_task("rg:chain_sum")


def test_rows(task):
    rows = task.rows("validation", 20)
    for row in rows:
        assert (row["task"], row["level"]) == ("rg:chain_sum", 0)
        terms = row["prompt"][0]["content"].split("problem: ")[1].split("=")[0]
        assert str(eval(terms)) == row["answer"]
    assert task.rows("validation", 5)[:] == rows[:5]  # fewer are the first of more


@pytest.mark.parametrize("family", ["chain_sum", "countdown", "simple_integration", "rearc"])
def test_gold_answers_verify(family):
    task = get_task(f"rg:{family}")
    for row in task.rows("train", 3):
        assert task.reward(f"I think it is\n<answer>\n{row['answer']}\n</answer>", row) == 1.0
        assert task.verify("<answer>no such answer</answer>", row) is False


ANSWERS = {
    "<answer>6</answer> no, <answer> 7\n</answer>.": "7",
    "<answer>a <answer>7</answer>": "7",
    " 7 ": "7",
    "<think><answer>1</think> 7": "<think><answer>1</think> 7",
    "<answer></answer>": "",
}


def test_extract_answer():
    assert {completion: extract_answer(completion) for completion in ANSWERS} == ANSWERS


def test_only_a_full_point_is_correct(task):
    row = task.rows("train", 1)[0]
    near = f"<answer>{row['answer']} or so</answer>"
    graded = get_task("rg:chain_sum", reward="score")
    assert 0 < graded.reward(near, row) < 1
    assert task.reward(near, row) == 0.0
    assert not graded.verify(near, row)


SCORER = "__import__('reasoning_gym').algorithmic.spiral_matrix.SpiralMatrixDataset"
HOSTILE = {
    "fake the score": f"setattr({SCORER}, 'score_answer', lambda *a: 1.0) or []",
    "leave": "__import__('os')._exit(0)",
    "read": "open('/etc/passwd').read().split()",
    "attributes": "().__class__.__base__.__subclasses__()",
    "a comprehension": "[x for x in (1, 2)]",
    "a power": "[9**9**9**9]",
}


@pytest.mark.parametrize("family", ["spiral_matrix", "simple_integration"])
def test_answers_that_are_programs(family, monkeypatch):
    monkeypatch.setattr(WORKER, "seconds", 2.0)
    task = get_task(f"rg:{family}")
    row = task.rows("train", 1)[0]
    for name, answer in HOSTILE.items():
        if name != "a power" or family == "spiral_matrix":
            assert not task.verify(f"<answer>{answer}</answer>", row), name
    # Not now, and not for those who come after either.
    assert not task.verify("<answer>no such answer</answer>", row)
    monkeypatch.undo()
    assert task.verify(task.gold(row), row)


@pytest.mark.parametrize("family", ["complex_arithmetic", "decimal_arithmetic", "simple_equations"])
def test_what_is_no_number_is_no_answer(family):
    task = get_task(f"rg:{family}", reward="score")
    row = task.rows("train", 1)[0]
    for answer in ("nan", "NaN", "inf", "-Infinity", "nan+nanj", "3 + infj", "oo", "1 nan"):
        assert task.reward(f"<answer>{answer}</answer>", row) == 0.0, answer
    assert task.verify(task.gold(row), row)


def test_a_calculation_that_was_only_written_down_is_no_answer():
    task = get_task("rg:simple_integration")
    for row in task.rows("train", 4):
        text = row["prompt"][0]["content"]
        integrand = re.search("([^:∫]*?)(?: dx)?$", text.split("\n")[0]).group(1).strip()
        gold = row["answer"].replace(" + C", "")
        assert task.verify(f"<answer>{gold}</answer>", row), text
        for answer in (f"Integral({integrand}, x)", f"Integral(Derivative({gold}, x), x)", f"Subs({gold}, y, x)"):
            assert not task.verify(f"<answer>{answer}</answer>", row), answer


def test_the_worker_is_locked_up():
    script = (
        "import sys, json\nsys.path.insert(0, sys.argv[1])\nfrom answering import answer_lines\n"
        "import os, socket\n"
        "def act(request):\n    try:\n        eval(request['do'])\n    except PermissionError:\n"
        "        return {'refused': True}\n"
        "    return {'refused': False}\nanswer_lines(act, 2048, 60)"
    )
    folder = WORKER.script.parent
    wishes = ["os.fork()", "socket.socket()", "open('/tmp/x', 'w')", "os.kill(os.getppid(), 0)", "os.listdir('/')"]
    lines = "".join(f'{{"do": "{wish}"}}\n' for wish in wishes)
    command = [sys.executable, "-c", script, str(folder)]
    out = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout
    assert out.split("\n")[1:-1] == ['{"refused": true}'] * 4 + ['{"refused": false}']
