"""The rows of a checkpoint and of the base, from samples that are made by hand."""

from types import SimpleNamespace

import pandas as pd
import pytest

from study.stops import base_row, checkpoint_row
from trl_prorl.tasks.registry import get_task


BASE = SimpleNamespace(step=0)
HALF = SimpleNamespace(step=50)


def held_out(texts, greedy):
    """Two questions of reversing, whose reward pays right ends: texts by the model's step, question by question."""
    task = get_task("reverse_digits", reward="ends")
    rows = [{"answer": "321"}, {"answer": "987"}]

    def samples(point, n, temperature=1.0):
        drawn = greedy[point.step] if temperature == 0 else texts[point.step]
        of_questions = [(text, row) for row, written in zip(rows, drawn, strict=True) for text in written[:n]]
        verdicts = [task.verify(text, row) for text, row in of_questions]
        return pd.DataFrame({"completion": [text for text, _ in of_questions], "correct": verdicts})

    return SimpleNamespace(task=task, rows=rows, base=BASE, samples=samples)


def test_the_base():
    # The first question: four right of nine, four paid and wrong, one unpaid. The second: nothing is paid.
    first = ["321"] * 4 + ["301"] * 4 + ["1"]
    test = held_out({0: [first, ["1"] * 9]}, {0: [["321"], ["1"]]})
    row = base_row(test, 9)
    assert (row["step"], row["greedy"], row["kl_to_base"]) == (0, 0.5, 0.0)
    assert row["gold"] == pytest.approx(4 / 18)
    assert row["reward"] == pytest.approx(8 / 18)
    # Any 8 of the first nine have a paid text, right half of the time; of the second, none is right.
    assert row["best_of_8"] == pytest.approx(0.25)
    assert "validation_gold" not in row


def test_a_checkpoint():
    test = held_out({}, {50: [["321"], ["987"]]})
    validation = held_out({50: [["321", "0", "321"], ["987", "0", "0"]]}, {})
    measured = {"step": 50, "gold": 0.3, "reward": 0.6, "kl_to_base": 0.12, "entropy": 0.5}
    assert checkpoint_row(HALF, measured, test, validation, 2) == {
        **{"step": 50, "gold": 0.3, "reward": 0.6, "kl_to_base": 0.12},
        **{"greedy": 1.0, "validation_gold": 0.5},
    }
