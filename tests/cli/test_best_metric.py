"""The best model is by pass@1 or by the reward, never by the loss."""

import itertools
from pathlib import Path

import pytest
from tiny_run import BEST, QUESTIONS, constant, set_evaluations
from transformers import EarlyStoppingCallback


UNSET = {name: value for name, value in BEST.items() if name not in ("metric_for_best_model", "greater_is_better")}
EACH_STEP = {**UNSET, "eval_steps": 1, "save_steps": 1}
JUDGED = constant(0.5, verifier=lambda completions, **columns: [True] * len(completions))


def test_without_a_metric_the_best_reward_is_kept_and_loaded(make_trainer):
    trainer = make_trainer(trainer_kwargs=QUESTIONS, **EACH_STEP, save_total_limit=1)
    set_evaluations(trainer, 0.1, 0.9, 0.4, 0.2).train()
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-2"
    assert trainer.state.best_metric == 0.9
    kept = {path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*")}
    assert "checkpoint-2" in kept


def test_with_a_verifier_it_is_pass_at_1_unless_another_is_asked_for(make_trainer):
    trainer = make_trainer(reward=JUDGED, trainer_kwargs=QUESTIONS, **UNSET)
    assert (trainer.args.metric_for_best_model, trainer.args.greater_is_better) == ("eval_pass@1", True)
    trainer = make_trainer(reward=JUDGED, trainer_kwargs=QUESTIONS, metric_for_best_model="loss", **UNSET)
    assert (trainer.args.metric_for_best_model, trainer.args.greater_is_better) == ("loss", False)


@pytest.mark.parametrize(
    "callback, added",
    [
        (EarlyStoppingCallback(early_stopping_patience=2), False),
        (EarlyStoppingCallback(early_stopping_patience=2), True),
        (EarlyStoppingCallback, False),
    ],
)
def test_an_early_stop_is_by_the_reward_too(make_trainer, callback, added):
    """The reward rises, and the loss of rewards that are all equal is 0: by the loss it would stop at step 3."""
    calls = itertools.count()

    def rising(completions, **columns):
        return [float(next(calls))] * len(completions)

    keys = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "max_steps": 5}
    callbacks = [] if added else [callback]
    trainer = make_trainer(reward=rising, trainer_kwargs={**QUESTIONS, "callbacks": callbacks}, **keys)
    if added:
        trainer.add_callback(callback)
    trainer.train()
    assert trainer.args.metric_for_best_model == "eval_reward"
    assert trainer.state.global_step == 5
