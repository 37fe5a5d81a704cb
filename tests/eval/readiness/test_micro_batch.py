"""The largest micro-batch, with a pretended memory; and that trying sizes changes nothing."""

from functools import partial

import pytest
import torch

from trl_prorl.eval.readiness.finding import LOOK
from trl_prorl.eval.readiness.micro_batch import micro_batch_findings, update_bytes


PROMPT = 12  # tokens
KEYS = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}  # 16 rows in an update


class Memory:
    """2 bytes, and 3 for each row. From `ends` bytes on the device has no more."""

    def __init__(self, ends):
        self.ends = ends
        self.tried = []

    def __call__(self, rows):
        self.tried.append(rows)
        size = 2 + 3 * rows
        if size >= self.ends:
            raise torch.OutOfMemoryError
        return size


def found(trainer, limit, ends=1000):
    memory = Memory(ends)
    (finding,) = micro_batch_findings(trainer, PROMPT, memory, limit)
    assert len(memory.tried) == len({*memory.tried})
    return finding


@pytest.mark.parametrize(
    "keys, limit, ends, rows, accumulation",
    [
        ({}, 1000, 1000, 16, 1),
        ({}, 49, 1000, 8, 2),  # 16 rows need 50 bytes
        ({}, 1000, 50, 8, 2),  # and are more than there are
        ({}, 25, 1000, 4, None),
        ({}, 13, 1000, 2, 8),
        ({}, 5, 1000, 1, 16),
        ({}, 4, 1000, 0, None),
        ({"steps_per_generation": 8, "num_generations": 2}, 1000, 1000, 16, 1),
        ({"steps_per_generation": 1}, 1000, 1000, 4, None),  # each of four micro-batches is a generation
        ({"steps_per_generation": 1}, 13, 1000, 2, 8),
        ({"loss_type": "bnpo"}, 13, 1000, 0, None),  # it divides by the tokens of a micro-batch
    ],
)
def test_rows_that_fit_and_the_keys_of_the_same_updates(make_trainer, keys, limit, ends, rows, accumulation):
    finding = found(make_trainer(**KEYS | keys), limit, ends)
    assert (finding.values["rows"], finding.values["now"]) == (rows, 4)
    assert finding.values.get("gradient_accumulation_steps") == accumulation
    assert (finding.level == LOOK) == (rows != 4)
    if accumulation:
        assert f"per_device_train_batch_size: {rows} " in finding.change
        assert f"gradient_accumulation_steps: {accumulation}" in finding.change
    if "steps_per_generation" in keys and accumulation:  # the same number of updates for each generation
        assert f"steps_per_generation: {keys['steps_per_generation'] * 4 // rows}" in finding.change


def test_nothing_is_tried_without_a_gpu(make_trainer):
    assert micro_batch_findings(make_trainer(**KEYS), PROMPT) == []


@pytest.mark.parametrize("lora", [False, True])
def test_a_trainer_that_was_tried_trains_as_one_that_was_not(make_trainer, largest_difference, lora):
    keys = {**KEYS, "lora": lora, "fast": True, "beta": 0.1, "max_steps": 3}
    plain = make_trainer(**keys)
    plain.train()
    tried = make_trainer(**keys)
    seen = []
    tried.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    micro_batch_findings(tried, PROMPT, partial(update_bytes, tried, PROMPT), 1e12)
    assert len(seen) == 2 and max(seen) > 16 * tried.args.max_completion_length  # 4 and 16 rows
    assert all(param.grad is None for param in tried.model.parameters())
    tried.train()
    assert largest_difference(plain, tried) == 0.0


def test_a_pass_makes_the_gradients_of_an_update(make_trainer, monkeypatch):
    trainer = make_trainer(**KEYS)
    trained = [param for param in trainer.model.parameters() if param.requires_grad]
    have_gradient = []

    def clear(**keys):
        have_gradient.extend(param.grad is not None for param in trained)

    monkeypatch.setattr(trainer.model, "zero_grad", clear)
    size = update_bytes(trainer, PROMPT, 2)
    assert all(have_gradient) and len(have_gradient) == len(trained)
    assert size == 2 * sum(param.nbytes for param in trained)  # Adam's moments; a CPU's memory is not measured
