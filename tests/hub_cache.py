"""A cache of the Hub's client with small stand-ins, so that recipes that name models and data of the Hub run."""

import json
import shutil
from pathlib import Path

import torch
from datasets import load_dataset
from tiny_run import new_model

from trl_prorl.embedded.shipped import byte_tokenizer


COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODELS = ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-Coder-1.5B-Instruct")


def gsm8k_rows(count: int, first: int = 0) -> list[dict[str, str]]:
    """Rows in GSM8K's form: a question in words, and an answer whose last line is `#### ` and the number."""
    rows = []
    for apples in range(first + 3, first + 3 + count):
        question = f"Ann has {apples} apples and buys 2 more. How many apples does she have?"
        answer = f"She has {apples} + 2 = <<{apples}+2={apples + 2}>>{apples + 2}.\n#### {apples + 2}"
        rows.append({"question": question, "answer": answer})
    return rows


def save_brief_model(folder: Path) -> None:
    """A Qwen2 of two small layers with random weights, so inclined to end that completions have a few tokens."""
    tokenizer = byte_tokenizer()
    model = new_model(tokenizer)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        ids = tokenizer("How many apples does she have? 12", return_tensors="pt").input_ids
        mean = model.model(ids).last_hidden_state[0].mean(0)
        model.lm_head.weight[tokenizer.eos_token_id] = 4 * mean / mean.pow(2).sum()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def cache_model(hub: Path, name: str, revisions: dict[str, tuple[str, Path]]) -> None:
    """Put folders into the client's cache, as the commits of a model's revisions: `{"main": (COMMIT, folder)}`."""
    repo = hub / f"models--{name.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    for revision, (commit, folder) in revisions.items():
        shutil.copytree(folder, repo / "snapshots" / commit)
        (repo / "refs" / revision).write_text(commit)


def fill_hf_home(home: Path, train: int, test: int) -> None:
    """
    Put a small model under the names of [`MODELS`], and a few rows under `openai/gsm8k`, for an offline client.

    Args:
        home (`Path`): For `HF_HOME`.
        train (`int`), test (`int`): Rows of the splits.
    """
    for name in MODELS:
        save_brief_model(home / "brief")
        cache_model(home / "hub", name, {"main": (COMMIT, home / "brief")})
    files = {}
    for split, rows in (("train", gsm8k_rows(train)), ("test", gsm8k_rows(test, first=train))):
        files[split] = str(home / f"{split}.json")
        Path(files[split]).write_text(json.dumps(rows))
    load_dataset("json", data_files=files, cache_dir=str(home / "made"))
    (made,) = {path.parent for path in (home / "made").rglob("dataset_info.json")}
    cached = home / "datasets" / "openai___gsm8k" / "main" / "0.0.0" / COMMIT
    shutil.copytree(made, cached)
    for path in cached.glob("*.arrow"):
        path.rename(path.with_name(path.name.replace("json-", "gsm8k-")))
    info = json.loads((cached / "dataset_info.json").read_text())
    info |= {"config_name": "main", "dataset_name": "gsm8k", "builder_name": "parquet"}
    (cached / "dataset_info.json").write_text(json.dumps(info))
