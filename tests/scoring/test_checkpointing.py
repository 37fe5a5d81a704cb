"""Gradient checkpointing is off where nothing is differentiated, and leaves nothing behind when it comes back."""

import pytest
from tiny_run import QUESTIONS
from transformers import TrainerCallback


class Hooks(TrainerCallback):
    """Counts the hooks on the input embeddings after each step, and sees whether checkpointing is on."""

    def __init__(self):
        self.counts = []
        self.is_on = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.counts.append(len(model.get_input_embeddings()._forward_hooks))
        self.is_on.append(model.is_gradient_checkpointing)


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
RUNS = {
    "TRL's own, full": {"lora": False},
    "TRL's own, LoRA, reference": {"beta": 0.1, **EVALUATED},
    "A": {"beta": 0.1, "ref_reset_every": 1, **EVALUATED},
    "A, compact, packed": {"beta": 0.1, "ref_reset_every": 1, "fast": True},
    "A, scored in every pass": {"beta": 0.1, "ref_reset_every": 1, "ref_compute": "naive_epoch"},
    "reentrant": {"beta": 0.1, "beta_base": 0.1, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "dynamic sampling": {"dynamic_sampling_rounds": 2},
}


@pytest.mark.parametrize("keys", RUNS.values(), ids=RUNS)
def test_the_number_of_hooks_stays(run, keys):
    hooks = Hooks()
    given = {**QUESTIONS, "callbacks": [hooks]}
    run(gradient_checkpointing=True, num_iterations=1, max_steps=3, trainer_kwargs=given, **keys)
    assert len(set(hooks.counts)) == 1
    assert hooks.counts[0] <= 2  # TRL's, and that of the beginning of the training
    assert hooks.is_on == [True] * 3
