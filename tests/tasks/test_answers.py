"""Which answer a completion gives, by task."""

import pytest

from trl_prorl.tasks import get_task
from trl_prorl.tasks.generated import GeneratedTask


CODE = "```python\ndef add(a, b):\n    return a + b\n```"
CASES = [
    ("reverse_digits", {}, " 321\n", "321"),
    ("reverse_digits", {}, " \n", None),
    ("sorting", {}, "1  2\n3", "1 2 3"),
    ("sorting", {}, "", None),
    ("sums", {}, "so 7", None),
    ("sums", {}, "#### 41 or rather #### $1,234.50", "1234.5"),
    ("sums", {}, "\\boxed{+07.0}", "7"),
    ("sums", {}, "#### 41 42", "41 42"),  # no number: as it stands
    ("stem", {"choices": ["2 m", "3 m"]}, "Answer: (b) 3 m", "B"),
    ("stem", {"choices": ["2 m", "3 m"]}, "Answer: C", None),
    ("math", {}, "\\boxed{1}, so \\boxed{ \\dfrac{1}{2} }", "\\frac{1}{2}"),
    ("math", {}, "a half", None),
    ("code", {"entry_point": "add"}, f"Here:\n{CODE}\nDone.", "def add(a, b):\n    return a + b"),
]


@pytest.fixture
def make(write_jsonl, tmp_path):
    def make(name):
        if name == "math":
            return get_task(name, path=write_jsonl(tmp_path / "one.jsonl", MATH))
        if name == "code":
            return get_task(name, allow_weak_sandbox=True)  # texts are read, and none is run: no bubblewrap is needed
        return get_task(name)

    return make


MATH = [{"problem": f"{n} + 1?", "answer": str(n + 1)} for n in range(40)]


@pytest.mark.parametrize("name, row, completion, answer", CASES)
def test_the_answer_of_a_text(make, name, row, completion, answer):
    task = make(name)
    found = task.answer_of(completion, {"task": name, **row})
    assert (found.strip() if found else found) == answer
    assert task.has_answer(completion, row) == (answer is not None)


@pytest.mark.parametrize("name", ["reverse_digits", "sorting", "sums", "stem", "parity", "math", "digit_checksum"])
def test_the_gold_completion_gives_the_row_s_answer(make, name):
    task = make(name)
    for row in task.rows("train", 8):
        assert task.answer_of(task.gold(row), row) == row["answer"]


def test_a_generated_task_that_says_which_answer_needs_no_verify():
    class Loud(GeneratedTask):
        name = "loud"

        def answer_of(self, completion, row):
            return completion.rpartition("!")[0].rpartition(" ")[2] or None

        def sample(self, rng):
            raise NotImplementedError

    assert Loud().verify("I say 7!", {"answer": "7"})
    assert not Loud().verify("I say 7", {"answer": "7"})
