"""Trainings of the embedded model that sample for themselves, for checks of what a run does as a whole."""

import warnings
from pathlib import Path

from peft import LoraConfig

from trl_prorl import ProRLConfig, ProRLTrainer, tasks
from trl_prorl.embedded.shipped import embedded_model
from trl_prorl.eval.gpucheck.size import Size


def remainder(completions, **columns) -> list[float]:
    """A reward that teaches nothing, and differs within almost every group."""
    return [float(sum(map(ord, completion[-1]["content"])) % 7) for completion in completions]


def make_run(size: Size, out: Path, keys: dict, **further) -> ProRLTrainer:
    """
    A trainer of the embedded model.

    Args:
        size ([`Size`]): Whose device it uses.
        out (`Path`): Its `output_dir`.
        keys (`dict`): Of its configuration.
        further: Arguments of the trainer, such as `callbacks`.
    """
    shared = {
        "output_dir": str(out),
        "max_steps": 6,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "num_iterations": 2,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "bf16": False,
        "use_cpu": not size.on_card,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 7,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ProRLTrainer(
            model=embedded_model(),
            reward_funcs=remainder,
            args=ProRLConfig(**(shared | keys)),
            train_dataset=tasks.get_task("reverse_digits", level=3).rows("train", 16),
            peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]),
            **further,
        )
