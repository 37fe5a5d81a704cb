"""Which answer a completion gives, by task."""

import pytest

from trl_prorl.tasks import get_task


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


@pytest.mark.parametrize("name, row, completion, answer", CASES)
def test_the_answer_of_a_text(math_task, name, row, completion, answer):
    # The text is read and not run: no bubblewrap is needed.
    options = {"allow_weak_sandbox": True} if name == "code" else {}
    task = math_task if name == "math" else get_task(name, **options)
    found = task.answer_of(completion, {"task": name, **row})
    assert (found.strip() if found else found) == answer
    assert task.has_answer(completion, row) == (answer is not None)
