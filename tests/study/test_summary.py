"""study/summary.py against the study's front page and against tables made by hand."""

import importlib.util
from pathlib import Path

import pandas as pd
import pytest


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def summary():
    spec = importlib.util.spec_from_file_location("summary", ROOT / "study" / "summary.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def front_table() -> list[list[str]]:
    """Return the cells of the study's table of accuracies, without its head."""
    lines = (ROOT / "study" / "README.md").read_text().splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("| | sorting: sampled"))
    rows = []
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip(" *") for cell in line.strip("|").split("|")])
    return rows


def test_the_front_page_shows_the_tables_numbers(summary):
    runs = pd.read_csv(summary.TABLES / "runs.csv")
    stops = pd.read_csv(summary.TABLES / "stops.csv")
    computed = pd.concat([summary.accuracies(runs, stops, family) for family in summary.TARGETS], axis=1)
    shown = front_table()
    assert len(shown) == len(computed) > 5
    for (name, *cells), values in zip(shown, computed.to_numpy(), strict=True):
        rounded = ["–" if pd.isna(value) else f"{value:.0f}" for value in values]
        assert cells == rounded, name


def test_of_checkpoints_with_equal_validation_accuracy_the_first_counts(summary):
    stops = pd.DataFrame(
        {"base_seed": [1, 1, 1, 2], "step": [10, 20, 30, 10], "validation_gold": [0.4, 0.6, 0.6, 0.1], "gold": 0.5}
    )
    assert summary.best_of_checkpoints(stops)["step"].to_list() == [20, 10]


def test_a_text_of_words_of_its_prompt_alone_is_not_counted(summary):
    asked = "Write a sentence about the old harbour with the word lamp"
    assert not summary.is_stricter(asked, "Write a sentence about the lamp")
    assert not summary.is_stricter(asked, "A ship waits")
    assert summary.is_stricter(asked, "The lamp of the old harbour glows")
