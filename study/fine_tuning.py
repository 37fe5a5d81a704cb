"""
Rejection-sampling fine-tuning: texts of the base that the reward pays in full are its demonstrations. The runner
starts it in place of the product's training where an arm has `trained_by: study.fine_tuning`:

    python -m study.fine_tuning runs/study/…/rejection_sampling-seed41-600.yaml

The recipe is that of the family: from it are the base, the questions, LoRA, the rate, the number of updates and the
texts of one. The folder that it leaves is read like any other run's.
"""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoTokenizer, set_seed
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config

from trl_prorl.config import ProRLConfig
from trl_prorl.errors import RunError
from trl_prorl.eval.samples.sampling import SamplingSettings, prepare_for_sampling, sample
from trl_prorl.launch.recipe import RecipeParser, TaskArguments
from trl_prorl.record.provenance import write_config, write_env
from trl_prorl.record.run_files import ENV_FILE, METRICS_FILE, read_json
from trl_prorl.tasks.base import Task
from trl_prorl.train import find_model
from trl_prorl.weights import load_model


TEXTS = 16  # for each question
TEMPERATURE = 1.0
TOGETHER = 32  # questions of one call of `generate`
FULL = 1.0  # the highest reward
VARIANT = "fine-tuning"  # in env.json: it is none of the product's


@dataclass(frozen=True)
class FineTuningRecipe:
    """A run's recipe: the task, the training and the model."""

    task: TaskArguments
    training: ProRLConfig
    model: ModelConfig


@dataclass(frozen=True)
class Drawn:
    """What a model wrote: `texts`, as many of each question, and the number of their `tokens`."""

    texts: list[list[str]]
    tokens: int


def read_recipe(path: Path) -> FineTuningRecipe:
    """Read the recipe of a file, with the product's checks."""
    parser = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
    task, training, model = parser.parse_args_and_config(["--config", str(path)])
    return FineTuningRecipe(task, training, model)


def draw(model, tokenizer, task: Task, rows: list[dict], longest: int) -> Drawn:
    """Draw 16 texts of a loaded model for each question, at T = 1, of at most `longest` tokens."""
    model, compact = prepare_for_sampling(model)
    sampling = SamplingSettings(temperature=TEMPERATURE, max_new_tokens=longest)
    texts = []
    tokens = 0
    for start in range(0, len(rows), TOGETHER):
        together = rows[start : start + TOGETHER]
        for of_question in sample(model, tokenizer, task, together, TEXTS, sampling, compact=compact):
            texts.append([one.text for one in of_question])
            tokens += sum(len(one.ids) for one in of_question)
    return Drawn(texts, tokens)


def paid_texts(task: Task, row: dict, texts: list[str]) -> list[str]:
    """Return the different texts of a question that get the full reward, in the order of drawing."""
    rewards = task.reward_many(texts, [row] * len(texts))
    paid = [text for text, reward in zip(texts, rewards, strict=True) if reward >= FULL]
    return list(dict.fromkeys(paid))


def demonstrations(task: Task, rows: list[dict], texts: list[list[str]]) -> list[dict]:
    """Return prompt and completion, as messages, of every paid text."""
    found = []
    for row, of_question in zip(rows, texts, strict=True):
        for text in paid_texts(task, row, of_question):
            answer = [{"role": "assistant", "content": text}]
            found.append({"prompt": row["prompt"], "completion": answer})
    return found


def settings(recipe: FineTuningRecipe, folder: Path, round_number: int, rounds: int) -> SFTConfig:
    """
    Return TRL's settings of a round's fine-tuning: every update has as many texts, and the loss is that of the
    completion. Each round has its part of the steps, and a seed of its own.
    """
    training = recipe.training
    return SFTConfig(
        output_dir=str(folder),
        max_steps=training.max_steps // rounds,
        per_device_train_batch_size=training.per_device_train_batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.lr_scheduler_type,
        max_grad_norm=training.max_grad_norm,
        weight_decay=training.weight_decay,
        seed=training.seed + 1000 * round_number,
        completion_only_loss=True,
        dataloader_drop_last=True,
        use_cpu=training.use_cpu,
        bf16=training.bf16,
        gradient_checkpointing=training.gradient_checkpointing,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def load_policy(base: str, adapter: Path | None):
    """Load the base, with an adapter that can be trained on if there is one."""
    model = load_model(base, dtype=torch.float32)
    return model if adapter is None else PeftModel.from_pretrained(model, adapter, is_trainable=True)


def make_trainer(recipe: FineTuningRecipe, model, tokenizer, rows: list[dict], args: SFTConfig) -> SFTTrainer:
    """
    Make TRL's trainer of the demonstrations: of the recipe's LoRA, or of the adapter that the model has. Raises
    `RunError`: there are too few for one update.
    """
    texts = args.per_device_train_batch_size * args.gradient_accumulation_steps
    if len(rows) < texts:
        raise RunError(f"the model wrote {len(rows)} different texts with full reward, and an update needs {texts}")
    return SFTTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=None if isinstance(model, PeftModel) else get_peft_config(recipe.model),
    )


def metric_rows(log_history: list[dict], tokens: int, done: int = 0) -> list[dict]:
    """
    Return a row of the record for each update; the first has the tokens that were drawn before it. `done` are the
    updates of earlier rounds.
    """
    rows = []
    for entry in log_history:
        if "loss" not in entry:  # the trainer's summary
            continue
        drawn = 0 if rows else tokens
        row = {"step": done + entry["step"], "loss": entry["loss"], "grad_norm": entry["grad_norm"]}
        rows.append(row | {"tokens_generated": drawn})
    return rows


def write_record(folder: Path, recipe: FineTuningRecipe, model, rows: list[dict]) -> None:
    """Write `config.yaml`, `env.json` and `metrics.jsonl`, by which a run's folder is read."""
    write_config(folder, recipe.training, (recipe.task, recipe.model))
    write_env(folder, recipe.training, model, base=recipe.model.model_name_or_path)
    env = read_json(folder / ENV_FILE) | {"variant": VARIANT}
    (folder / ENV_FILE).write_text(json.dumps(env, indent=2) + "\n")
    (folder / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))


def fine_tune(recipe: FineTuningRecipe, rounds: int = 1) -> None:
    """
    Draw, choose and train, so many times over, and leave the run's folder, which appears once it is whole. A round
    draws from the model as it is then; LoRA goes on, Adam begins anew.
    """
    folder = Path(recipe.training.output_dir)
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    base = find_model(recipe.model.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    task = recipe.task.make_task()
    rows = list(task.rows("train", recipe.task.train_rows, seed=recipe.task.task_seed))
    set_seed(recipe.training.seed)
    metrics: list[dict] = []
    adapter = None
    for number in range(rounds):
        drawn = draw(load_policy(base, adapter), tokenizer, task, rows, recipe.training.max_completion_length)
        chosen = demonstrations(task, rows, drawn.texts)
        print(f"{len(chosen)} demonstrations for {len(rows)} questions", flush=True)
        args = settings(recipe, aside, number, rounds)
        trainer = make_trainer(recipe, load_policy(base, adapter), tokenizer, chosen, args)
        trainer.train()
        trainer.save_model()
        metrics += metric_rows(trainer.state.log_history, drawn.tokens, done=len(metrics))
        adapter = aside
    write_record(aside, recipe, trainer.model, metrics)
    aside.rename(folder)


def main(rounds: int = 1) -> int:
    path = Path(sys.argv[1])
    for left in path.parent.glob(f"{path.stem}.*.tmp"):  # of an attempt that was cut short
        shutil.rmtree(left)
    fine_tune(read_recipe(path), rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
