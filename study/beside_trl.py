"""
`python -m study.beside_trl --model_name_or_path MODEL --dataset_name GSM8K`: what two steps of the Qwen cost.

TRL's trainer and ours run one after the other, each in a process of its own on one thread. Both begin with the same
questions, weights and settings, those of the recipe `plain`. Their texts are drawn from the same distribution by other
random numbers. Seconds are of the CPU, so that other work on the machine does not count.
"""

import argparse
import functools
import multiprocessing
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pandas as pd
import torch
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, get_peft_config

from eval.command import command
from study.tables import FOLDER
from trl_prorl import ProRLTrainer
from trl_prorl.interrupt import NOTHING_CHANGED
from trl_prorl.launch.model_name import find_model
from trl_prorl.launch.recipe import parse_recipe
from trl_prorl.train import rows_of


COSTS = FOLDER / "qwen_cost.csv"  # a row for each optimizer step of a trainer
RECIPE = Path("recipes", "gsm8k", "qwen2.5-coder-1.5b-cpu", "plain.yaml")
TRAINERS = {"TRL": GRPOTrainer, "ours": ProRLTrainer}
# What TRL is told of the recipe; the other keys are ours, or say where a run lies and how often it is saved.
KEYS_OF_TRL = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "num_generations",
    "num_iterations",
    "max_completion_length",
    "temperature",
    "learning_rate",
    "lr_scheduler_type",
    "beta",
    "seed",
    "use_cpu",
    "bf16",
    "max_steps",
    "logging_steps",
)


class CpuSeconds(TrainerCallback):
    """Holds the CPU seconds of each step, and those of them in which completions were sampled."""

    def __init__(self):
        self.began = 0.0
        self.sampling = 0.0
        self.steps: list[dict[str, float]] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = time.process_time()
        self.sampling = 0.0

    def on_step_end(self, args, state, control, **kwargs):
        seconds = time.process_time() - self.began
        self.steps.append({"step": state.global_step, "sampling": self.sampling, "update": seconds - self.sampling})

    def time_sampling(self, sample):
        """Return `sample`, whose seconds are counted."""

        @functools.wraps(sample)
        def timed(*args, **kwargs):
            began = time.process_time()
            result = sample(*args, **kwargs)
            self.sampling += time.process_time() - began
            return result

        return timed


def trl_config(args) -> GRPOConfig:
    """Return TRL's own configuration of a recipe."""
    keys = {key: getattr(args, key) for key in KEYS_OF_TRL}
    return GRPOConfig(output_dir=args.output_dir, save_strategy="no", report_to="none", disable_tqdm=True, **keys)


def measure(trainer_name: str, options: list[str]) -> pd.DataFrame:
    """
    Train for two steps, in a process of its own.

    Returns:
        `pd.DataFrame`: A row for each step, with the trainer's name, CPU seconds, mean tokens of a completion, and the
        most memory that the process has held, in GB.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for_this = ["--max_steps", "2", "--logging_steps", "1", "--output_dir", folder, "--save_strategy", "no"]
        task_args, args, model_args = parse_recipe(["--config", str(RECIPE), "--bf16", "false", *for_this, *options])
        task = task_args.make_task()
        model = find_model(model_args.model_name_or_path, init={})
        trainer_class = TRAINERS[trainer_name]
        trainer = trainer_class(
            model=model,
            reward_funcs=task_args.make_rewards(task, args.max_completion_length),
            args=args if trainer_class is ProRLTrainer else trl_config(args),
            train_dataset=rows_of(task, "train", "train_rows", task_args),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left", truncation_side="left"),
            peft_config=get_peft_config(model_args),
        )
        watch = CpuSeconds()
        trainer.add_callback(watch)
        trainer._generate_single_turn = watch.time_sampling(trainer._generate_single_turn)
        trainer.train()
    found = pd.DataFrame(watch.steps)
    found.insert(0, "trainer", trainer_name)
    found["tokens"] = trainer.state.log_history[0]["completions/mean_length"]  # both steps use one batch
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return found


@functools.partial(command, kept=NOTHING_CHANGED)
def main(argv: list[str] | None = None) -> None:
    """Entry point: the options are keys of the recipe."""
    parser = argparse.ArgumentParser(prog="python -m study.beside_trl", description=__doc__.split("\n\n")[1])
    parser.add_argument("--trainers", nargs="+", choices=list(TRAINERS), default=list(TRAINERS))
    options, keys = parser.parse_known_args(argv)
    parts = []
    for name in options.trainers:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            parts.append(pool.submit(measure, name, keys).result())
        print(parts[-1].to_string(index=False))
    pd.concat(parts).round(2).to_csv(COSTS, index=False)
    print(COSTS)


if __name__ == "__main__":
    sys.exit(main())
