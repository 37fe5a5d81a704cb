import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_prorl.tasks import get_task


# Rows; how a file is read and split, whatever the task: test_loaded.py


def test_the_answer_of_a_solution(tmp_path, write_jsonl):
    solutions = {f"{n} bags of 1003?": f"{n} * 1003 = <<{n}*1003={n * 1003}>>\n#### {n * 1003:,}" for n in range(40)}
    rows = [{"question": question, "answer": solution} for question, solution in solutions.items()]
    write_jsonl(tmp_path / "train.jsonl", [])
    write_jsonl(tmp_path / "test.jsonl", rows)
    task = get_task("gsm8k", path=str(tmp_path))
    for row in task.rows("test", None):
        question = row["prompt"][0]["content"].split("\n")[0]
        assert row["answer"] == str(1003 * int(question.split()[0]))
        assert task.verify(solutions[question], row) is task.verify(task.gold(row), row) is True


# Verification: completions by the reference

RIGHT = {
    "42": [
        # Marks, and what may stand around them.
        "6 * 7 = 42\n#### 42",
        "####42",
        "#### 42\nThat is all.",
        "#### 42.0",
        "#### 42.",
        "#### +42",
        "#### **42**",
        "#### 42 apples",
        "#### $42$",
        "#### 42 #### 42.00",
        "#### Solution\nSix times seven.\n#### 42",
        r"So it is \boxed{42}.",
        r"\boxed{42\text{ apples}}",
        "\\boxed{42}\n#### 42",
        r"#### \boxed{42}",
        r"\boxed{\text{42}}",
        # A sentence around a box.
        r"#### The profit is \(\boxed{42}\) dollars.",
        r"#### **In the end he makes $\boxed{42.00}$.**",
        "#### It is \\boxed{\n42\n}.\n#### 42",
        "#### <answer>42</answer>",
        "#### Step 1\n#### 42",
        "#### **Step 1:** 6 bags\n#### Part 2 - 7 apples\n#### 42",
        "#### 1. Eggs\n#### **2) The price**\n#### 42",
        "#### 42. That is all",
        # Variables, brackets, currencies, units.
        r"\boxed{x=42}",
        r"#### $x = \$42$",
        r"#### \(x = 42\)",
        "#### (42)",
        "#### [42]",
        "#### €42",
        "#### 42 m²",
        "#### 42 m^2",
        r"\boxed{42\text{ cm}^{3}}",
        r"\boxed{42^\circ}",
        "#### 42m",
        "#### 42 T-shirts",
        "#### 42 M&Ms",
        "#### 42 of Ann's eggs!",
        "#### $42/hour",
        "#### 42 dollars a day",
        "#### 42</s>",
        "#### 42 quarters",
        r"\boxed{{42}}",
    ],
    # Braces that only group, in any depth.
    "18": [
        r"\boxed{\$18}",
        "#### $18.00 per hour",
        r"\boxed{\text{\$18}}",
        r"\boxed{\text{18\text{ dollars}}}",
        "#### 18.000",
        "#### 0018",
        "#### 1.8e1",
        "#### 18 cents",
    ],
    "9500": [r"\boxed{\text{9{,}500}}", r"\boxed{\textbf{\text{\$9{,}500.00}}}", r"#### {9{,}500}"],
    # Separators, signs, decimals, fractions, powers of ten.
    "1234": ["#### 1,234", r"\boxed{1{,}234}", r"#### 1\,234"],
    "1234567": ["#### $1,234,567.00"],
    "25": ["#### 25%", r"\boxed{25\%}"],
    "-5": ["#### -5", "#### -$5", "#### −5"],
    "-42": ["#### -€42"],
    "0.5": [
        "#### .5",
        "#### 0.50",
        "#### 1/2",
        r"\boxed{\frac{1}{2}}",
        r"\boxed{\dfrac12\text{ hours}}",
        r"\boxed{{\frac{1}{2}}\text{ hours}}",
        "#### 1/2\n\\boxed{0.5}",
    ],
    "0.1": ["#### 0.10"],
    "1.8": ["#### 1.8."],
    "-18": ["#### -$18.00"],
    "3.5": ["#### 3 1/2", r"\boxed{3\frac{1}{2}}"],
    "1000": ["#### 10^3"],
    "4000": [r"\boxed{4 \times 10^{3}}", "#### 4e3"],
    "5": ["#### 5 km/h"],
    "6": ["#### 6 p.m."],
}
# What makes another number of the one before it.
TAILS = [
    "M",
    " M",
    "k",
    " bn",
    " mil",
    " million",
    " dozen",
    " lakh",
    " hundredths",
    " tenths",
    " thousand dollars",
    " minus five",
    " or nineteen",
    " to twenty",
    " * twenty",
    ",five",
    ". Therefore five",
    " negative",
    " squared",
    "!",
    "**!",
    "\\pi",
    "\\sqrt{a}",
    "/x",
    "+y",
    "*n",
    "x",
    " x",
    "-x",
    "_x",
    "^n",
    "+",
    " < 19",
    "\\cdot x",
    "²",
    ",000",
    " 1/2",
    "/1",
    ":30",
    " below zero",
    " is not the answer",
    " fourths",
    " twelfths",
    " millionths",
    " quadrillion",
    " mln",
    " gross",
    " at most",
    " and a quarter",
    " doubled",
]
WRONG = {
    "42": [
        # No mark, or no number behind it.
        "",
        "42",
        "The answer is 42.",
        "<answer>42</answer>",
        "### 42",
        "####",
        "####\n42",
        r"\boxed{42",
        # Another number, several, or a calculation.
        "#### 43",
        "#### -42",
        "#### 42.01",
        "#### 40+2",
        "#### 40 + 2 = 42",
        "#### 41 42",
        "#### 42 or 43",
        "#### 42 #43",
        "#### 41\n#### 42",
        "#### 42\n#### 41",
        "#### 42 #### 41",
        "#### 40+2\n#### 42",
        "#### 42\n\\boxed{41}",
        "#### 42\n\\boxed{\\text{41}}",
        "#### <b>41</b> <b>42</b>",
        # Words, and digits that are not ASCII.
        "#### about 42",
        "#### forty-two",
        "#### ٤٢",
        "#### 42½",
        # A calculation, or several numbers, in a box.
        r"\boxed{40+2}",
        r"\boxed{6\cdot 7}",
        r"\boxed{\frac{84}{2}}",
        r"\boxed{41}\boxed{42}",
        r"#### The profit is \boxed{41}.",
        "#### The profit is \\boxed{42}.\n#### 41",
        r"#### 41 \boxed{42}",
        r"#### -\boxed{42}",
        r"#### − \boxed{42}",
        r"#### \boxed{42} million",
        # A sentence that changes the number in its box.
        r"#### The change is -\boxed{42}.",
        r"#### The change is $−\boxed{42}$.",
        r"#### It is not \boxed{42}.",
        r"#### It isn't \boxed{42}.",
        r"#### It is 41 or \boxed{42}.",
        r"#### The cost of 2 is \boxed{42}.",
        r"#### The cost is \boxed{42} million.",
        r"#### The cost is half of \boxed{42}.",
        r"#### The cost is \boxed{42}/x.",
        r"#### The cost is $\sqrt{\boxed{42}}$.",
        r"#### = 41 \boxed{42}",
        r"\boxed{{41}{42}}",
        # Too many marks.
        "#### 42\n" + "".join(f"#### {i}\n" for i in range(100)),
        "#### 42\n" * 1000,
    ],
    # The right number is only a part.
    "1": ["#### 1/2", "#### 1,23", "#### Step 1"],
    "4": ["#### 4e1"],
    "41": ["#### 41 42"],
    "43": [r"\boxed{41 42 43}", r"\boxed{41, 42, 43}"],
    "123": ["#### 1,23"],
    "1234": ["#### 1 234"],
    "3": [r"\boxed{\sqrt{9}}"],
    "6": [r"\boxed{3!}"],
    "8": [r"\boxed{2^3}"],
    "12": [r"\boxed{\frac{1}{2}}"],
    "0.18": ["#### 18 cents"],
    "0.333333": ["#### 1/3"],
    "0.5": ["#### 1/2\n#### 1/3"],
    "18000": ["#### 18.000"],
    "5": [r"\boxed{9^{9^{9^{9}}}}"],
    "10000000000000000000000000000000": ["#### 10000000000000000000000000000001"],
    "18": [
        *(f"#### 18{tail}" for tail in TAILS),
        *(f"\\boxed{{18{tail}}}" for tail in TAILS),
        r"\boxed{{18}^{2}}",
        r"\boxed{\text{18{!}}}",
        r"\boxed{\sqrt{18}}",
        r"\boxed{{18}{x}}",
        # Several sides of an equation, and headings.
        "#### x = y = 18",
        "#### x = 17 = 18",
        "#### (17)(18)",
        "#### 3*6 = 18",
        "#### Step 18",
        "#### Step 1: 17\n#### 17",
        "#### Step 1: \\boxed{17}\n#### 18",
        "#### Answer 1: 17\n#### 18",
    ],
}


