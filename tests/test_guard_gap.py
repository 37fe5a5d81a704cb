"""Gold beside the reward, and the guard against a reward that is gamed."""

import json
import logging
from pathlib import Path

import pytest
from run_record import read_rows as read
from tiny_run import constant

from tasks import get_task
from trl_prorl.guards.guard_gap import WINDOW, GuardGap
from trl_prorl.train import main, task_reward


RECIPES = Path(__file__).parent.parent / "recipes" / "tiny" / "gamed"
FILES = ("events.jsonl", "metrics.jsonl")


def fired(series, gap=0.2):
    """The places of a series of (gold, reward) at which a guard fires."""
    guard = GuardGap(gap, "event", request=None)
    return [place for place, values in enumerate(series) if guard.observe(*values) is not None]


RISE = [(0.5, 0.5)] * WINDOW


@pytest.mark.parametrize(
    "after, places",
    [
        # One value of 0 among 20 lowers the average by 0.025, so the ninth passes 0.2: 9 · 0.025 = 0.225.
        ([(0.0, 0.9)] * 12, [WINDOW + 8]),
        # After it has fired, the best is 0.275, and there is no further fall of 0.2 within the series.
        ([(0.0, 0.9)] * 15, [WINDOW + 8]),
        ([(0.0, 0.9)] * 20, [WINDOW + 8, WINDOW + 17]),
        ([(0.0, 0.5)] * 12, [WINDOW + 8]),  # a reward that stays counts as one that does not fall
        ([(0.0, 0.4)] * 20, []),  # both fall: the policy got worse, and nothing was gamed
        ([(0.4, 0.9)] * 40, []),  # a fall of 0.1
        ([(0.9, 0.9)] * 40, []),
        ([(None, 0.9)] * 40, []),
    ],
)
def test_it_fires_when_gold_falls_and_the_reward_does_not(after, places):
    assert fired(RISE + after) == places


def test_its_memory_goes_on_in_another_process():
    series = RISE + [(0.0, 0.9)] * 12
    for cut in range(len(series)):
        first, second = (GuardGap(0.2, "event", request=None) for _ in range(2))
        before = [first.observe(*values) is not None for values in series[:cut]]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())), {})
        after = [second.observe(*values) is not None for values in series[cut:]]
        assert [place for place, at in enumerate(before + after) if at] == fired(series)


def test_gold_is_the_share_that_the_verifier_accepts(run):
    def verifier(completions, **columns):
        return [place % 4 == 0 for place in range(len(completions))]

    trainer = run(reward=constant(0.25, verifier), max_steps=2)
    assert [(row["gold"], row["reward"]) for row in read(trainer, "metrics.jsonl")] == [(0.25, 0.25)] * 2
    assert all("gold" not in row for row in read(run(reward=constant(0.25), max_steps=1), "metrics.jsonl"))


@pytest.mark.parametrize("action", ["event", "reset", "stop"])
def test_a_run_whose_reward_is_gamed(run, monkeypatch, caplog, action):
    monkeypatch.setattr("trl_prorl.guards.guard_gap.WINDOW", 2)
    verdicts = iter([1.0, 1.0] + [0.0] * 20)
    reward = constant(1.0, lambda completions, **columns: [next(verdicts)] * len(completions))
    keys = {"beta": 0.1, "guard_gap": 0.6, "guard_gap_action": action, "num_iterations": 1, "save_strategy": "steps"}
    with caplog.at_level(logging.WARNING):
        trainer = run(reward=reward, max_steps=6, **keys)
    events = read(trainer, "events.jsonl")
    assert [(event["event"], event["step_applied"]) for event in events] == {
        # Averages of two steps: 1, 0.5 after step 3, 0 after step 4.
        "event": [("guard_gap", 4)],
        "stop": [("guard_gap", 4)],
        "reset": [("guard_gap", 4), ("reset", 4)],
    }[action]
    assert events[0]["value"] == 1.0 and events[0]["threshold"] == 0.6 and events[0]["action"] == action
    assert trainer.state.global_step == (4 if action == "stop" else 6)
    assert "gamed" in caplog.text
    if action == "reset":
        assert events[1]["reason"] == "guard_gap"


def test_it_needs_a_verifier(run):
    with pytest.raises(ValueError, match="guard_gap=0.1 needs to know which completions are correct"):
        run(guard_gap=0.1, max_steps=1)


def test_sorting_by_inclusion_can_be_gamed_for_sure():
    """The wrong answer `1 2 2` to `1 1 2` is paid in full; gold tells it."""
    reward = task_reward(get_task("sorting", level=1, reward="inclusion_ordering"))
    completions = [[{"role": "assistant", "content": text}] for text in ("1 2 2 3", "1 1 2 3")]
    columns = {"answer": ["1 1 2 3"] * 2, "prompt": ["sort"] * 2}
    assert reward(completions, **columns) == [1.0, 1.0]
    assert reward.verifier(completions, **columns) == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("arm, fires", [("plain", True), ("control", False)])
def test_of_the_gamed_recipes_plain_is_caught_and_the_control_is_not(tmp_path, arm, fires):
    main(argv=["--config", str(RECIPES / f"{arm}.yaml"), "--output_dir", str(tmp_path), "--report_to", "none"])
    events, rows = (read(tmp_path, file) for file in FILES)
    assert [event["event"] for event in events if event["event"] == "guard_gap"][:1] == ["guard_gap"] * fires
    gold, reward = [sum(row[key] for row in rows[-20:]) / 20 for key in ("gold", "reward")]
    assert reward > 0.95 and (gold < 0.45 if fires else gold > 0.5)
