import pytest

from trl_prorl.tasks import get_task
from trl_prorl.tasks.stem import extract_letter
from trl_prorl.tasks.stem_templates import TEMPLATES, written


CHOICES = ["12 m/s", "3 m/s", "1/3 m/s", "Both A and B"]


# Completions by the letter that they give.
LETTERS = {
    "B": [
        "12 / 4 = 3, so\nAnswer: B.",
        "**Answer:** B",
        "**Answer: B**",
        "answer : (B)",
        "Answer: B) 3 m/s",
        r"Answer: $\boxed{B}$",
        r"\boxed{\text{B}}",
        "So \\boxed{B}.\nAnswer: B",
        r"Answer: The right choice is \(\boxed{\text{B}}\).",
        "B",
        "(B)",
        "B) 3 m/s",
        "__Answer__ : B",
        "Answer:\nB",
        "**Answer:**\n**B**",
        "Answer: B (3 m/s)",
        "Answer: B, 3 m/s",
        "Answer: B: 3 m/s.",
        "answer: (b) 3 m/s",
        "Answer: B,\nA",
        "Answer:\n\nB",
        'Answer: "B"',
        "Answer: B - 3 m/s",
        r"Answer: \(B\)",
        r"Answer: \textbf{B}",
        r"\boxed{\text{(B)}}",
        r"\boxed{B) \, 3 \, \text{m/s}}",
        # What names no choice is no answer.
        "The speed is \\boxed{3 \\text{ m/s}}.\nAnswer: B",
        "To compute the answer: 12 / 4 = 3.\nAnswer: B",
        'I should end with "Answer: " and the letter.\nAnswer: B',
    ],
    "D": ["Answer: D) Both A and B"],
    None: [
        # The text of another choice, or two letters.
        "Answer: B (12 m/s)",
        "Answer: B, 12 m/s",
        "Answer: B) 12 m/s",
        "Answer: A or B",
        "Answer: A, B",
        "Answer: AB",
        "Answer: A\nAnswer: B",
        r"Answer: A \boxed{B}",
        r"Answer: A or \boxed{B}",
        r"Answer: Either A or \boxed{B}",
        r"Answer: It is not \boxed{B}.",
        "Answer: It is \\boxed{B}.\nAnswer: A",
        "Answer:\nB or A",
        "The answer: A or C?\nAnswer: B",
        # No letter that stands alone, or no choice.
        "Answer: be",
        "Answer: a bit",
        "",
        "Answer:",
        "Answer: E",
        "Answer: 3 m/s",
        "The answer is B",
        "A B C D",
        "Because",
    ],
}


@pytest.mark.parametrize("letter", LETTERS)
def test_extract_letter(letter):
    found = {completion: extract_letter(completion, CHOICES) for completion in LETTERS[letter]}
    assert found == dict.fromkeys(LETTERS[letter], letter)


# Worked out by hand, for each kind of question: quantities -> the right value, as it is shown.
BY_HAND = [
    ("covers", {"s": 60, "t": 8}, "7.5 m/s"),
    ("net force", {"f": 30, "m": 4}, "7.5 m/s²"),
    ("resistor of", {"r": 20, "u": 9}, "0.45 A"),
    ("density", {"m": 30, "v": 8}, "3.75 g/cm³"),
    ("kelvin", {"c": 27}, "300.1 K"),
    ("wavelength", {"f": 40, "w": 3}, "120 m/s"),
    ("kinetic", {"m": 3, "v": 4}, "24 J"),
    ("falls from rest", {"t": 3}, "45 m"),
    ("parallel", {"a": 6, "b": 3}, "2 ohm"),
    ("half-life", {"m": 80, "h": 7, "n": 3}, "10 g"),
    ("Heating", {"m": 2, "d": 10}, "84 kJ"),
    ("diluted", {"n": 50, "v": 20, "k": 5}, "0.5 mol/l"),
    ("gas fills", {"v": 6, "p": 100, "q": 150}, "4 l"),
    ("lens", {"f": 10, "k": 3}, "15 cm"),
    ("heterozygous", {"n": 2, "m": 160}, "10 plants"),
    ("lifted", {"m": 4, "h": 3, "t": 8}, "15 W"),
    ("methane", {"m": 32}, "72 g"),
    ("straight up", {"v": 30, "t": 2}, "40 m"),
]


@pytest.mark.parametrize("text, values, answer", BY_HAND)
def test_formulas(text, values, answer):
    formula = next(formula for question, formula in TEMPLATES.items() if text in question)
    assert written(formula.answer(**values), formula.unit) == answer


def test_every_formula_is_here():
    found = {question for text, _, _ in BY_HAND for question in TEMPLATES if text in question}
    assert len(BY_HAND) == len(TEMPLATES) == len(found)


def test_generated_rows():
    task = get_task("stem", level=8)
    rows = list(task.rows("train", 400))
    for row in rows:
        prompt = row["prompt"][0]["content"]
        question, *lines, instruction = prompt.split("\n")
        assert task.content(prompt) == question  # so that other choices do not make it another question
        assert lines == [f"{letter}) {choice}" for letter, choice in zip("ABCD", row["choices"], strict=True)]
        assert len(set(row["choices"])) == 4
    # Four standard deviations of a quarter of 400 draws are 0.087.
    assert all(abs(sum(row["answer"] == letter for row in rows) / 400 - 0.25) < 0.09 for letter in "ABCD")


def test_a_file(tmp_path, write_jsonl):
    rows = [
        {"question": f"Which is {i}?", "choices": [str(i + 1), str(i), "none"], "answer": "B" if i % 2 else 1}
        for i in range(40)
    ]
    # The same choices in another order are the same question; other ones are not.
    rows.append({"question": "Which is 4?", "choices": ["4", "none", "5"], "answer": 0})
    rows.append({"question": "Which is 3?", "choices": ["three", "four"], "answer": 0})
    task = get_task("stem", path=write_jsonl(tmp_path / "questions.jsonl", rows))
    found = [row for split in ("train", "validation", "test") for row in task.rows(split, None)]
    assert len(found) == 41
    assert task.level == 1
    for row in found:
        assert (row["task"], row["level"]) == ("stem", 1)
        assert task.verify(task.gold(row), row) is True
        assert not task.verify("Answer: C", row)
