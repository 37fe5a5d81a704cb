"""
Blocks `qwen_arms` and `qwen_base` of the fourth protocol: trains a variant of the Qwen, or takes it untrained, draws
its texts of at most 512 tokens, and commits steps and texts in the tables. From a worktree of the frozen commit, a
variant at a time; the same command goes on after a stop:

    python -m study.qwen_runs A --tables MAIN/study/tables --model FOLDER --data FOLDER

Texts of the model are kept, with a hash of the question; no question is.
"""

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path

import pandas as pd
import torch
import yaml
from peft import PeftModel
from transformers import AutoTokenizer, set_seed

from study.frozen import check_at_frozen_commit, commit_tables, git, holding
from study.qwen import read_steps, replace_rows
from study.runner import NICE, PLACE, run_process, say
from trl_prorl.environment import cpu_computes_bf16
from trl_prorl.errors import InputError
from trl_prorl.eval.command import command
from trl_prorl.eval.samples.sampling import SamplingSettings, prepare_for_sampling, sample
from trl_prorl.eval.samples.store import content_ids
from trl_prorl.files import replaced
from trl_prorl.launch.recipe_yaml import read_recipe
from trl_prorl.tasks import get_task
from trl_prorl.tasks.base import Task
from trl_prorl.weights import load_model


RECIPE = Path("recipes", "gsm8k", "qwen2.5-coder-1.5b-cpu", "base.yaml")
RESET = {"beta": 0.3, "ref_reset_every": 10}
# In the order of the protocol. `qwen_arms`: the keys of each.
TRAINED = {
    "A": RESET,
    "control": {"beta": 0.3},
    "C_hard": {**RESET, "optimizer_reset": "hard"},
    "C_soft0.1": {**RESET, "optimizer_reset": "soft", "optimizer_reset_alpha": 0.1},
    "B": {"beta_old": 0.02},
}
UNTRAINED = ("base", "base_default", "base_4shot")  # `qwen_base`: the recipe's prompt, the task's, four examples
# Of all: the seed of plain's second run, its steps, and the precision that it chose.
OF_ALL = {"seed": 2, "max_steps": 20, "bf16": True, "dtype": "bfloat16", "report_to": "none", "disable_tqdm": True}
QUESTIONS = 100
SAMPLES = 2
LONGEST = 512  # tokens
CUT = 200  # tokens: the recipe's limit, at which the same texts are scored again
TOGETHER = 32  # texts of one call of `generate`
SHOTS = 4
STEPS = "qwen_steps.csv"
TEXTS = "qwen_texts.csv.gz"


def examples(data: Path, instruction: str) -> list[dict]:
    """Return the turns of the first four training questions, with their solutions, without the calculator's notes."""
    turns = []
    with (data / "train.jsonl").open() as lines:
        for _, line in zip(range(SHOTS), lines, strict=False):
            row = json.loads(line)
            solution = re.sub("<<.*?>>", "", row["answer"])
            turns.append({"role": "user", "content": f"{row['question']}\n{instruction}"})
            turns.append({"role": "assistant", "content": solution})
    return turns


def task_and_rows(name: str, root: Path, data: Path) -> tuple[Task, list[dict], list[str]]:
    """Return the task, the hundred rows as a model is asked, and the names of their questions under the recipe."""
    of_recipe = get_task("gsm8k", path=str(data), **read_recipe(root / RECIPE)["task_options"])
    rows = list(of_recipe.rows("test", QUESTIONS))
    names = content_ids(rows)
    if name in ("base_default", "base_4shot"):
        task = get_task("gsm8k", path=str(data))
        rows = list(task.rows("test", QUESTIONS))
        turns = examples(data, task.instruction) if name == "base_4shot" else []
        return task, [{**row, "prompt": [*turns, *row["prompt"]]} for row in rows], names
    return of_recipe, rows, names


def draw(
    model, compact: bool, tokenizer, task: Task, rows: list[dict], n: int, greedy: bool, place: Path
) -> list[list]:
    """
    Draw n texts of each row, a file for each batch, so that a drawing that was stopped goes on; a batch has a seed of
    its own. Returns, for each row, its texts as [`record`] writes them.
    """
    place.mkdir(parents=True, exist_ok=True)
    sampling = SamplingSettings(temperature=0.0 if greedy else 1.0, max_new_tokens=LONGEST)
    together = TOGETHER // n
    found = []
    for start in range(0, len(rows), together):
        file = place / f"{'greedy' if greedy else 'sampled'}-{start}.json"
        if not file.is_file():
            batch = rows[start : start + together]
            set_seed(start + 1)
            drawn = sample(model, tokenizer, task, batch, n, sampling, compact=compact)
            texts = [
                [record(one, tokenizer, task, row) for one in ones] for ones, row in zip(drawn, batch, strict=True)
            ]
            with replaced(file) as aside:
                aside.write_text(json.dumps(texts))
            say(f"{file.name} of {len(rows)} questions")
        found += json.loads(file.read_text())
    return found


