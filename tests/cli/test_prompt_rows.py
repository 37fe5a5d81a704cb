"""Rows that cannot be trained or evaluated on, refused by name: of data sets at the start, of streams as they come."""

from importlib import import_module
from pathlib import Path

import pytest
import torch
from datasets import Dataset, IterableDataset
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
)
from trl import GRPOTrainer

from trl_prorl.cli.prompt_rows import is_text_only
from trl_prorl.errors import InputError


CHATS = [{"prompt": [{"role": "user", "content": f"say {i}"}]} for i in range(16)]
TEXTS = [{"prompt": f"say {i}"} for i in range(16)]
PREFILLED = [{"role": "user", "content": "say it"}, {"role": "assistant", "content": "<think>"}]
STREAM = {"accelerator_config": {"dispatch_batches": False}, "max_steps": 16}
BAD = [
    (TEXTS, "", "no tokens"),
    (TEXTS, None, "text, or messages"),
    (CHATS, [], "text, or messages"),
    (CHATS, None, "text, or messages"),
    (CHATS, [{"role": "user"}], "role and content"),
    (CHATS, [{"content": "say it"}], "role and content"),
    (CHATS, PREFILLED, "ends with a message of the assistant"),
]
ONLY_ARROW_REFUSES = [
    (CHATS, [{"role": "user", "content": 5}], "role and content"),
    (CHATS, [{"role": "user", "content": ["say it"]}], "role and content"),
    (CHATS, ["say it"], "text, or messages"),
    (CHATS, 5, "text, or messages"),
    (CHATS, "say it", "mixes text"),
]


def with_row(rows, prompt, place=5):
    return [*rows[:place], {"prompt": prompt}, *rows[place + 1 :]]


def stream(rows):
    return IterableDataset.from_generator(lambda: iter(rows))


SETS = [("train_dataset", *bad) for bad in BAD] + [("eval_dataset['b']", *BAD[0])]


@pytest.mark.parametrize("which, rows, prompt, said", SETS)
def test_a_bad_row_of_a_data_set_is_named_before_the_first_step(make_trainer, which, rows, prompt, said):
    data = Dataset.from_list(with_row(rows, prompt))
    sets = {"train_dataset": Dataset.from_list(rows)}
    sets[which.partition("[")[0]] = {"a": sets["train_dataset"], "b": data} if "[" in which else data
    with pytest.raises(InputError) as refused:
        make_trainer(trainer_kwargs=sets, fast=True)
    line = str(refused.value)
    assert line.startswith(f"{which}, row 5: prompt=")
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize("rows, prompt, said", [BAD[0], BAD[-1], *ONLY_ARROW_REFUSES])
def test_a_bad_row_of_a_stream_is_named_as_it_comes(make_trainer, rows, prompt, said):
    trainer = make_trainer(trainer_kwargs={"train_dataset": stream(with_row(rows, prompt))}, **STREAM)
    with pytest.raises(InputError, match=said):
        trainer.train()


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


