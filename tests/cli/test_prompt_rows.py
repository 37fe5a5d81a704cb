"""Prompts in the forms that TRL takes: text, messages, of a transform, with images, of a stream."""

from importlib import import_module
from pathlib import Path

import pytest
import torch
from datasets import Dataset, IterableDataset
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from trl import GRPOTrainer

from trl_prorl.cli.prompt_rows import is_text_only


CHATS = [{"prompt": [{"role": "user", "content": f"say {i}"}]} for i in range(16)]
TEXTS = [{"prompt": f"say {i}"} for i in range(16)]
PREFILLED = [{"role": "user", "content": "say it"}, {"role": "assistant", "content": "<think>"}]
STREAM = {"accelerator_config": {"dispatch_batches": False}, "max_steps": 16}


def stream(rows):
    return IterableDataset.from_generator(lambda: iter(rows))


@pytest.mark.parametrize("source", [Dataset.from_list, stream])
def test_a_rollout_function_may_begin_an_answer_itself(make_trainer, source):
    seen = []

    def rollout(prompts, trainer):
        seen.extend(prompts)
        ids = [[70, 71]] * len(prompts)
        return {"prompt_ids": ids, "completion_ids": ids, "logprobs": [[0.0, 0.0]] * len(prompts)}

    given = {"train_dataset": source([{"prompt": PREFILLED}] * 16), "rollout_func": rollout}
    make_trainer(trainer_kwargs=given, **STREAM | {"max_steps": 1}).train()
    assert seen and all(prompt == PREFILLED for prompt in seen)


def test_prompts_that_a_transform_makes_of_another_column_train_as_with_trl(run, make_trainer, largest_difference):
    def ask(rows):
        return {"prompt": [f"say {number}" for number in rows["n"]]}

    numbers = Dataset.from_dict({"n": [*range(16)]})
    given = {"train_dataset": numbers.with_transform(ask)}
    assert largest_difference(run(trainer_kwargs=given), run(GRPOTrainer, trainer_kwargs=given)) == 0.0
    assert make_trainer(trainer_kwargs=given, pack_groups="auto").acceleration.packs
    trainer = run(trainer_kwargs=given, prompt_pool=True, max_steps=1)
    assert len(trainer.prompt_pool.state_dict()["prompts"]) == 2


def test_what_trl_takes_is_taken(make_trainer):
    """Blank texts, empty messages, system messages alone, and columns of other names."""
    for prompt in (" ", [{"role": "user", "content": ""}], [{"role": "system", "content": "be brief"}]):
        rows = [{"prompt": prompt, "completion": "x", "environments": "y"}] * 16
        make_trainer(trainer_kwargs={"train_dataset": Dataset.from_list(rows)})


def test_a_reward_model_gets_no_columns(make_trainer, tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = AutoConfig.from_pretrained(tiny_model, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    judge = AutoModelForSequenceClassification.from_config(config)
    rows = Dataset.from_list([{**row, "completions": "x"} for row in CHATS])
    given = {"train_dataset": rows, "reward_processing_classes": tokenizer}
    make_trainer(reward=judge, trainer_kwargs=given, max_steps=1).train()


PARTS = [{"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}]}]


@pytest.mark.parametrize(
    "rows, expected",
    [(TEXTS, True), (CHATS, True), (PARTS, False), ([{**row, "image": "a.png"} for row in CHATS], False)],
)
def test_prompts_that_may_have_images_are_told_from_text(rows, expected):
    assert is_text_only(Dataset.from_list(rows)) is expected
    assert not is_text_only(stream(rows))  # its features are not known
    assert not is_text_only(Dataset.from_list(rows).with_transform(dict))  # nor what a transform adds
    assert is_text_only(Dataset.from_list(rows).with_format("torch")) is expected


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
