from fractions import Fraction

from trl_prorl.tasks.final_answer import as_number, boxed


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
    r"-\frac{-1}{2}": "1/2",
    r"10^{3}": "1000",
    r"10^{-2}": "1/100",
    r"0.\overline{3}": "1/3",
    r"1\,000\,000": "1000000",
    r"5\text{ each}": "5",
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
    "1.000,5",
    "--5",
    r"5^{\circ}30'",
    r"5\text{ ft }3\text{ in}",
    r"5\text{ modulo }n",
    r"5\text{ modulo n}",
    r"5\text{ quadrillion}",
    r"5\text{ millionths}",
    r"5\text{ at most}",
    r"5\text{ doubled}",
    "6 fifths",
    r"3\frac{-1}{2}",
    "42" + " " * 199,
]


def test_boxed():
    assert {text: boxed(text) for text in BOXES} == BOXES


def test_as_number():
    assert {text: as_number(text) for text in NUMBERS} == {text: Fraction(value) for text, value in NUMBERS.items()}
    assert [text for text in NO_NUMBERS if as_number(text) is not None] == []
