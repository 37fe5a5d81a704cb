"""The first optimizer steps of a run, done in a temporary folder, and the findings about them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import TrainerCallback

from trl_prorl import kl
from trl_prorl.cli.terminal import LORA_RATES
from trl_prorl.eval.readiness.finding import NOT_MEASURED, STOP, Finding, make_finding
from trl_prorl.eval.readiness.memory import GIB
from trl_prorl.eval.readiness.samples_of import SAMPLING, watch
from trl_prorl.kl import completion_mask
from trl_prorl.run.log_files import METRICS_FILE, read_log
from trl_prorl.run.recorder import RunRecorder


STEPS = 2
# Nats per token. Two updates move the embedded models by less than 0.01 with the shipped recipes, by 0.07 at ten times
# their learning rate (learns, and collapses slowly), by 0.11 to 0.4 at twenty times (reward 0 within 20 steps), and by
# 0.5 to 5 above that.
MAX_KL = 0.1
FULL_RATE = 2e-6  # the highest learning rate of full fine-tuning; LoRA needs about ten times as much


class StopAfter(TrainerCallback):
    """
    Stops a run after some steps and reports each of them; the learning-rate schedule is that of the full run.

    Attributes:
        rows (`list[dict]`): By step, numbers that the log files of TRL's trainer lack: memory, and the seconds of
            sampling.
    """

    def __init__(self, steps: int, report: Callable[[str], None]):
        self.steps = steps
        self.report = report
        self.rows: list[dict[str, float]] = []
        self.seconds = 0.0

    def add_seconds(self, call: Callable, *args):
        """Call a method that samples, and add its seconds."""
        began = time.perf_counter()
        result = call(*args)
        self.seconds += time.perf_counter() - began
        return result

    def on_step_begin(self, args, state, control, **kwargs):
        self.seconds = 0.0
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, args, state, control, **kwargs):
        self.report(f"step {state.global_step} of {self.steps} is done")
        row = {"time_rollout": self.seconds}
        if torch.cuda.is_available():
            row["peak_memory_gib"] = torch.cuda.max_memory_allocated() / GIB
        self.rows.append(row)
        if state.global_step >= self.steps:
            control.should_training_stop = True


def first_steps(trainer, report: Callable[[str], None]) -> list[dict]:
    """
    Train the first [`STEPS`], and return their rows of `metrics.jsonl`; `report` gets a line after each step. The
    trainer neither saves nor evaluates, and the caller deletes its `output_dir`.
    """
    stop = StopAfter(STEPS, report)
    trainer.add_callback(stop)
    if not hasattr(trainer, "run_dir"):  # TRL's, which writes no log files
        trainer.add_callback(RunRecorder())
        watch(trainer, SAMPLING, stop.add_seconds)
    trainer.train()
    rows = read_log(Path(trainer.args.output_dir), METRICS_FILE)
    return [measured | row for measured, row in zip(stop.rows, rows, strict=True)]


def rate_findings(rate: float | None, lora: bool) -> list[Finding]:
    """
    Return the finding about the learning rate before any step; `lora`: whether only adapters are trained. An optimizer
    that chooses its rate has none.
    """
    if rate is None:
        return []
    if rate == 0.0:
        return [Finding("learning rate", "0", "no update changes the policy: raise learning_rate", STOP, {"lr": rate})]
    cure = f"suits full fine-tuning, and LoRA learns nothing at it: set learning_rate: {LORA_RATES}"
    return [make_finding("learning rate", f"{rate:g}", lora and rate <= FULL_RATE, cure, lr=rate)]


def kl_finding(
    old: torch.Tensor, new: torch.Tensor, batch: Mapping[str, torch.Tensor], rates: Sequence[float]
) -> Finding:
    """
    Return the finding about KL(old ‖ new) in nats per token. It is the k3 estimate on samples of the old policy, which
    stays finite if the ratio overflows.

    Args:
        old, new (`torch.Tensor` of shape `(B, T)`): Log-probabilities before and after the first updates.
        batch (`Mapping[str, torch.Tensor]`): The samples, with their masks.
        rates (`Sequence[float]`): The updates' learning rates, low in a warm-up.
    """
    what = f"KL between the policies before and after the first {len(rates)} updates"
    mask = completion_mask(batch)
    if not mask.any():  # by mask_truncated_completions
        return Finding(what, f"{NOT_MEASURED}: every completion of the first batch was truncated")
    values = torch.where(mask.bool(), kl.kl_values(old, new, "k3"), 0.0)
    distance = (values.sum() / mask.sum()).item()
    return make_finding(
        what,
        f"{distance:.2g} nats per token, at learning rates {', '.join(f'{rate:g}' for rate in rates)}",
        not distance <= MAX_KL,
        "the first updates destroy the policy: lower learning_rate",
        STOP,
        kl=distance if math.isfinite(distance) else None,
        lr=list(rates),
    )
