"""A resume with other evaluations: free where they change nothing, and compared to the bit; refused where they act."""

import random
from pathlib import Path

import numpy
import pytest
import torch
from slow import slow_but
from tiny_run import BEST, QUESTIONS
from transformers import EarlyStoppingCallback

from trl_prorl import ReferenceResetCallback, Trigger


def draws(completions, **columns):
    """A reward with random numbers, which an evaluation draws, too."""
    return [random.random() + numpy.random.random() for _ in completions]


ARMS = {
    "A": {"beta": 0.1, "ref_reset_every": 2, "fast": True, "reward": draws},
    "B": {"beta_old": 0.1, "dynamic_sampling_rounds": 1},
}
SAVED = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "per_device_eval_batch_size": 4}
EVALUATED = {**SAVED, "eval_strategy": "steps", "eval_steps": 2, "trainer_kwargs": QUESTIONS}
OTHERS = {
    "none": {"eval_strategy": "no"},
    "larger": {"eval_steps": 3, "per_device_eval_batch_size": 8, "num_generations_eval": 2, "eval_delay": 4},
    "at the start": {"eval_on_start": True},
}


@pytest.mark.parametrize("arm", slow_but(ARMS, "A"))
def test_a_resume_with_other_evaluations_trains_the_same_to_the_bit(run, resume, weights, arm):
    whole = run(**ARMS[arm], **EVALUATED)
    end = weights(whole)
    for name, other in OTHERS.items():
        found = weights(resume(whole, 3, **{**ARMS[arm], **EVALUATED, **other}))
        assert all(torch.equal(found[key], end[key]) for key in end), name


class Watches(Trigger):
    """One of a script, which names no metric."""

    def observe_evaluation(self, step, metrics):
        return None


TRIGGER = {"beta": 0.1, "ref_reset_drop": 0.1}
WATCHED = {
    "a trigger": (TRIGGER, {}),
    "a trigger of one's own": ({"beta": 0.1}, {"callbacks": [ReferenceResetCallback([Watches()])]}),
    "the best model": ({"beta_old": 0.1, **BEST, "eval_steps": 3, "save_steps": 3}, {}),
    "an end": ({"beta_old": 0.1, "stop_stall": 9}, {}),
    "an early stop": ({"beta_old": 0.1}, {"callbacks": [EarlyStoppingCallback(9)]}),
    "the random numbers of plain TRL": ({"beta": 0.0}, {}),
}


@pytest.mark.parametrize("case", WATCHED)
def test_where_evaluations_act_a_resume_with_others_is_refused(run, make_trainer, case):
    keys, given = WATCHED[case]
    keys = {**EVALUATED, "max_steps": 3, **keys, "trainer_kwargs": {**QUESTIONS, **given}}
    whole = run(**keys)
    again = make_trainer(**{**keys, "eval_steps": 1})
    with pytest.raises(ValueError, match="eval_steps: [23] -> 1"):
        again.train(resume_from_checkpoint=str(Path(whole.args.output_dir, "checkpoint-3")))
