"""Scores from samples, by hand."""

import math
import warnings

import pandas as pd
import pytest

from trl_prorl.eval.analysis.sampled_scores import by_task_and_level


@pytest.mark.parametrize("tasks", [[None, None], ["sums", "sums"], ["sums", None]])
@pytest.mark.parametrize("levels", [[0, 1], [0.0, math.nan], ["easy", "hard"], [None, [2]]])
def test_each_part_has_its_own_score_whatever_names_it(tasks, levels):
    """Two parts of two prompts with two samples: all correct, and one of four."""
    frame = pd.DataFrame(
        {
            "prompt_id": [place // 2 for place in range(8)],
            "task": [tasks[place // 4] for place in range(8)],
            "level": [levels[place // 4] for place in range(8)],
            "correct": [True] * 5 + [False] * 3,
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy's, of a mean of no prompt
        found = by_task_and_level({"base": frame, "trained": frame}, 2, [1], "own")
    named = [("own" if task is None else task) for task in tasks]
    shown = [level if isinstance(level, str | int) or level == 0.0 else None for level in levels]
    if len(set(zip(tasks, shown, strict=True))) == 1:
        assert found == []
        return
    assert [(part["task"], part["level"]) for part in found] == list(zip(named, shown, strict=True))
    assert [part["trained"]["pass@1"] for part in found] == [1.0, 0.25]
    assert [part["prompts"] for part in found] == [2, 2]
