from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import pairs

from tasks.final_answer import MAX_LENGTH, as_number, boxed, number_value


@pytest.mark.parametrize(
    "text, contents",
    [
        ("", []),
        ("\\boxed{42}", ["42"]),
        ("\\boxed {42} and \\fbox{43}", ["42", "43"]),
        ("\\boxed{\\frac{\\sqrt{3}}{2}}", ["\\frac{\\sqrt{3}}{2}"]),
        ("\\boxed{\\{1, 2\\}}", ["\\{1, 2\\}"]),
        ("\\boxed{\\text{a } b}", ["\\text{a } b"]),
        ("{\\boxed{1}}}", ["1"]),
        ("\\boxed{\\boxed{1}}", ["1"]),
        ("\\boxed{1 \\boxed{2} 3}", ["2"]),
        ("\\boxed{1} \\boxed{2", ["1"]),
        ("\\boxed{", []),
        ("\\boxed 42", []),
        ("\\boxed{}", [""]),
        ("\\\\boxed{1}", []),
    ],
)
def test_boxed(text, contents):
    assert boxed(text) == contents


@pytest.mark.parametrize(
    "number, text",
    pairs(
        r"""
        42 ≟ 42 ¦ $42$ ¦ €42 ¦ 42\% ¦ 42 km/h ¦ 42 dollars per hour. ¦ ¥42 ¦ 42\text{ m}^{2} ¦ 42\text{ m²}
        42 square feet ¦ \text{42} ¦ **42** ¦ `42` ¦ <answer>42</answer> ¦ -42 ≟ ␣-42.␣ ¦ +.5 ≟ +.5
        1234567.50 ≟ 1,234,567.50 ¦ 1234 ≟ 1{,}234 ¦ 1\,234 ¦ \frac{1}{2} ≟ \frac{1}{2} ¦ 1/2 ¦ 1/2.
        \frac12 ≟ \dfrac12 ¦ -\frac{3}{4} ≟ -\tfrac{3}{4} ¦ ∅ ≟ 1/2.5 ¦ 12345,678 ¦ 42 a ¦ 42 ab ¦ 42 dozen eggs
        42 or so ¦ \left(42\right) ¦ 40+2 ¦ 6*7 ¦ 6\cdot 7 ¦ 6\times 7 ¦ \sqrt{9} ¦ 2^3 ¦ 3! ¦ 1/2/3 ¦ 41 42 ¦ 41, 42
        1,23 ¦ 1_000 ¦ 1.2.3 ¦ 0x2A ¦ x=42 ¦ 2 million ¦ 2k ¦ ½ ¦ ٤٢ ¦ inf ¦ nan ¦ ∅ ¦ - ¦ 1e9999 ¦ -5 ≟ −5
        1\frac{1}{2} ≟ 1 1/2 ¦ 4\times10^{3} ≟ 4 \times 10^{3} ¦ 4\times10^{-3} ≟ 4e-3 ¦ 42.50 ≟ \$42.50
        90 ≟ 90^\circ ¦ 5 ≟ 5\text{ m}^2
        """
    )
    + [(None, "42" + " " * 199), (None, "9" * 41)],
)
def test_as_number(number, text):
    assert as_number(text) == number


VALUES = r"""
    -42 ≟ -42 ¦ 1/2 ≟ +.5 ¦ \frac12 ¦ -7/2 ≟ -3\frac{1}{2} ¦ -1/2 ≟ \frac{-1}{2} ¦ \frac{1}{-2}
    1/250 ≟ 4\times10^{-3} ¦ 4000 ≟ 4\cdot10^3 ¦ 150 ≟ 1.5*10^2
"""


@pytest.mark.parametrize("value, number", [*pairs(VALUES, key=Fraction), (None, "\\frac{1}{0}")])
def test_number_value(number, value):
    assert number_value(number) == value
    assert as_number(number) == number


PIECES = "\\boxed{|{|}|\\|\\frac|1|2|/|,|.|-|−| |e|%|<b>|$|*|\\text{|~".split("|")


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_neither_raises_and_a_number_stays_what_it_is(text):
    assert all(isinstance(content, str) for content in boxed(text))
    number = as_number(text)
    if number is not None:
        assert as_number(number) == number
        assert isinstance(number_value(number), Fraction | None)


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
    monkeypatch.setattr("tasks.final_answer.TAG", None)
    assert as_number(text) is None
