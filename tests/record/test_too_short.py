"""A run says which of its keys it is too short for, and which of them another key leaves without effect."""

import pytest
from tiny_run import QUESTIONS

from trl_prorl import Reason, ReferenceResetCallback, Trigger


EVERY_2 = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "trainer_kwargs": QUESTIONS}
A = {"beta": 0.1, "ref_reset_every": 1}
# Keys, the one that is named, and the first step at which it acts: a batch lasts for two steps.
FIRST = [
    ({"lora_growth_every": 3}, "lora_growth_every", 5),
    ({"elastic_reset_every": 4}, "elastic_reset_every", 5),
    (A | {"ref_reset_every": 4}, "ref_reset_every", 5),
    ({"beta": 0.1, "ref_reset_kl": 9.0, "ref_reset_kl_window": 5}, "ref_reset_kl_window", 7),
    ({"beta": 0.1, "ref_reset_kl": 9.0, "ref_reset_every": 7}, "ref_reset_every", 9),
    ({"entropy_floor": 1e-9, "entropy_patience": 3}, "entropy_patience", 3),
    ({"beta": 0.1, "ref_reset_stall": 1, **EVERY_2}, "ref_reset_stall", 5),
    ({"stop_stall": 2, "save_strategy": "best", **EVERY_2}, "stop_stall", 6),
]


class Never(Trigger):
    def observe_step(self, step, kl_ref=None) -> Reason | None:
        return None


@pytest.mark.parametrize("keys, name, first", FIRST)
@pytest.mark.parametrize("is_shorter", [True, False])
def test_a_key_that_a_run_is_too_short_for_is_named(make_trainer, caplog, keys, name, first, is_shorter):
    trainer = make_trainer(**keys)
    steps = first - is_shorter
    trainer.state.max_steps = steps
    trainer.state.eval_steps = trainer.args.eval_steps
    trainer.terminal._warn_of_what_has_no_effect(trainer.args, steps)
    assert (f"{name}={keys[name]} cannot act before step {first}" in caplog.text) is is_shorter


def test_a_period_beyond_the_run_serves_triggers_of_one_s_own(run, caplog):
    run(**A | {"ref_reset_every": 9}, max_steps=2, trainer_kwargs={"callbacks": [ReferenceResetCallback([Never()])]})
    assert "cannot act" not in caplog.text


@pytest.mark.parametrize(
    "keys, is_warned",
    [
        ({"beta": 0.1}, True),
        ({"beta_old": 0.1}, True),
        ({"beta_base": 0.1}, True),
        ({}, False),
        ({"beta_base": 0.1, "base_anchor_every": 2}, False),
        ({"beta": 0.1, "drop_zero_rows": True}, False),
        ({"beta": 0.1, "kl_in": "reward", "advantage_estimator": "rloo"}, False),
    ],
    ids=str,
)
def test_rows_that_a_kl_acts_on_are_not_skipped_and_the_run_says_so(run, caplog, keys, is_warned):
    run(skip_zero_rows=True, max_steps=1, **keys)
    assert ("skip_zero_rows=True skips no row" in caplog.text) is is_warned
