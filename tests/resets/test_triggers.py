"""Triggers on hand-made series, with NaN and missing values, and through JSON and back."""

import json
import math
from types import SimpleNamespace

import pytest

from trl_prorl import KLSpike, Periodic, ProRLConfig, ReferenceResetCallback, Stall, Trigger
from trl_prorl.watch import configured_triggers


NAN = math.nan
RESET = "a reset is applied"
SERIES = [
    (Trigger(), [9.0, RESET, 1.0], []),
    (Periodic(every=3), [None] * 9, [("periodic", step, 3, step) for step in (3, 6, 9)]),
    # Above, and not at, the threshold.
    (KLSpike(0.5), [0.1, 0.5, 0.6, 0.2, math.inf], [("kl_spike", 0.6, 0.5, 3), ("kl_spike", math.inf, 0.5, 5)]),
    # It waits for a full window, whose mean it takes, and ignores what was not measured; a reset empties it.
    (KLSpike(0.5, 3), [9.0, 0.0, 0.0, 0.0, 0.9, 0.9], [("kl_spike", 3.0, 0.5, 3), ("kl_spike", 0.6, 0.5, 6)]),
    (KLSpike(0.5, 2), [0.9, None, NAN, 0.3, None], [("kl_spike", 0.6, 0.5, 4)]),
    (KLSpike(0.5), [NAN, None], []),
    (KLSpike(0.5, 2), [0.9, 0.9, RESET, 0.9, 0.9], [("kl_spike", 0.9, 0.5, 2), ("kl_spike", 0.9, 0.5, 4)]),
    # Evaluations without improving on the best; it goes on asking until a reset, which leaves it its best.
    (Stall("m", 2), [0.1, 0.3, 0.3, 0.2, 0.4, 0.4, 0.4], [("stall", 0.2, 0.3, 4), ("stall", 0.4, 0.4, 7)]),
    (
        Stall("m", 2),
        [0.5, 0.4, 0.4, 0.4, RESET, 0.45, 0.45],
        [("stall", 0.4, 0.5, 3), ("stall", 0.4, 0.5, 4), ("stall", 0.45, 0.5, 6)],
    ),
    (Stall("m", 2, min_delta=0.1), [0.5, 0.55, 0.6, 0.65], [("stall", 0.6, 0.5, 3)]),
    (Stall("m", 2, mode="min"), [3.0, 2.0, 2.5, 2.5], [("stall", 2.5, 2.0, 4)]),
    (Stall("m", 2), [NAN, 0.5, math.inf, None, 0.4, NAN, 0.4], [("stall", 0.4, 0.5, 7)]),
    (Stall("another", 2), [0.5, 0.4, 0.4], []),
    (Stall("m", drop=0.2), [0.5, 0.8, 0.61, 0.59, 0.79], [("drop", 0.59, 0.6, 4)]),
    (Stall("m", drop=0.2, mode="min"), [1.0, 1.1, 1.3], [("drop", 1.3, 1.2, 3)]),
    (Stall("m", drop=0.25), [1.0, 0.75, 0.5], [("drop", 0.5, 0.75, 3)]),  # more than 0.25, and not as much
]


@pytest.mark.parametrize("trigger, values, expected", SERIES)
def test_where_a_trigger_fires(trigger, values, expected):
    """Reason, value, threshold and step; every value is one of a step, and one of an evaluation after it."""
    fired = [trigger.observe_step(0)]
    step = 0
    for value in values:
        if value is RESET:
            trigger.applied(step)
        else:
            step += 1
            fired += [trigger.observe_step(step, value), trigger.observe_evaluation(step, {"m": value})]
    found = [tuple(reason.to_dict().values()) for reason in fired if reason is not None]
    assert [name for name, *_ in found] == [name for name, *_ in expected]
    assert [numbers for _, *numbers in found] == [pytest.approx(numbers) for _, *numbers in expected]


def fired_by(callback, step, row, metrics):
    """The reasons of a step, and of an evaluation after it."""
    callback.in_training = True
    callback.requests.clear()
    callback.observe_row(step, row)
    callback.on_evaluate(None, SimpleNamespace(global_step=step), None, metrics=metrics)
    return list(callback.requests)


def test_cooldown_silences_every_trigger_but_they_go_on_observing():
    callback = ReferenceResetCallback([Periodic(2), KLSpike(0.5, window=2)], cooldown=3)
    seen = {}
    for step in range(1, 9):
        seen[step] = [reason.reason for reason in fired_by(callback, step, {"kl_ref": 0.9}, {})]
        if step == 2:
            callback.applied(2)
    # Silent at 3 and 4; the window that the reset emptied is full again by 4.
    assert seen == {
        1: [],
        2: ["periodic", "kl_spike"],
        3: [],
        4: [],
        5: ["kl_spike"],
        6: ["periodic", "kl_spike"],
        7: ["kl_spike"],
        8: ["periodic", "kl_spike"],
    }


def test_state_survives_json_in_the_middle_of_a_series():
    def build():
        triggers = [Periodic(4), KLSpike(0.5, window=3), Stall("eval_reward", patience=3)]
        return ReferenceResetCallback(triggers, cooldown=5)

    def play(callback, steps):
        fired = []
        for step in steps:
            metrics = {"eval_reward": 1.0 if step == 3 else 0.5}
            fired += fired_by(callback, step, {"kl_ref": 0.2 * (step % 9)}, metrics)
            if step in (6, 13):
                callback.applied(step)
        return fired

    whole = build()
    expected = play(whole, range(1, 25))
    first = build()
    second = build()
    fired = play(first, range(1, 10))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    fired += play(second, range(10, 25))
    assert fired == expected
    assert {r.reason for r in fired} == {"periodic", "kl_spike", "stall"}
    assert second.state_dict() == whole.state_dict()


def test_the_keys_make_the_trigger_that_they_describe():
    """0.8 improves on 0.4 by more than 0.3, and 1.0 on 0.8 by less."""
    args = ProRLConfig(
        use_cpu=True,
        bf16=False,
        beta=0.1,
        eval_strategy="steps",
        eval_steps=1,
        ref_reset_stall=1,
        ref_reset_metric="eval_pass@1",
        ref_reset_min_delta=0.3,
    )
    (trigger,) = configured_triggers(args)
    reasons = [trigger.observe_evaluation(step, {"eval_pass@1": share}) for step, share in enumerate((0.4, 0.8, 1.0))]
    assert [reason and reason.reason for reason in reasons] == [None, None, "stall"]