def test_a_row_that_the_chat_template_refuses_is_named(make_trainer, tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    refusal = "{% if messages[0].role == 'system' %}{{ raise_exception('no user') }}{% endif %}"
    tokenizer.chat_template = refusal + tokenizer.chat_template
    rows = Dataset.from_list(with_row(CHATS, [{"role": "system", "content": "be brief"}]))
    with pytest.raises(InputError, match="train_dataset, row 5.*no user"):
        make_trainer(trainer_kwargs={"train_dataset": rows, "processing_class": tokenizer})


def test_messages_without_a_chat_template_are_refused_and_text_is_taken(make_trainer, tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = None
    make_trainer(trainer_kwargs={"train_dataset": Dataset.from_list(TEXTS), "processing_class": tokenizer})
    with pytest.raises(InputError, match="train_dataset, row 0: .* no chat template. Set tokenizer.chat_template"):
        make_trainer(trainer_kwargs={"train_dataset": Dataset.from_list(CHATS), "processing_class": tokenizer})


def test_prompts_that_a_transform_makes_of_another_column_train_as_with_trl(run, make_trainer, largest_difference):
    def ask(rows):
        return {"prompt": [f"say {number}" for number in rows["n"]]}

    numbers = Dataset.from_dict({"n": [*range(16)]})
    given = {"train_dataset": numbers.with_transform(ask)}
    assert largest_difference(run(trainer_kwargs=given), run(GRPOTrainer, trainer_kwargs=given)) == 0.0
    assert make_trainer(trainer_kwargs=given, pack_groups="auto", pack_max_tokens=60).acceleration.packs
    for rows in (numbers, numbers.add_column("prompt", [""] * 16)):  # the state of a pool has hashes of prompts
        trainer = run(trainer_kwargs={"train_dataset": rows.with_transform(ask)}, prompt_pool=True, max_steps=1)
        assert len({name for _, name, *_ in trainer.prompt_pool.state_dict()["prompts"]}) == 2


def test_what_trl_takes_is_taken(make_trainer):
    """Blank texts, empty messages, system messages alone, and columns of other names."""
    for prompt in (" ", [{"role": "user", "content": ""}], [{"role": "system", "content": "be brief"}]):
        rows = [{"prompt": prompt, "completion": "x", "environments": "y"}] * 16
        make_trainer(trainer_kwargs={"train_dataset": Dataset.from_list(rows)})


def test_a_column_that_no_reward_function_would_get_is_refused_unless_it_is_left_out(make_trainer):
    rows = [{**row, "log_extra": "x"} for row in CHATS]
    data = Dataset.from_list(rows)
    with pytest.raises(InputError, match="train_dataset has a column 'log_extra'"):
        make_trainer(trainer_kwargs={"train_dataset": data})
    with pytest.raises(InputError, match="eval_dataset has a column 'log_extra'"):
        make_trainer(trainer_kwargs={"eval_dataset": data})
    make_trainer(trainer_kwargs={"train_dataset": data, "eval_dataset": data}, remove_unused_columns=True)
    with pytest.raises(InputError, match="train_dataset has a column 'log_extra'"):
        make_trainer(trainer_kwargs={"train_dataset": stream(rows)}, **STREAM).train()


def test_a_reward_model_gets_no_columns(make_trainer, tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = AutoConfig.from_pretrained(tiny_model, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    judge = AutoModelForSequenceClassification.from_config(config)
    rows = Dataset.from_list([{**row, "completions": "x"} for row in CHATS])
    given = {"train_dataset": rows, "reward_processing_classes": tokenizer}
    make_trainer(reward=judge, trainer_kwargs=given, max_steps=1).train()


def gpt2(positions):
    return GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=positions, n_embd=32, n_layer=2, n_head=2))


LONG = with_row(TEXTS, "x" * 60)


@pytest.mark.parametrize("source", [Dataset.from_list, stream])
def test_a_prompt_beyond_a_table_of_positions_is_refused(make_trainer, source):
    """60 tokens, a byte each, and 6 of the completion: 66 positions hold them, and 65 do not."""
    keys = {"lora": False, "trainer_kwargs": {"train_dataset": source(LONG)}, **STREAM}
    make_trainer(model=gpt2(66), **keys).train()
    with pytest.raises(InputError, match="60 tokens.* 65"):
        make_trainer(model=gpt2(65), **keys).train()


@pytest.mark.parametrize("source", [Dataset.from_list, stream])
def test_a_prompt_beyond_rotary_positions_is_said_once(make_trainer, tiny_model, source, caplog):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.config.max_position_embeddings = 65
    rows = with_row(LONG, "x" * 61, 7)
    make_trainer(model=model, trainer_kwargs={"train_dataset": source(rows)}, **STREAM).train()
    said = [message for message in caplog.messages if "context of 65" in message]
    assert len(said) == 1
    if source is not stream:
        assert "row 7: the prompt has 61 tokens" in said[0]


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
