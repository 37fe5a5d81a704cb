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
from transformers import AutoTokenizer, set_seed
from trl import ModelConfig, SFTConfig, SFTTrainer, get_peft_config

from eval.samples.models import load_model
from eval.samples.sampling import SamplingSettings, prepare_for_sampling, sample
from trl_prorl.config import ProRLConfig
from trl_prorl.errors import RunError
from trl_prorl.launch.recipe import RecipeParser, TaskArguments
from trl_prorl.record.provenance import write_config, write_env
from trl_prorl.record.run_files import ENV_FILE, METRICS_FILE, read_json
from trl_prorl.tasks.base import Task
from trl_prorl.train import find_model


TEXTS = 16  # of the base, for each question
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
    """What the base wrote: `texts`, as many of each question, and the number of their `tokens`."""

    texts: list[list[str]]
    tokens: int


def read_recipe(path: Path) -> FineTuningRecipe:
    """Read the recipe of a file, with the product's checks."""
    parser = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
    task, training, model = parser.parse_args_and_config(["--config", str(path)])
    return FineTuningRecipe(task, training, model)


def draw(base: str, tokenizer, task: Task, rows: list[dict], longest: int) -> Drawn:
    """Draw 16 texts of the base for each question, at T = 1, of at most `longest` tokens."""
    model, compact = prepare_for_sampling(load_model(base, torch.float32))
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


def settings(recipe: FineTuningRecipe, folder: Path) -> SFTConfig:
    """
    Return TRL's settings of the fine-tuning: every update has as many texts, and the loss is that of the completion.
    """
    training = recipe.training
    return SFTConfig(
        output_dir=str(folder),
        max_steps=training.max_steps,
        per_device_train_batch_size=training.per_device_train_batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        learning_rate=training.learning_rate,
        lr_scheduler_type=training.lr_scheduler_type,
        max_grad_norm=training.max_grad_norm,
        weight_decay=training.weight_decay,
        seed=training.seed,
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


def make_trainer(recipe: FineTuningRecipe, base: str, tokenizer, rows: list[dict], folder: Path) -> SFTTrainer:
    """Make TRL's trainer of the demonstrations. Raises `RunError`: there are too few for one update."""
    args = settings(recipe, folder)
    texts = args.per_device_train_batch_size * args.gradient_accumulation_steps
    if len(rows) < texts:
        raise RunError(f"the base wrote {len(rows)} different texts with full reward, and an update needs {texts}")
    return SFTTrainer(
        model=load_model(base, torch.float32),
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=get_peft_config(recipe.model),
    )


def metric_rows(log_history: list[dict], tokens: int) -> list[dict]:
    """Return a row of the record for each update; the first has the tokens that were drawn before it."""
    rows = []
    for entry in log_history:
        if "loss" not in entry:  # the trainer's summary
            continue
        drawn = 0 if rows else tokens
        row = {"step": entry["step"], "loss": entry["loss"], "grad_norm": entry["grad_norm"]}
        rows.append(row | {"tokens_generated": drawn})
    return rows


def write_record(folder: Path, recipe: FineTuningRecipe, trainer: SFTTrainer, tokens: int) -> None:
    """Write `config.yaml`, `env.json` and `metrics.jsonl`, by which a run's folder is read."""
    write_config(folder, recipe.training, (recipe.task, recipe.model))
    write_env(folder, recipe.training, trainer.model, base=recipe.model.model_name_or_path)
    env = read_json(folder / ENV_FILE) | {"variant": VARIANT}
    (folder / ENV_FILE).write_text(json.dumps(env, indent=2) + "\n")
    rows = metric_rows(trainer.state.log_history, tokens)
    (folder / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))


def fine_tune(recipe: FineTuningRecipe) -> None:
    """Draw, choose and train, and leave the run's folder, which appears once it is whole."""
    folder = Path(recipe.training.output_dir)
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    base = find_model(recipe.model.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    task = recipe.task.make_task()
    rows = list(task.rows("train", recipe.task.train_rows, seed=recipe.task.task_seed))
    set_seed(recipe.training.seed)
    drawn = draw(base, tokenizer, task, rows, recipe.training.max_completion_length)
    chosen = demonstrations(task, rows, drawn.texts)
    print(f"{len(chosen)} demonstrations for {len(rows)} questions", flush=True)
    trainer = make_trainer(recipe, base, tokenizer, chosen, aside)
    trainer.train()
    trainer.save_model()
    write_record(aside, recipe, trainer, drawn.tokens)
    aside.rename(folder)


def main() -> int:
    path = Path(sys.argv[1])
    for left in path.parent.glob(f"{path.stem}.*.tmp"):  # of an attempt that was cut short
        shutil.rmtree(left)
    fine_tune(read_recipe(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
