"""A run says which of its keys it is too short for."""

import pytest
from tiny_run import QUESTIONS

from trl_prorl.refusals import find_late_keys


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


@pytest.mark.parametrize("keys, name, first", FIRST)
@pytest.mark.parametrize("is_shorter", [True, False])
def test_a_key_that_a_run_is_too_short_for_is_found(make_trainer, keys, name, first, is_shorter):
    steps = first - is_shorter
    late = find_late_keys(make_trainer(**keys).args, steps, eval_steps=2, guard_window=40)
    assert late == ({name: first} if is_shorter else {})


@pytest.mark.parametrize("steps, is_warned", [(2, True), (3, False)])
def test_a_run_that_is_too_short_says_so(run, caplog, steps, is_warned):
    run(**A | {"ref_reset_every": 2}, max_steps=steps)
    assert ("ref_reset_every=2 cannot act before step 3" in caplog.text) is is_warned
