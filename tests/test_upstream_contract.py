"""What the trainer relies on inside TRL and transformers: names in their code, and what code does not show."""

import inspect

import pytest
import torch
from transformers import Trainer
from trl import GRPOTrainer
from trl_names import CALLS, check_names

from trl_prorl import ProRLTrainer
from trl_prorl.evaluation import EvaluationMixin
from trl_prorl.run.checkpoint import CheckpointMixin


def test_trl_has_the_names_that_are_relied_on():
    check_names(ProRLTrainer)
    check_names(ProRLTrainer, with_vllm=True)


def test_each_method_that_is_replaced_is_one_whose_caller_is_known():
    called = {name for calls in CALLS.values() for name in calls}
    by_scripts = {"train", "add_callback", "evaluate", "save_model", "push_to_hub"}
    replaced = {
        name
        for cls in (ProRLTrainer, CheckpointMixin, EvaluationMixin)
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and hasattr(GRPOTrainer, name)
    }
    assert replaced - {"__init__"} - by_scripts <= called


def _calculate_rewards(self, inputs, images, prompts, completions, completion_ids_list):
    """An argument is inserted."""


def _generate_single_turn(self, prompt_ids, images):
    """Arguments are gone."""


def _run_epoch(self, **kwargs):
    """The row is written before the update."""
    self.get_batch_samples()
    self.accelerator.gradient_state._set_sync_gradients(True)
    self.training_step()
    self._maybe_log_save_evaluate(self._get_grad_norm(), self.current_gradient_accumulation_steps)
    self.callback_handler.on_pre_optimizer_step(self.args.max_grad_norm)
    self.callback_handler.on_step_end()
    self.callback_handler.on_epoch_end(grad_norm=0.0)


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (GRPOTrainer, _calculate_rewards),
        (GRPOTrainer, _generate_single_turn),
        (Trainer, _run_epoch),
    ],
    ids=lambda value: value.__name__,
)
def test_a_trl_that_was_rebuilt_is_found(monkeypatch, owner, method):
    monkeypatch.setattr(owner, method.__name__, method)
    with pytest.raises(ValueError, match=method.__name__):
        check_names(ProRLTrainer)


def test_a_loss_that_scores_a_micro_batch_in_parts_is_refused(make_trainer, monkeypatch):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        rows = [
            {name: value[row : row + 1] if value.dim() else value for name, value in inputs.items()}
            for row in range(len(inputs["advantages"]))
        ]
        return sum(self._compute_loss(model, row) for row in rows)

    monkeypatch.setattr(GRPOTrainer, "compute_loss", compute_loss)
    with pytest.raises(ValueError, match="a part of it"):
        make_trainer().train()


def test_a_sampler_s_order_comes_from_its_own_generator(make_trainer):
    sampler = make_trainer()._get_train_sampler()
    expected = torch.randperm(16, generator=torch.Generator().manual_seed(7)).tolist()
    assert list(dict.fromkeys(sampler)) == expected, "one permutation an epoch, of a generator with the run's seed"


def test_the_buffer_hands_out_the_same_dict_twice(make_trainer):
    trainer = make_trainer()
    trainer.model.train()
    batch = [{"prompt": trainer.train_dataset[0]["prompt"]} for _ in range(8)]
    first = trainer._prepare_inputs(batch)
    trainer._step += 1
    assert trainer._prepare_inputs(batch) is first
