from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_prorl.tasks.final_answer import MAX_LENGTH, as_number, boxed, number_value


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
    "text, number",
    [
        ("42", "42"),
        ("$42$", "42"),
        ("€42", "42"),
        (r"42\%", "42"),
        ("42 km/h", "42"),
        ("42 dollars per hour.", "42"),
        ("¥42", "42"),
        (r"42\text{ m}^{2}", "42"),
        (r"42\text{ m²}", "42"),
        ("42 square feet", "42"),
        (r"\text{42}", "42"),
        ("**42**", "42"),
        ("`42`", "42"),
        ("<answer>42</answer>", "42"),
        (r"\$42.50", "42.50"),
        (r"90^\circ", "90"),
        (r"5\text{ m}^2", "5"),
        # Signs, separators, fractions, powers of ten.
        (" -42. ", "-42"),
        ("−5", "-5"),
        ("+.5", "+.5"),
        ("1,234,567.50", "1234567.50"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        ("1/2", r"\frac{1}{2}"),
        ("1/2.", r"\frac{1}{2}"),
        (r"\dfrac12", r"\frac12"),
        (r"-\tfrac{3}{4}", r"-\frac{3}{4}"),
        ("1 1/2", r"1\frac{1}{2}"),
        (r"4 \times 10^{3}", r"4\times10^{3}"),
        ("4e-3", r"4\times10^{-3}"),
        # Neither one number nor a number and its unit.
        ("1/2.5", None),
        ("12345,678", None),
        ("42 a", None),
        ("42 ab", None),
        ("42 or so", None),
        (r"\left(42\right)", None),
        ("40+2", None),
        ("6*7", None),
        (r"6\times 7", None),
        (r"\sqrt{9}", None),
        ("2^3", None),
        ("3!", None),
        ("1/2/3", None),
        ("41 42", None),
        ("41, 42", None),
        ("1,23", None),
        ("1_000", None),
        ("1.2.3", None),
        ("0x2A", None),
        ("x=42", None),
        ("2 million", None),
        ("2k", None),
        ("½", None),
        ("٤٢", None),
        ("inf", None),
        ("nan", None),
        ("", None),
        ("-", None),
        ("1e9999", None),
        pytest.param("42" + " " * 199, None, id="42 and 199 spaces"),
        pytest.param("9" * 41, None, id="41 digits"),
    ],
)
def test_as_number(text, number):
    assert as_number(text) == number


@pytest.mark.parametrize(
    "number, value",
    [
        ("-42", Fraction(-42)),
        ("+.5", Fraction(1, 2)),
        (r"\frac12", Fraction(1, 2)),
        (r"-3\frac{1}{2}", Fraction(-7, 2)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"\frac{1}{-2}", Fraction(-1, 2)),
        (r"4\times10^{-3}", Fraction(1, 250)),
        (r"4\cdot10^3", Fraction(4000)),
        ("1.5*10^2", Fraction(150)),
        (r"\frac{1}{0}", None),
    ],
)
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
    monkeypatch.setattr("trl_prorl.tasks.final_answer.TAG", None)
    assert as_number(text) is None
