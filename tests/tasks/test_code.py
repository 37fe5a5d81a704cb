import warnings
from pathlib import Path

import pytest

import trl_prorl.tasks.code
from trl_prorl.tasks import get_task
from trl_prorl.tasks.code import extract_code
from trl_prorl.tasks.sandbox import find_problem


@pytest.fixture(scope="module", autouse=True)
def quiet():
    # On a machine without bubblewrap these tests run in the weaker sandbox, which says so each time.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def make(**options):
    return get_task("code", allow_weak_sandbox=True, **options)


# What is run

CODE = {
    "def f(): pass": "def f(): pass",
    "```python\na = 1\n```": "a = 1\n",
    "Here:\n```\na = 1\n```\nDone.": "a = 1\n",
    "```python\na = 1\n```\nor better\n```py\na = 2\n```": "a = 2\n",
    "1. So:\n   ```python\n   if a:\n       b = 1\n   ```": "if a:\n    b = 1\n",
    '```python\na = """\n  \n"""\n```': 'a = """\n  \n"""\n',
    "```python\na = 1\n```\n```python\na = 2": "a = 2",
    "````\na = 1\n````": "a = 1\n",
    "```python\na = '```'\n```": "a = '```'\n",
    "The code `a = 1` does": "The code `a = 1` does",
    "``` a = 1 ```": "``` a = 1 ```",
    "```\n" * 10_000: "",  # in linear time
    "": "",
}
CODE_THAT_DEFINES_F = {
    "```python\ndef f(x): pass\n```\nExample:\n```\n>>> f(1)\n```": "def f(x): pass\n",
    "```\ndef f(x): pass\n```\n```\ndef f(x): return 1\n```\n```\n1\n```": "def f(x): return 1\n",
    "```\ndef f(x): pass\n```\n```\ndef ff(x): pass\n```": "def f(x): pass\n",
    "```\ndef f(x): pass\n```\n```\nassert f == 1\nf == 1\n```": "def f(x): pass\n",
    "```\nf: object = len\n```\n```\nprint(f)\n```": "f: object = len\n",
    "```\nclass f: pass\n```\n```\nf()\n```": "class f: pass\n",
    "  ```\n  def f(x):\n    pass\n  ```\n```\nf(1)\n```": "def f(x):\n  pass\n",
    "```\na = 1\n```\n```\nprint(1)\n```": "print(1)\n",
    "def f(x): pass": "def f(x): pass",
}


def test_extract_code():
    assert {completion: extract_code(completion) for completion in CODE} == CODE
    assert {completion: extract_code(completion, "f") for completion in CODE_THAT_DEFINES_F} == CODE_THAT_DEFINES_F


def test_the_name_does_not_make_another_question():
    task = make(level=1)
    prompts = [messages[0]["content"] for messages in task.rows("train", 300)["prompt"]]
    contents = {task.content(prompt) for prompt in prompts}
    assert len(contents) == 300
    assert all(content.startswith("Its argument is a") for content in contents)


# Verdicts


def test_gold_answers_verify_and_constants_do_not():
    for level in (1, 4, 8):
        task = make(level=level)
        rows = list(task.rows("test", 6))
        gold = [task.gold(row) for row in rows]
        assert task.verify_many(gold, rows) == [True] * 6
        constants = [(row["entry_point"], row["tests"][-1].split(" == ")[1]) for row in rows]
        wrong = [f"```python\ndef {name}(x):\n    return {constant}\n```" for name, constant in constants]
        assert task.reward_many(wrong, rows) == [0.0] * 6


TESTS = [f"assert double({x!r}) == {2 * x!r}" for x in (2, 0, "a", -1)]
ROW = {"answer": "", "tests": TESTS, "entry_point": "double", "setup": ""}


@pytest.mark.parametrize(
    "completion, share",
    [
        ("def double(x):\n    return 2 * x", 1.0),
        ("```python\ndouble = lambda x: x ** 2\n```", 0.5),
        ("```python\ndef double(x):\n    return 5\n```", 0.0),
        ("def twice(x):\n    return 2 * x", 0.0),
        ("```python\ndef double(x):\n    return 2 * x\n```\n```python\nprint(1)\n```", 1.0),
        ("```python\ndef double(x):\n    return 2 * x\n```\n```python\ndef double(x): pass\n```", 0.0),
        ("", 0.0),
    ],
)
def test_rewards(completion, share):
    assert make(reward="share").reward(completion, ROW) == share
    assert make().reward(completion, ROW) == float(share == 1.0)
    assert make().verify(completion, ROW) is (share == 1.0)


# Files

