"""The best checkpoint is by any metric that an evaluation measures."""

from tiny_run import BEST, QUESTIONS, set_evaluations, vowels


EACH_STEP = {**BEST, "eval_steps": 1, "save_steps": 1}


def test_vllm_gets_the_weights_of_the_best_model(make_trainer):
    trainer = make_trainer(trainer_kwargs=QUESTIONS, **EACH_STEP)
    trainer._last_loaded_step = 4  # TRL's note of an evaluation at the last step
    set_evaluations(trainer, 0.1, 0.9, 0.4, 0.2).train()
    assert trainer.step_of_weights == 2 and trainer._last_loaded_step == -1


def logging(completions, log_metric=None, **columns):
    log_metric("share_of_vowels", 0.5)
    return vowels(completions)


def test_a_metric_that_a_reward_logs_is_known_at_the_first_evaluation(run):
    keys = {**EACH_STEP, "max_steps": 1, "metric_for_best_model": "share_of_vowels"}
    assert run(reward=logging, trainer_kwargs=QUESTIONS, **keys).state.best_metric == 0.5
