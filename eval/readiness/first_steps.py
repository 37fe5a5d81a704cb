"""The first optimizer steps of a run, done for real in a folder that is thrown away."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from transformers import TrainerCallback

from trl_prorl.eval.readiness.growth_memory import bytes_of_growth, largest_rank
from trl_prorl.record.run_files import METRICS_FILE


MOST = 2


@dataclass(frozen=True)
class FirstSteps:
    """
    Attributes:
        rows (`list[dict]`): Rows of the record.
        max_steps (`int`): Optimizer steps of the whole run.
        steps_per_generation (`float`): Optimizer steps from one generation to the next.
        held_gib (`float`): Memory between two steps, of weights and optimizer.
        total_gib (`float`): Memory that there is for this process.
        on_gpu (`bool`): Whether memory is a GPU's, and measured.
        growth_gib (`float`): What a growing adapter takes beyond that at the end of the run.
        rank (`int`): The rank of a growing adapter at the end of the run; 0 if none grows.
    """

    rows: list[dict]
    max_steps: int
    steps_per_generation: float
    held_gib: float
    total_gib: float
    on_gpu: bool
    growth_gib: float = 0.0
    rank: int = 0


class StopAfter(TrainerCallback):
    """Stops a run after some steps, each of which it tells; its schedule is that of the whole run."""

    def __init__(self, steps: int, tell: Callable[[str], None]):
        self.steps, self.tell = steps, tell

    def on_step_end(self, args, state, control, **kwargs):
        self.tell(f"step {state.global_step} of {self.steps} is done")
        if state.global_step >= self.steps:
            control.should_training_stop = True


def first_steps(trainer, steps: int = MOST, tell: Callable[[str], None] = lambda line: None) -> FirstSteps:
    """
    Train a few steps.

    Args:
        trainer ([`ProRLTrainer`]): Its `output_dir` is thrown away by the caller; it neither saves nor evaluates.
        steps (`int`, *optional*, defaults to `2`): Most optimizer steps.
        tell (`Callable`, *optional*): Gets a line after each.
    """
    growth = trainer.parts.get("growth")
    first_rank = growth.rank if growth else 0
    trainer.add_callback(StopAfter(steps, tell))
    trainer.train()
    args, device = trainer.args, trainer.accelerator.device
    rows = [json.loads(line) for line in Path(trainer.run_dir, METRICS_FILE).read_text().splitlines()]
    if device.type == "cuda":
        # What other processes hold, and CUDA itself, is not there for the run.
        held = torch.cuda.memory_allocated(device)
        total = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    else:
        held, total = psutil.Process().memory_info().rss, psutil.virtual_memory().total
    steps_per_generation = args.generate_every / args.gradient_accumulation_steps
    rank = grown = 0
    if growth:
        schedule = (growth.every, growth.step, growth.largest)
        rank = largest_rank(first_rank, *schedule, trainer.state.max_steps, steps_per_generation)
        grown = bytes_of_growth(trainer, rank)
    return FirstSteps(
        rows=rows,
        max_steps=trainer.state.max_steps,
        steps_per_generation=steps_per_generation,
        held_gib=held / 2**30,
        total_gib=total / 2**30,
        on_gpu=device.type == "cuda",
        growth_gib=grown / 2**30,
        rank=rank,
    )