MBPP = {
    "task_id": 11,
    "text": "Write a python function to remove the first and the last occurrence of a character.",
    "code": "def remove_Occ(s, ch):\r\n    s = s.replace(ch, '', 1)\r\n    return s[::-1].replace(ch, '', 1)[::-1]",
    "test_list": ['assert remove_Occ("hello","l") == "heo"', 'assert remove_Occ("abcda","a") == "bcd"'],
    "test_setup_code": "",
    "challenge_test_list": ['assert remove_Occ("hellolloll","l") == "helollol"'],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "from typing import List\n\n\ndef helper(x: int) -> int:\n    return x + 1\n\n\n"
    "def bump(xs: List[int]) -> List[int]:\n"
    '    """ Add one to each.\n    >>> bump([1])\n    [2]\n    """\n',
    "entry_point": "bump",
    "canonical_solution": "    return [helper(x) for x in xs]\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate([1, 2]) == [2, 3]\n"
    "    assert candidate([]) == []\n"
    "    assert candidate([helper(1)]) == [3]\n",
}
PLAIN = {"prompt": "Write `triple`.", "tests": ["assert triple(2) == 6"], "entry_point": "triple"}
PLAIN |= {"solution": "triple = lambda x: 3 * x"}


SUM = {"text": "Add.", "code": "def sum(a, b):\n    return a + b\nadd = sum", "test_list": ["assert sum(1, 2) == 3"]}
SQUARES = {
    "text": "Add the areas of squares.",
    "code": "def areas(squares):\n    return sum(s.side ** 2 for s in squares)",
    "test_setup_code": "import math\nclass Square:\n    def __init__(self, side):\n        self.side = side",
    "test_list": ["assert math.isclose(areas([Square(1.5), Square(2)]), 6.25)", "assert areas([]) == 0"],
}
PAGE = (Path(__file__).parents[2] / "docs" / "howto-task.md").read_text()
CONVERT: dict = {"__name__": "convert"}
exec(PAGE.partition("# convert.py\n")[2].partition("```")[0], CONVERT)
mbpp, humaneval = CONVERT["mbpp"], CONVERT["humaneval"]


@pytest.mark.parametrize(
    "problem, name, shown, hidden, right, wrong",
    [
        (mbpp(MBPP), "remove_Occ", *MBPP["test_list"], [], ["def remove_Occ(s, ch):\n    return s[1:-1]"]),
        # Named like one of Python's.
        (mbpp(SUM), "sum", "Add.", "def sum", [], ["total = 3  # sum"]),
        # With imports and setup.
        (mbpp(SQUARES), "areas", "math.isclose", "== 0", [], ["def areas(squares):\n    return 0"]),
        (
            *(humaneval(HUMANEVAL), "bump", "Add one to each.", "candidate"),
            # The imports and the helper of the prompt need not be repeated.
            ["def bump(xs: List[int]):\n    return [helper(x) for x in xs]"],
            # A helper redefined to please the tests does not reach them.
            [
                "def bump(xs):\n    return xs",
                "def helper(x):\n    return 2\ndef bump(xs):\n    return [3] if xs == [2] else xs",
            ],
        ),
        (PLAIN, "triple", "Write `triple`.", "assert", ["triple = lambda x: x + 2 * x"], ["def triple(x): pass"]),
    ],
)
def test_a_file(tmp_path, write_jsonl, problem, name, shown, hidden, right, wrong):
    """Plain, and as docs/howto-task.md converts MBPP and HumanEval."""
    task = make(path=write_jsonl(tmp_path / "problems.jsonl", [problem]))
    (split,) = [split for split, problems in task._problems.items() if problems]
    row = task.rows(split, None)[0]
    assert (row["entry_point"], row["level"], task.level) == (name, 1, 1)
    assert shown in row["prompt"][0]["content"]
    assert hidden not in row["prompt"][0]["content"]
    assert all(task.verify(completion, row) for completion in [task.gold(row), *right])
    assert not any(task.verify(completion, row) for completion in wrong)


# Options

FAILING = "#!/bin/sh\necho bwrap: No permissions to create new namespace >&2\nexit 1\n"


@pytest.mark.parametrize("program, reason", [(None, "bubblewrap"), (FAILING, "No permissions to create new")])
def test_without_a_bubblewrap_that_works_the_task_is_refused(monkeypatch, tmp_path, program, reason):
    if program is not None:
        (tmp_path / "bwrap").write_text(program)
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    find_problem.cache_clear()
    try:
        with pytest.raises(ValueError, match=f"{reason}.*allow_weak_sandbox: true"):
            get_task("code")
        with pytest.warns(UserWarning, match="can read every file"):
            get_task("code", allow_weak_sandbox=True)
    finally:
        find_problem.cache_clear()


def test_the_sandbox_is_where_the_code_runs(monkeypatch):
    monkeypatch.setattr(trl_prorl.tasks.code.Sandbox, "run", lambda self, program: 0)
    assert not make().verify("def double(x):\n    return 2 * x", ROW)
