"""Completions that are interrupted and asked for their answer."""

from types import SimpleNamespace

import pytest
import torch
from run_record import read_rows
from tiny_run import record_results

from trl_prorl.errors import InputError
from trl_prorl.extras.thinking import make_interrupted_rollout, make_rollout
from trl_prorl.train import TaskArguments


TEXT = "\nAnswer: "
ROWS = 32
BUDGET = 20


@pytest.mark.parametrize("pack", ["off", "on"])
def test_what_ends_in_time_is_left_alone_and_the_rest_is_asked(make_trainer, pack):
    keys = {"max_completion_length": 40, "max_steps": 2, "per_device_train_batch_size": ROWS, "pack_groups": pack}
    trainer = make_trainer(**keys, trainer_kwargs={"rollout_func": make_interrupted_rollout(BUDGET, 4, TEXT)})
    forced = trainer.processing_class(TEXT, add_special_tokens=False).input_ids
    seen = []
    sampled = record_results(trainer, "_sample")
    reward = trainer.reward_funcs[0]
    trainer.reward_funcs[0] = lambda completion_ids, interrupted, **columns: (
        seen.append((completion_ids, interrupted)) or reward(completion_ids=completion_ids, **columns)
    )
    trainer.train()
    ids, interrupted = seen[0]
    ((batch, _),) = sampled
    assert 0 < sum(interrupted) < ROWS
    for row in range(ROWS):
        length = int(batch["completion_mask"][row].sum())
        mask = batch["tool_mask"][row].tolist()
        if interrupted[row]:
            assert ids[row][BUDGET : BUDGET + len(forced)] == forced
            assert len(ids[row]) <= BUDGET + len(forced) + 4
            answer = length - BUDGET - len(forced)
            assert mask[:length] == [1] * BUDGET + [0] * len(forced) + [1] * answer
            assert 1 <= answer <= 4
        else:
            assert len(ids[row]) <= BUDGET
            assert ids[row][-1] in trainer.eos_token_ids
            assert all(mask[:length])
    assert read_rows(trainer)[0]["interrupted_fraction"] == sum(interrupted) / ROWS
    assert trainer.generation_config.max_new_tokens == 40


def rollout_of(budget=9, **keys):
    """11 tokens are of the text, by this tokenizer, and 4 of the answer."""
    recipe = TaskArguments(task="sums", thinking_budget=budget, thinking_text="x" * 11, thinking_answer_tokens=4)
    args = SimpleNamespace(**{"use_vllm": False, "max_completion_length": 40} | keys)
    return make_rollout(recipe, args, lambda text, add_special_tokens: SimpleNamespace(input_ids=list(text)))


def test_a_budget_fits_into_a_completion_with_text_and_answer():
    assert rollout_of(25) is not None
    with pytest.raises(InputError, match="^thinking_budget=26 .*max_completion_length to 41"):
        rollout_of(26)
    assert rollout_of(26, max_completion_length=41) is not None


def test_without_a_budget_trl_generates_and_vllm_is_not_interrupted():
    assert make_rollout(TaskArguments(task="sums"), SimpleNamespace(use_vllm=True), None) is None
    with pytest.raises(InputError, match="^thinking_budget=9 .*vLLM"):
        rollout_of(use_vllm=True)


def test_forced_tokens_carry_no_gradient(make_trainer):
    trainer = make_trainer(max_completion_length=24, loss_type="dapo")
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    ones = torch.ones(4, 5, dtype=torch.long)
    batch = {
        "prompt_ids": 70 * ones,
        "prompt_mask": ones,
        "completion_ids": 80 * ones,
        "completion_mask": ones,
        "advantages": torch.tensor([1.0, -1.0, 2.0, -2.0]),
        "num_items_in_batch": torch.tensor(20),
    }
    for mask, silent in ((0, True), (1, False)):
        trainer.model.zero_grad()
        trainer.compute_loss(trainer.model, {**batch, "tool_mask": mask * ones}).backward()
        norm = sum(p.grad.abs().sum() for p in trainer.model.parameters() if p.grad is not None)
        assert (norm == 0) == silent
