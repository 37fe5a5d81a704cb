"""From a run's folder to rows: what counts as a collapse, where a reset stands, what a run without a policy scores."""

import json
import math

import pandas as pd
import pytest

from study.evaluate import curve_rows, is_collapsed, rows_of
from study.matrix import RunKey
from study.tables import CURVES, make_frame
from trl_prorl.errors import RunError
from trl_prorl.eval.run_folder.reading import load_run


KEY = RunKey("sums", "A", 1, 2, 40)
PLAN = {"key": list(KEY), "recipe_hash": "hash", "block": "core", "began": 0.0, "split": "test", "prompts": 2}
PLAN |= {"samples": 8, "others": []}
RISING = [step / 40 for step in range(1, 41)]


@pytest.fixture
def folder(tmp_path):
    """A function that writes a run's folder: rewards by step, events, and an evaluation of two prompts."""

    def write(rewards=RISING, events=(), evaluated=True):
        (tmp_path / "config.yaml").write_text("model_name_or_path: embedded:sums:1\ntask: sums\n")
        env = {"variant": "A", "git_commit": "c", "seed": 2, "base_model": {"name": "embedded:sums:1", "sha256": "ab"}}
        (tmp_path / "env.json").write_text(json.dumps(env))
        steps = pd.DataFrame({"step": range(1, len(rewards) + 1), "reward": rewards, "kl_ref": 0.1 / 3})
        steps = steps.assign(ref_forward_calls=(steps["step"] + 1) % 2, tokens_generated=5)
        steps.to_json(tmp_path / "metrics.jsonl", orient="records", lines=True, double_precision=15)
        (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        if evaluated:
            intervals = {"interval@1": [None, None], "pass@8": 1.0, "interval@8": [None, None]}
            greedy = {"accuracy": 0.5, "interval": [None, None], "correct": [0, 1]}
            passk = {"split": "test", "prompts": 2, "n": 8, "k": [1, 8], "temperature": 1.0, "seed": 0, "task": "sums"}
            passk |= {"greedy": {"base": greedy, "trained": greedy}, "prompt_ids": ["id0", "id1"]}
            for side, counts in (("base", [1, 1]), ("trained", [2, 4])):
                passk[side] = {**intervals, "pass@1": sum(counts) / 16, "correct": counts}
            (tmp_path / "passk.json").write_text(json.dumps(passk))
            points = [{"step": step, "kl_to_base": kl, "mean_tokens": 6.5} for step, kl in ((0, 0.0), (40, 0.3))]
            for point in points:
                other = {"gold": 0.5 - point["kl_to_base"], "kl_to_base": 0.1, "mean_tokens": 9.0}
                point |= {"gold": 0.25, "text_perplexity": 7.5, "others": {"parity@2": other}}
            (tmp_path / "drift.json").write_text(json.dumps({"points": points, "task": "sums"}))
        return tmp_path

    return write


RESET = {"event": "reset", "step_requested": 20, "step_applied": 20, "reason": "periodic", "optimizer_reset": "keep"}
NAN = {"event": "nonfinite", "step_requested": 12, "step_applied": 12, "action": "stop", "tensor": "loss"}


def test_a_run_s_rows(folder, monkeypatch):
    monkeypatch.setattr("study.evaluate.time.time", lambda: 61.4)
    rows = rows_of(folder(events=[RESET]), PLAN, proxy=0.875)
    expected = {"pass@1": 0.375, "pass@8": 1.0, "greedy": 0.5, "drift": 0.3, "drift_tokens": 6.5, "block": "core"}
    expected |= {"gold": 0.375, "proxy": 0.875, "collapsed": 0, "steps_done": 40, "resets": 1, "ref_forward_calls": 20}
    expected |= {"tokens_generated": 200, "seconds": 61, "recipe": "hash", "commit": "c", "variant": "A"}
    assert expected.items() <= rows["run"].items()
    assert [row["correct"] for row in rows["prompts"]] == [2, 4]
    assert [row["correct"] for row in rows["base_prompts"]] == [1, 1]
    assert rows["base"]["base_pass@1"] == 0.125
    curve = make_frame(rows["curve"], CURVES, KEY).set_index("step")
    assert curve.loc[7, "reward"] == 0.175
    assert curve.loc[7, "kl_ref"] == pytest.approx(0.1 / 3)
    assert curve["kl_base"].isna().all()
    assert curve.loc[40, "drift"] == 0.3
    # The policy of step 20 becomes the reference: step 21 is the first that it acts on.
    assert curve["event"][curve["event"] != ""].to_dict() == {21: "periodic"}
    assert rows["points"] == []


def test_other_tasks_along_the_way(folder):
    rows = rows_of(folder(), {**PLAN, "others": ["parity@2"]})["points"]
    assert [(row["step"], row["task"], row["gold"]) for row in rows] == [
        *((0, "sums", 0.25), (0, "parity@2", 0.5), (40, "sums", 0.25), (40, "parity@2", 0.2))
    ]
    assert rows[0]["text_perplexity"] == 7.5
    assert "text_perplexity" not in rows[1]


def test_events_that_are_no_resets_are_left_out(folder):
    events = [
        {"event": "resume", "step_applied": 7},
        {"event": "elastic_reset", "step_applied": 9, "reason": "periodic"},
        {"event": "reset", "step_applied": 20, "reason": "kl_spike"},
        {"event": "reset", "step_applied": 20, "reason": "stall"},
        {"event": "reset", "step_applied": 30},
    ]
    curve = curve_rows(load_run(folder(events=events)))
    found = {row["step"]: row["event"] for row in curve if row["event"]}
    assert found == {10: "elastic_reset", 21: "kl_spike stall", 31: "reset"}


@pytest.mark.parametrize(
    "rewards, events, collapsed",
    [
        (RISING, (), False),
        ([0.8] * 30 + [0.39] * 10, (), True),
        ([0.0] * 40, (), True),  # no reward at all
        ([0.0] * 9, (), False),  # too short to tell
    ],
)
def test_what_counts_as_a_collapse(folder, rewards, events, collapsed):
    assert is_collapsed(load_run(folder(rewards, events))) is collapsed


def test_a_run_that_stopped_at_nan_scores_nothing(folder):
    rows = rows_of(folder(RISING[:12], [NAN], evaluated=False), PLAN)
    expected = {"collapsed": 1, "pass@1": 0, "pass@8": 0, "greedy": 0, "steps_done": 12}
    assert expected.items() <= rows["run"].items()
    assert [(row["correct"], row["n"], row["greedy"]) for row in rows["prompts"]] == [(0, 8, 0)] * 2
    assert not {"base", "drift"} & {*rows, *rows["run"]}
    assert len(rows["curve"]) == 12
    assert not math.isnan(rows["curve"][-1]["reward"])


def test_a_run_that_is_not_at_its_end_is_refused(folder):
    with pytest.raises(RunError, match="12 of 40 steps"):
        rows_of(folder(RISING[:12]), PLAN)
    (folder() / "passk.json").unlink()
    with pytest.raises(RunError, match="not evaluated"):
        rows_of(folder(evaluated=False), PLAN)
