"""Triggers on hand-made series, with NaN and missing values, and through JSON and back."""

import json
import math

import pytest

from trl_prorl import KLSpike, Periodic, Reason, Stall
from trl_prorl.resets.triggers import Trigger, TriggerSet


NAN = float("nan")


def steps_fired(trigger, values):
    """(step, value, threshold) for every firing on a series of kl_ref from step 1."""
    reasons = [trigger.observe_step(step, value) for step, value in enumerate(values, start=1)]
    return [(r.step, r.value, r.threshold) for r in reasons if r is not None]


def evaluations_fired(trigger, values, metric="eval_reward"):
    reasons = [trigger.observe_evaluation(step, {metric: value}) for step, value in enumerate(values, start=1)]
    return [(r.reason, r.step, r.value, r.threshold) for r in reasons if r is not None]


def test_periodic_fires_at_multiples_and_names_what_it_saw():
    fired = [reason for step in range(10) if (reason := Periodic(every=3).observe_step(step))]
    assert fired == [Reason("periodic", value=s, threshold=3, step=s) for s in (3, 6, 9)]
    assert fired[0].to_dict() == {"reason": "periodic", "value": 3, "threshold": 3, "step": 3}


def test_kl_spike_above_and_not_at_its_threshold():
    assert steps_fired(KLSpike(0.5), [0.1, 0.5, 0.6, 0.2, math.inf]) == [(3, 0.6, 0.5), (5, math.inf, 0.5)]


def test_kl_spike_waits_for_a_full_window_and_averages_it():
    assert steps_fired(KLSpike(0.5, window=3), [9.0, 0.0, 0.0, 0.0, 0.9, 0.9]) == [
        (3, 3.0, 0.5),
        (6, pytest.approx(0.6), 0.5),
    ]


def test_kl_spike_ignores_what_was_not_measured():
    assert steps_fired(KLSpike(0.5, window=2), [0.9, None, NAN, 0.3, None]) == [(4, pytest.approx(0.6), 0.5)]
    assert steps_fired(KLSpike(0.5), [NAN, None]) == []


def test_a_reset_empties_the_kl_window():
    trigger = KLSpike(0.5, window=2)
    assert steps_fired(trigger, [0.9, 0.9]) == [(2, 0.9, 0.5)]
    trigger.applied(2)
    assert steps_fired(trigger, [0.9]) == []
    assert steps_fired(trigger, [0.9]) == [(1, 0.9, 0.5)]


def test_stall_counts_evaluations_without_improving_on_the_best():
    fired = evaluations_fired(Stall("eval_reward", patience=2), [0.1, 0.3, 0.3, 0.2, 0.4, 0.4, 0.4])
    assert fired == [("stall", 4, 0.2, 0.3), ("stall", 7, 0.4, 0.4)]


def test_stall_goes_on_asking_until_a_reset_is_applied_and_keeps_its_best():
    trigger = Stall("eval_reward", patience=2)
    assert [f[1] for f in evaluations_fired(trigger, [0.5, 0.4, 0.4, 0.4])] == [3, 4]
    trigger.applied(4)
    assert evaluations_fired(trigger, [0.45]) == []  # the best is still 0.5, the count is new
    assert evaluations_fired(trigger, [0.45]) == [("stall", 1, 0.45, 0.5)]


def test_min_delta_and_minimum_mode():
    assert [f[1] for f in evaluations_fired(Stall("eval_reward", 2, min_delta=0.1), [0.5, 0.55, 0.6, 0.65])] == [3]
    trigger = Stall("eval_loss", patience=2, mode="min")
    assert evaluations_fired(trigger, [3.0, 2.0, 2.5, 2.5], "eval_loss") == [("stall", 4, 2.5, 2.0)]


def test_drop_compares_with_the_best():
    trigger = Stall("eval_reward", drop=0.2)
    assert evaluations_fired(trigger, [0.5, 0.8, 0.61, 0.59, 0.79]) == [("drop", 4, 0.59, pytest.approx(0.6))]
    falling = Stall("eval_loss", drop=0.2, mode="min")
    assert evaluations_fired(falling, [1.0, 1.1, 1.3], "eval_loss") == [("drop", 3, 1.3, pytest.approx(1.2))]


def test_stall_ignores_nan_and_missing_evaluations():
    trigger = Stall("eval_reward", patience=2)
    assert evaluations_fired(trigger, [NAN, 0.5, math.inf, None, 0.4, NAN, 0.4]) == [("stall", 7, 0.4, 0.5)]
    assert trigger.observe_evaluation(9, {}) is None and trigger.best == 0.5


def test_cooldown_silences_every_trigger_but_they_go_on_observing():
    triggers = TriggerSet([Periodic(2), KLSpike(0.5, window=2)], cooldown=3)
    seen = {}
    for step in range(1, 9):
        seen[step] = [reason.reason for reason in triggers.observe_step(step, {"kl_ref": 0.9}.get)]
        if step == 2:
            triggers.applied(2)
    # Silent at 3 and 4; the window that the reset emptied is full again by 4.
    assert seen == {1: [], 2: ["periodic", "kl_spike"], 3: [], 4: [], 5: ["kl_spike"]} | {
        6: ["periodic", "kl_spike"],
        7: ["kl_spike"],
        8: ["periodic", "kl_spike"],
    }


def test_state_survives_json_in_the_middle_of_a_series():
    def build():
        return TriggerSet([Periodic(4), KLSpike(0.5, window=3), Stall("eval_reward", patience=3)], cooldown=5)

    def play(triggers, steps):
        fired = []
        for step in steps:
            fired += triggers.observe_step(step, {"kl_ref": 0.2 * (step % 9)}.get)
            fired += triggers.observe_evaluation(step, {"eval_reward": 1.0 if step == 3 else 0.5})
            if step in (6, 13):
                triggers.applied(step)
        return fired

    whole = build()
    expected = play(whole, range(1, 25))
    first, second = build(), build()
    fired = play(first, range(1, 10))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    fired += play(second, range(10, 25))
    assert fired == expected and {r.reason for r in fired} == {"periodic", "kl_spike", "stall"}
    assert second.state_dict() == whole.state_dict()


def test_the_base_trigger_never_fires():
    trigger = Trigger()
    assert trigger.observe_step(1, 9.0) is None and trigger.observe_evaluation(1, {"x": 1.0}) is None
    trigger.applied(1)
    trigger.load_state_dict(trigger.state_dict())
