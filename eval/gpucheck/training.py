"""A few steps of an arm, and all that may be compared with another arm's: losses, gradients, weights, the record."""

import contextlib
import io
import json
import tempfile
import warnings
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import TrainerCallback

from trl_prorl.eval.stepcost.batches import Batches
from trl_prorl.eval.stepcost.making import make_trainer


@dataclass
class Trained:
    """
    Attributes:
        losses (`list[float]`): Of every micro-batch.
        gradient (`torch.Tensor`): Before the first update, flat, in float64 on the CPU.
        start, end (`torch.Tensor`): Trained weights before and after, the same.
        rows (`list[dict]`), events (`list[dict]`): The record; empty for TRL's own trainer.
    """

    losses: list[float] = field(default_factory=list)
    gradient: torch.Tensor | None = None
    start: torch.Tensor | None = None
    end: torch.Tensor | None = None
    rows: list[dict] = field(default_factory=list)
    events: list[dict] = field(default_factory=list)


class FirstGradient(TrainerCallback):
    """Keeps the gradient of the first update."""

    def __init__(self, kept: Trained):
        self.kept = kept

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self.kept.gradient is None:
            self.kept.gradient = flat(model, "grad")


def flat(model: torch.nn.Module, what: str = "data") -> torch.Tensor:
    """The trained parameters of a model, or their gradients, in one row."""
    chosen = [param for param in model.parameters() if param.requires_grad]
    values = [param.grad if what == "grad" else param.detach() for param in chosen]
    zeros = [torch.zeros_like(param) if value is None else value for param, value in zip(chosen, values, strict=True)]
    return torch.cat([value.detach().double().flatten().cpu() for value in zeros])


def train(arm: tuple, args: Namespace, batches: Batches, iterations: int, checkpointing: bool = False) -> Trained:
    """
    Train an arm from the same beginning.

    Args:
        arm (`tuple`): A trainer's class and its keys.
        args (`argparse.Namespace`), batches ([`Batches`]), iterations (`int`), checkpointing (`bool`):
            As `eval.stepcost.making.make_trainer` takes them.
    """
    kept = Trained()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        trainer = make_trainer("arm", arm, args, batches, iterations, checkpointing, folder)
        step = trainer.training_step

        def watched(*given, **named):
            loss = step(*given, **named)
            kept.losses.append(loss.item())
            return loss

        trainer.training_step = watched
        trainer.add_callback(FirstGradient(kept))
        policy = trainer.accelerator.unwrap_model(trainer.model)
        kept.start = flat(policy)
        trainer.train()
        kept.end = flat(policy)
        kept.rows, kept.events = (lines(Path(folder, "arm", f"{name}.jsonl")) for name in ("metrics", "events"))
    return kept


def lines(path: Path) -> list[dict]:
    """A file of the record, or nothing."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