def record(one, tokenizer, task: Task, row: dict) -> dict:
    """Return what is kept of a text, with its score when it is cut at 200 tokens."""
    whole = {"tokens": len(one.ids), "truncated": int(one.truncated), "correct": int(one.correct)}
    cut = {"truncated_200": int(len(one.ids) > CUT), "correct_200": whole["correct"]}
    if cut["truncated_200"]:
        cut["correct_200"] = int(task.verify(tokenizer.decode(one.ids[:CUT], skip_special_tokens=True), row))
    return {**whole, **cut, "text": json.dumps(one.text)}


def train(name: str, root: Path, folder: Path, model: Path, data: Path) -> None:
    """Train a variant, or go on with it from its checkpoint. Raises `RunError`: it left no model."""

    def is_trained() -> bool:
        return (folder / "adapter_model.safetensors").exists()

    if is_trained():
        return
    of_run = {"model_name_or_path": str(model), "dataset_name": str(data), "output_dir": str(folder)}
    recipe = folder.with_name(f"{name}.yaml")
    recipe.write_text(yaml.safe_dump({**read_recipe(root / RECIPE), **OF_ALL, **TRAINED[name], **of_run}))
    arguments = [str(root / "recipes" / "grpo_variantA.py"), "--config", str(recipe)]
    if any(folder.glob("checkpoint-*")):
        arguments += ["--resume_from_checkpoint", "True"]
    for _ in run_process(arguments, root, folder.with_name(f"{name}.log"), is_trained):
        time.sleep(1)


def text_rows(name: str, root: Path, folder: Path, model: Path, data: Path) -> pd.DataFrame:
    """Draw the texts of a model, greedy and sampled (4-shot greedy alone), and return a row for each."""
    dtype = torch.bfloat16 if cpu_computes_bf16() else torch.float32
    loaded = load_model(str(model), dtype=dtype)
    if name in TRAINED:
        loaded = PeftModel.from_pretrained(loaded, folder)
    loaded, compact = prepare_for_sampling(loaded)
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    task, rows, names = task_and_rows(name, root, data)
    precision = str(dtype).removeprefix("torch.")
    place = folder.with_name(f"{name}.texts-{precision}")
    found = []
    for greedy in (True, False):
        if name == "base_4shot" and not greedy:
            continue
        drawn = draw(loaded, compact, tokenizer, task, rows, 1 if greedy else SAMPLES, greedy, place)
        for question, texts in zip(names, drawn, strict=True):
            for number, text in enumerate(texts):
                of_text = {"model": f"{name}_512", "decoding": "greedy" if greedy else "sampled", "prompt": question}
                found.append({**of_text, "sample": number, **text})
    table = pd.DataFrame(found)
    return table.assign(dtype=precision, commit=git(root, "rev-parse", "HEAD"))


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m study.qwen_runs", description=__doc__.strip().split("\n")[0])
    parser.add_argument("name", choices=(*TRAINED, *UNTRAINED))
    for option in ("tables", "model", "data"):
        parser.add_argument(f"--{option}", type=Path, required=True, help="a folder")
    args = parser.parse_args(argv)
    for folder in (args.tables, args.model, args.data):
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder")
    root = Path.cwd()
    tables = args.tables.resolve()
    model = args.model.resolve()
    data = args.data.resolve()
    check_at_frozen_commit(root, tables)
    folder = root / PLACE / "qwen" / f"{args.name}_seed2"
    folder.parent.mkdir(parents=True, exist_ok=True)
    if args.name in TRAINED:
        train(args.name, root, folder, model, data)
    os.nice(NICE)
    texts = text_rows(args.name, root, folder, model, data)
    with holding(tables):
        replace_rows(tables / TEXTS, "model", texts)
        if args.name in TRAINED:
            replace_rows(tables / STEPS, "arm", read_steps(folder))
        commit_tables(tables, f"Study: the Qwen, {args.name}, at {LONGEST} tokens", (STEPS, TEXTS))
    print(texts.groupby("decoding")[["correct", "correct_200", "truncated", "tokens"]].mean().to_string())


if __name__ == "__main__":
    kept = "texts that were drawn and checkpoints are kept; the same command goes on."
    sys.exit(command(main, kept=kept)(None))
