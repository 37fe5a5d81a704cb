from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_prorl.tasks.final_answer import MAX_LENGTH, as_number, boxed


BOXES = {
    "\\boxed {42} and \\fbox{43}": ["42", "43"],
    "\\boxed{\\frac{\\sqrt{3}}{2}}": ["\\frac{\\sqrt{3}}{2}"],
    "\\boxed{\\{1, 2\\}}": ["\\{1, 2\\}"],
    "\\boxed{\\text{a } b}": ["\\text{a } b"],
    "{\\boxed{1}}}": ["1"],
    "\\boxed{1 \\boxed{2} 3}": ["2"],
    "\\boxed{1} \\boxed{2": ["1"],
    "\\boxed{": [],
    "\\boxed 42": [],
    "\\boxed{}": [""],
    "\\\\boxed{1}": [],
}
# The value of one number; see test_gsm8k.py and test_math.py for whole answers.
NUMBERS = {
    "€42": "42",
    r"42\%": "42",
    "42 km/h": "42",
    "42 dollars per hour.": "42",
    r"42\text{ m}^{2}": "42",
    r"42\text{ m²}": "42",
    "42 square feet": "42",
    r"\text{42}": "42",
    "**42**": "42",
    "<answer>42</answer>": "42",
    r"\$42.50": "42.50",
    r"90^\circ": "90",
    r"5\text{ m}^2": "5",
    # Signs, separators, fractions, powers of ten.
    " -42. ": "-42",
    "−5": "-5",
    "+.5": "1/2",
    "1,234,567.50": "1234567.50",
    "1{,}234": "1234",
    r"1\,234": "1234",
    "1/2": "1/2",
    "1/2.": "1/2",
    r"\dfrac12": "1/2",
    r"-\tfrac{3}{4}": "-3/4",
    "1 1/2": "3/2",
    r"4 \times 10^{3}": "4000",
    "4e-3": "1/250",
    r"4\cdot10^3": "4000",
    "1.5*10^2": "150",
    r"-3\frac{1}{2}": "-7/2",
    r"\frac{-1}{2}": "-1/2",
    r"\frac{1}{-2}": "-1/2",
    # Brackets around a number, and a scale, change no value of theirs.
    r"\left(42\right)": "42",
    "2 million": "2000000",
    # As long as the text may be.
    "9" * 200: "9" * 200,
}
# Neither one number nor a number and its unit.
NO_NUMBERS = [
    "1/2.5",
    "12345,678",
    "42 a",
    "42 ab",
    "42 or so",
    "40+2",
    r"6\times 7",
    r"\sqrt{9}",
    r"\frac{1}{0}",
    "84/2",
    "2^3",
    "3!",
    "1/2/3",
    "41 42",
    "41, 42",
    "1,23",
    "1_000",
    "1.2.3",
    "0x2A",
    "x=42",
    "2k",
    "½",
    "٤٢",
    "inf",
    "nan",
    "",
    "-",
    "1e9999",
    "42" + " " * 199,
]


def test_boxed():
    assert {text: boxed(text) for text in BOXES} == BOXES


def test_as_number():
    assert {text: as_number(text) for text in NUMBERS} == {text: Fraction(value) for text, value in NUMBERS.items()}
    assert [text for text in NO_NUMBERS if as_number(text) is not None] == []


PIECES = "\\boxed{|{|}|\\|\\frac|1|2|/|,|.|-|−| |e|%|<b>|$|*|\\text{|~".split("|")


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_neither_raises(text):
    assert all(isinstance(content, str) for content in boxed(text))
    assert isinstance(as_number(text), Fraction | None)


@pytest.mark.parametrize("piece", [*PIECES, "\\boxed{1", "1,", "1 ", "1/", "a"])
def test_long_texts_end(piece):
    # All of it is linear; quadratic time would not come back.
    text = piece * 100_000
    boxed(text)
    boxed(text + "}" * 100_000)
    as_number(text)


@pytest.mark.parametrize("text", ["1" + " " * MAX_LENGTH, "1" + " km" * 100, "<" * (MAX_LENGTH + 1)])
def test_what_is_longer_than_any_number_is_not_read(text, monkeypatch):
    # Reading takes more than linear time.
    monkeypatch.setattr("trl_prorl.tasks.final_answer.TAG", None)
    assert as_number(text) is None