@pytest.mark.parametrize("answer", RIGHT)
def test_right_answers(answer):
    assert [text for text in RIGHT[answer] if not get_task("gsm8k").verify(text, {"answer": answer})] == []


@pytest.mark.parametrize("answer", WRONG)
def test_wrong_answers(answer):
    assert [text for text in WRONG[answer] if get_task("gsm8k").verify(text, {"answer": answer})] == []


@pytest.mark.parametrize("piece", ["$", "\\", "*", " ", "1", "1,111", "<", "\\text{", "dozen ", "{", "\\boxed{", "1/"])
def test_long_texts_end(piece):
    # No expression, however it backtracks, may hold up the training process.
    for completion in (f"#### {piece * 10**5}x1", f"\\boxed{{{piece * 10**5}1}}"):
        assert get_task("gsm8k").verify(completion, {"answer": "42"}) is False


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12))
def test_every_way_to_write_a_number(value):
    task = get_task("gsm8k")
    row = {"answer": str(value)}
    for text in (f"{value}", f"{value:,}", f"{value}.00", f"{value} apples", f"{value:,}%"):
        assert task.verify(f"#### {text}", row)
        assert task.verify(f"\\boxed{{{text}}}", row)
        assert not task.verify(f"#### {text}", {"answer": str(value + 1)})
