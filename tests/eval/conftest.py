"""Synthetic run folders, as a training run would have left them."""

import functools
import itertools
import shutil

import numpy as np
import pytest
import run_record
import torch
import yaml
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tiny_run import save_tiny_model
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, set_seed

from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.tasks.base import Task


CHARACTERS = "0123456789abcdef"
NEW_TOKENS = 6


def build_passk_result(base, trained, n=8, **changes):
    """
    `passk.json` from counts of correct samples per prompt; pass@1 by definition, made-up numbers for pass@4 and 8.
    """
    sides = {}
    for side, counts in (("base", base), ("trained", trained)):
        mean = float(np.mean(counts)) / n
        sides[side] = {"pass@1": mean, "interval@1": [mean - 0.05, mean + 0.05], "correct": list(counts)}
        for k in (4, 8):
            sides[side] |= {f"pass@{k}": min(1.0, mean + 0.1 * k), f"interval@{k}": [0.0, 1.0]}
    return {
        "split": "test",
        "prompts": len(base),
        "n": n,
        "k": [1, 4, 8],
        "temperature": 1.0,
        "max_new_tokens": 512,
        "prompt_ids": [f"p{place}" for place in range(len(base))],
        "seed": 0,
        "task": "reverse_digits",
        "level": 3,
        **sides,
        **changes,
    }


def write_run(root, name, variant, rows, events=(), config=None, env=None, **others):
    config = {"model_name_or_path": "tiny", "task": "reverse_digits", "task_level": 3, **(config or {})}
    env = {"variant": variant, "seed": 0, **(env or {})}
    return run_record.write_run(root / name, config, rows, events, env=env, **others)


@pytest.fixture(scope="session")
def run_writer():
    """Writes a run folder below the folder given first; `rows` are the lines of metrics.jsonl."""
    return write_run


@pytest.fixture
def make_run(tmp_path):
    """Writes a run folder below `tmp_path/runs`; `rows` are the lines of metrics.jsonl."""
    return functools.partial(write_run, tmp_path / "runs")


@pytest.fixture(scope="session")
def passk_result():
    return build_passk_result


@pytest.fixture(scope="session")
def make_rows():
    """Lines of metrics.jsonl, one per step from 1; a value is a constant or a function of the step."""

    def make(steps=20, **values):
        return [
            {"step": step, **{key: value(step) if callable(value) else value for key, value in values.items()}}
            for step in range(1, steps + 1)
        ]

    return make


@pytest.fixture
def read_run(make_run, make_rows):
    """
    A function: a run that is written and read. `read_run("A", 1, reward=0.5)` has seed 1, the name `A1` and four rows
    with that reward. With `trained`, correct ones of 8 samples by prompt, it is evaluated, and `base` are those of the
    base model; `passk` is what else the evaluation says. Timed runs train one after the other, a day each.
    """
    days = itertools.count(1)

    def make(variant, seed=0, name=None, steps=4, base=None, trained=None, passk=None, config=None, env=None, **keys):
        files = {key: keys.pop(key) for key in ("events", "evaluations", "drift") if key in keys}
        if trained is not None:
            files["passk"] = build_passk_result(base or [1] * len(trained), trained, **(passk or {}))
        files |= {"config": config, "env": {"seed": seed, **(env or {})}}
        day = next(days)
        if "time_step" in keys:
            keys.setdefault("time_ended", lambda step: 86_400.0 * day + 100.0 * step)
        return load_run(make_run(name or f"{variant}{seed}", variant, make_rows(steps, **keys), **files))

    return make


class ParityTask(Task):
    """Correct is a completion whose number of even digits has the row's parity: about half of all completions."""

    def __init__(self):
        self.seen = []

    def rows(self, split, n, seed=0):
        prompts = ["7" * (1 + i % 5) + str(i) + split[0] + str(seed) for i in range(n)]
        return Dataset.from_dict(
            {"prompt": [[{"role": "user", "content": p}] for p in prompts], "answer": [i % 2 for i in range(n)]}
        )

    def verify(self, completion, row):
        self.seen.append(completion)
        return sum(character in "02468" for character in completion) % 2 == row["answer"]


@pytest.fixture
def task(monkeypatch):
    task = ParityTask()
    monkeypatch.setattr("trl_prorl.tasks.registry.get_task", lambda name, **options: task)
    return task


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A random two-layer model and a tokenizer with one token per character."""
    path = tmp_path_factory.mktemp("base")
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *CHARACTERS, "t", ">"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    ends = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    template = "{{ messages[0]['content'] }}{% if add_generation_prompt %}>{% endif %}"
    save_tiny_model(path, PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **ends))
    return path


@pytest.fixture(scope="session")
def random_adapter(base, tmp_path_factory):
    """A function: the folder of a LoRA adapter that differs from base, one for each seed."""

    @functools.cache
    def make(seed):
        folder = tmp_path_factory.mktemp("adapter")
        set_seed(seed)
        lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora).save_pretrained(folder)
        return folder

    return make


@pytest.fixture
def run_dir(base, random_adapter, tmp_path):
    """A finished run with a LoRA adapter that differs from base."""
    path = tmp_path / "A"
    shutil.copytree(random_adapter(1), path)
    for file in base.iterdir():
        if "token" in file.name or "template" in file.name:
            shutil.copy(file, path)
    config = {
        "model_name_or_path": str(base),
        "task": "parity",
        "temperature": 0.7,
        "max_completion_length": NEW_TOKENS,
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="session")
def change_config():
    """Writes other keys into the configuration of a run."""

    def change(folder, **keys):
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | keys))

    return change


@pytest.fixture
def greedy_by_hand():
    """One prompt, no padding, no cache, no `generate`: the text that a model says, at most `NEW_TOKENS` long."""

    @torch.no_grad()
    def greedy(model, tokenizer, text):
        model.eval()
        tokens = tokenizer(text, return_tensors="pt")["input_ids"]
        length = tokens.shape[1]
        for _ in range(NEW_TOKENS):
            token = model(input_ids=tokens).logits[0, -1].argmax()
            if token == tokenizer.eos_token_id:
                break
            tokens = torch.cat([tokens, token.view(1, 1)], dim=1)
        return tokenizer.decode(tokens[0, length:], skip_special_tokens=True)

    return greedy


@pytest.fixture
def add_checkpoints(random_adapter):
    """Adds checkpoints of these steps to a run: adapters of random weights, every one its own."""

    def add(folder, *steps):
        for step in steps:
            shutil.copytree(random_adapter(step), folder / f"checkpoint-{step}")

    return add
