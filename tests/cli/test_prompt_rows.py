"""Prompts and images that a transform makes train as with TRL."""

from importlib import import_module
from pathlib import Path

import torch
from datasets import Dataset, IterableDataset
from PIL import Image
from trl import GRPOTrainer


CHATS = [{"prompt": [{"role": "user", "content": f"say {i}"}]} for i in range(16)]


def stream(rows):
    return IterableDataset.from_generator(lambda: iter(rows))


def test_prompts_that_a_transform_makes_of_another_column_train_as_with_trl(run, make_trainer, largest_difference):
    def ask(rows):
        return {"prompt": [f"say {number}" for number in rows["n"]]}

    numbers = Dataset.from_dict({"n": [*range(16)]})
    given = {"train_dataset": numbers.with_transform(ask)}
    assert largest_difference(run(trainer_kwargs=given), run(GRPOTrainer, trainer_kwargs=given)) == 0.0
    assert make_trainer(trainer_kwargs=given, pack_groups="auto").acceleration.packs
    trainer = run(trainer_kwargs=given, prompt_pool=True, max_steps=1)
    assert len(trainer.prompt_pool.state_dict()["prompts"]) == 2


def test_images_that_a_transform_makes_train_as_with_trl(run, monkeypatch, largest_difference):
    """With equal rewards in every second group: its rows would be skipped, and the others' images mixed up."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "upstream")
    make = import_module("stand_in_vision").gemma3

    def draw(rows):
        return {**rows, "image": [Image.new("RGB", (56, 56), (40 * n, 9 * n, 0)) for n in rows["n"]]}

    def reward(completion_ids, n, **columns):
        return [float(i % 3 if number % 2 else 1) for i, number in enumerate(n)]

    rows = Dataset.from_list([{**row, "n": n} for n, row in enumerate(CHATS)]).with_transform(draw)
    ends = []
    for way in ({"cls": GRPOTrainer}, {"fast": True}):
        torch.manual_seed(0)
        model, processor = make()
        given = {"train_dataset": rows, "processing_class": processor}
        keys = {"per_device_train_batch_size": 16, "num_iterations": 1, "learning_rate": 1e-2, "max_steps": 3}
        ends.append(run(model=model, reward=reward, lora=False, trainer_kwargs=given, **keys, **way))
    assert largest_difference(*ends) == 0.0
