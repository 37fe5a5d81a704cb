"""What is kept of the Qwen's runs, from folders made by hand; and its page's numbers."""

import json

import pandas as pd
import pytest

from study import qwen
from trl_prorl.errors import InputError


STEPS = [
    {"step": 1, "reward": 0.25, "time_rollout": 9.0, "kl_old": 0.0},
    {"step": 2, "reward": 0.25, "time_rollout": 0.0, "kl_old": 0.1},
]


def write_samples(run, side, temperature, verdicts):
    """One completion of `verdicts` a row: question, sample, right, cut; with two tokens, or three if it was cut."""
    folder = run / "samples" / f"{side}-0123456789ab"[: len(side) + 9 + (temperature > 0)]
    folder.mkdir(parents=True)
    (folder / "_settings.json").write_text(json.dumps({"temperature": temperature}))
    rows = [
        {"prompt_id": prompt, "sample": sample, "correct": right, "truncated": cut, "ids": [7] * (3 if cut else 2)}
        for prompt, sample, right, cut in verdicts
    ]
    pd.DataFrame(rows).to_parquet(folder / "samples.parquet")


@pytest.fixture
def run(tmp_path):
    """Two questions with two samples each, of which the base has 1 of 4 right and the run 3 of 4."""
    run = tmp_path / "plain"
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in STEPS))
    write_samples(
        run, "base", 1.0, [("a", 0, True, False), ("a", 1, False, True), ("b", 0, False, True), ("b", 1, False, False)]
    )
    write_samples(
        run,
        "trained",
        1.0,
        [("a", 0, True, False), ("a", 1, True, False), ("b", 0, False, True), ("b", 1, True, False)],
    )
    write_samples(run, "base", 0.0, [("a", 0, True, False), ("b", 0, False, False)])
    write_samples(run, "trained", 0.0, [("a", 0, True, False), ("b", 0, True, False)])
    return run


def test_scores_by_hand(run):
    verdicts = qwen.read_verdicts(run)
    found = qwen.scores(verdicts).set_index(["model", "decoding"])
    base = found.loc["base", "sampled"]
    assert (base["questions"], base["n"]) == (2, 2)
    assert base["pass@1"] == 0.25
    assert base["pass@n"] == 0.5
    assert base["right of whole"] == 0.5
    assert base["truncated"] == 0.5
    assert base["tokens"] == 2.5
    trained = found.loc["plain", "sampled"]
    assert (trained["pass@1"], trained["pass@n"], trained["truncated"]) == (0.75, 1.0, 0.25)
    assert found.loc["base", "greedy"]["pass@1"] == 0.5
    assert qwen.gain(verdicts, "plain", "sampled").value == 0.5
    assert qwen.gain(verdicts, "plain", "greedy").value == 0.5


def test_a_run_is_kept_once_beside_the_others(run, tmp_path):
    root = tmp_path / "root"
    (root / qwen.FOLDER).mkdir(parents=True)
    qwen.keep_run(root, run)
    other = run.rename(run.with_name("control"))
    qwen.keep_run(root, other)
    qwen.keep_run(root, other)
    steps = pd.read_csv(root / qwen.STEPS)
    assert steps[["arm", "step"]].values.tolist() == [["plain", 1], ["plain", 2], ["control", 1], ["control", 2]]
    verdicts = pd.read_csv(root / qwen.VERDICTS)
    assert verdicts.groupby("model").size().to_dict() == {"base": 6, "plain": 6, "control": 6}


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no metrics.jsonl"):
        qwen.read_steps(tmp_path)
    with pytest.raises(InputError, match="was not evaluated"):
        qwen.read_verdicts(tmp_path)
