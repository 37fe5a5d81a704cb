import json

import pytest

from tasks import get_task
from tasks.constraints import CONSTRAINTS, fulfils


@pytest.mark.parametrize("level", range(1, 9))
def test_the_constraints_can_be_met_together(level):
    task, kinds = get_task("instructions", level=level), set()
    for row in task.rows("train", 300):
        constraints = json.loads(row["constraints"])
        kinds |= {constraint["kind"] for constraint in constraints}
        assert len(constraints) == 1 + level // 2
        assert len({CONSTRAINTS[constraint["kind"]].slot for constraint in constraints}) == len(constraints)
        assert task.verify(task.gold(row), row), row
        prompt = row["prompt"][0]["content"]
        assert prompt.startswith("Write a short text about ") and prompt.count("\n- ") == len(constraints)
    assert level < 8 or kinds == set(CONSTRAINTS)


def test_a_text_for_one_row_seldom_does_for_another():
    task = get_task("instructions", level=6)
    rows = list(task.rows("train", 60))
    passed = sum(task.verify(task.gold(other), row) for row, other in zip(rows, rows[1:] + rows[:1], strict=True))
    assert passed <= 3


ROW = {
    "constraints": json.dumps(
        [{"kind": "word_count", "n": 3}, {"kind": "no_commas"}, {"kind": "start", "word": "sea"}, {"kind": "lower"}]
    )
}


@pytest.mark.parametrize(
    "completion, share",
    [("sea and land", 1.0), ("sea, and land", 0.75), ("Land and sea", 0.5), ("A, b", 0.0), ("", 0.0)],
)
def test_rewards(completion, share):
    assert get_task("instructions", reward="share").reward(completion, ROW) == share
    assert get_task("instructions").reward(completion, ROW) == float(share == 1.0)
    assert get_task("instructions").verify(completion, ROW) is (share == 1.0)
    with pytest.raises(ValueError, match="reward='half' must be one of exact, share"):
        get_task("instructions", reward="half")


def test_the_prompt_and_the_check_agree():
    # Read back from the prompt alone, for the kinds whose text holds one number.
    for row in get_task("instructions", level=4).rows("train", 200):
        lines = row["prompt"][0]["content"].split("\n")[1:]
        for line, constraint in zip(lines, json.loads(row["constraints"]), strict=True):
            kind = constraint.pop("kind")
            if kind == "word_count":
                n = int(line.split("exactly ")[1].split(" ")[0])
                assert fulfils("word " * n, kind, constraint) and not fulfils("word " * (n + 1), kind, constraint)
            elif kind == "bullets":
                n = int(line.split("exactly ")[1].split(" ")[0])
                assert fulfils("- a\n" * n, kind, constraint) and not fulfils("- a\n" * (n - 1), kind, constraint)
