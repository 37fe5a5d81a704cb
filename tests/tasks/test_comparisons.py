"""
What counts as the same answer where no formula is read: in `gsm8k`, in `as_number` and in the tests of `code`.

Judged by hand, with the kinds that test_gsm8k.py, test_final_answer.py and test_sandbox.py lack: what changes a number
without a digit, and what Python's `==` says of values that come back from the sandbox.
"""

import warnings
from fractions import Fraction

import pytest

from trl_prorl.tasks import get_task
from trl_prorl.tasks.final_answer import as_number
from trl_prorl.tasks.sandbox import Program, Sandbox


# Reference, marked answer.
SAME_NUMBER = [
    ("18", "18.000"),
    ("18", "0018"),
    ("18", "1.8e1"),
    ("18", "18 cents"),
    ("18.5", "18 1/2"),
    ("1.8", "1.8."),
    ("-18", "-$18.00"),
    ("1000", "10^3"),
]
OTHER_NUMBER = [
    ("18000", "18.000"),
    ("18", "18,000"),
    ("18", "18 1/2"),
    ("18", "18/1"),
    ("18", "18:30"),
    ("18", "18 below zero"),
    ("0.18", "18 cents"),
    ("0.333333", "1/3"),
    ("18", "18 is not the answer"),
    ("3", "3 fourths"),
    ("7", "7 twelfths"),
    ("4", "4 millionths"),
    ("5", "5 quadrillion"),
    ("18", "18 mln"),
    ("18", "18 gross"),
    ("18", "18 at most"),
    ("18", "18 and a quarter"),
    ("18", "18 doubled"),
]
# A text, and its value or `None` if it is not one number.
VALUES = [
    (r"10^{3}", "1000"),
    (r"10^{-2}", "1/100"),
    (r"0.\overline{3}", "1/3"),
    (r"1\,000\,000", "1000000"),
    (r"5\text{ each}", "5"),
    (r"-\frac{-1}{2}", "1/2"),
    (r"1.000,5", None),
    (r"--5", None),
    (r"5^{\circ}30'", None),
    (r"5\text{ ft }3\text{ in}", None),
    (r"5\text{ modulo }n", None),
    (r"5\text{ modulo n}", None),
    (r"5\text{ quadrillion}", None),
    (r"5\text{ millionths}", None),
    (r"5\text{ at most}", None),
    (r"5\text{ doubled}", None),
    (r"6 fifths", None),
    (r"3\frac{-1}{2}", None),
]
# What the function returns, and what a test says of it.
PASSES = [
    ("0.1 + 0.2", "assert abs(f() - 0.3) < 1e-9"),
    ("0.1 + 0.2", "assert f() == 0.1 + 0.2"),
    ("3", "assert f() == 3.0"),
    ("-0.0", "assert f() == 0"),
    ("float('nan')", "assert f() != f()"),
    ("1j ** 2", "assert f() == -1"),
    ("[3, 1, 2]", "assert sorted(f()) == [1, 2, 3]"),
    ("frozenset([2, 1])", "assert f() == {1, 2}"),
    ("{frozenset([1]): (2, {3})}", "assert f() == {frozenset([1]): (2, {3})}"),
    ("{'b': 1, 'a': 2}", "assert f() == {'a': 2, 'b': 1}"),
    ("1 < 2", "assert f() is True"),
]
FAILS = [
    ("0.1 + 0.2", "assert f() == 0.3"),
    ("round(2.675, 2)", "assert f() == 2.68"),
    ("2 ** 53 + 1", "assert f() == float(2 ** 53)"),
    ("1", "assert f() is True"),
    ("[1, 2]", "assert f() == (1, 2)"),
    ("[(1, 2)]", "assert f() == [[1, 2]]"),
    ("[2, 1]", "assert f() == [1, 2]"),
    ("[1, 2]", "assert f() == {1, 2}"),
    ("{'a': 1}", "assert f() == {'a': 1, 'b': None}"),
    ("'a  b'", "assert f() == 'a b'"),
    ("'a\\n'", "assert f() == 'a'"),
    ("'A'", "assert f() == 'a'"),
    ("'3'", "assert f() == 3"),
    ("b'a'", "assert f() == 'a'"),
]


@pytest.mark.parametrize("reference, answer", SAME_NUMBER)
def test_the_same_number(reference, answer):
    task = get_task("gsm8k")
    for completion in (f"#### {answer}", f"\\boxed{{{answer}}}"):
        assert task.verify(completion, {"answer": reference})


@pytest.mark.parametrize("reference, answer", OTHER_NUMBER)
def test_another_number(reference, answer):
    task = get_task("gsm8k")
    for completion in (f"#### {answer}", f"\\boxed{{{answer}}}"):
        assert not task.verify(completion, {"answer": reference})


@pytest.mark.parametrize("text, value", VALUES)
def test_the_value_of_a_text(text, value):
    assert as_number(text) == (None if value is None else Fraction(value))


def passed(sandbox, table):
    """Return how many of the tests pass, each of the value in its row. One program has them all."""
    code = f"def f(i):\n    return [{', '.join(f'lambda: {value}' for value, _ in table)}][i]()"
    tests = tuple(test.replace("f()", f"f({i})") for i, (_, test) in enumerate(table))
    return sandbox.run(Program(code, tests, "f"))


def test_values_from_the_sandbox_compare_as_in_python():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # without bubblewrap the weaker sandbox says so
        sandbox = Sandbox(allow_weak=True)
    assert passed(sandbox, PASSES) == len(PASSES)
    assert passed(sandbox, FAILS) == 0
    assert passed(sandbox, FAILS + PASSES) == len(PASSES)
