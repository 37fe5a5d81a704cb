"""A part of a run: one feature with state, which it initialises, saves and restores itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import torch


Event = dict[str, Any]  # a line of `events.jsonl`
Row = Mapping[str, float]  # of `metrics.jsonl`


@dataclass(frozen=True)
class MicroBatch:
    """
    A micro-batch after its loss was computed: B rows, T tokens.

    Attributes:
        batch (`Mapping[str, torch.Tensor]`): With the anchors' log-probabilities.
        loss (`torch.Tensor`): A scalar, penalties included.
        logps (`torch.Tensor` of shape `(B, T)`): The policy's, without gradient.
        entropies (`torch.Tensor` of shape `(B, T)`): The policy's.
        rows (`torch.Tensor` of shape `(R,)`, *optional*): The computed rows; `None` means all.
        kls (`Mapping[str, torch.Tensor]`): KL to each anchor that acts, as the loss has it, `(B, T)` by the anchor's
            name.
        kl_loss (`torch.Tensor`, *optional*): Their weighted sum, a scalar; `None` if no anchor acts.
        trl_metrics (`Mapping[str, float]`): TRL's metrics of this loss.
        sampler_logps (`torch.Tensor` of shape `(B, T)`, *optional*): Those of the model that sampled, if it is not
            bit-identical to the policy; with compact generation in the first pass alone.
    """

    batch: Mapping[str, "torch.Tensor"]
    loss: "torch.Tensor"
    logps: "torch.Tensor"
    entropies: "torch.Tensor"
    rows: "torch.Tensor | None" = None
    kls: "Mapping[str, torch.Tensor]" = field(default_factory=dict)
    kl_loss: "torch.Tensor | None" = None
    trl_metrics: Mapping[str, float] = field(default_factory=dict)
    sampler_logps: "torch.Tensor | None" = None


def make_event(kind: str, requested: int, applied: int, reason: str, value: float, threshold: float) -> Event:
    """Make an event for `events.jsonl`. Requested and applied are optimizer steps."""
    return {
        "event": kind,
        "step_requested": requested,
        "step_applied": applied,
        "reason": reason,
        "value": value,
        "threshold": threshold,
    }


class Part:
    """
    Base class of every part. The trainer calls its hooks; a part calls no method of the trainer.

    A part with state as plain values lists their names in `remembers`, or overrides `state_dict` and
    `load_state_dict`. A part with tensors writes its own file in `save` and reads it in `load`.
    """

    # Attributes that a resume needs, with JSON values.
    remembers: tuple[str, ...] = ()

    # Before the first step.

    def optimizer_made(self, optimizer: "torch.optim.Optimizer") -> None:
        """Called when the optimizer exists, without Accelerate's wrapper."""

    def schedule_made(self, schedule: Any) -> None:
        """Called when the learning-rate schedule exists, maybe in Accelerate's wrapper."""

    # A step, in this order.

    def on_generation(self, step: int) -> Event | None:
        """
        Called before each generation. No cached log-probability survives this point, so weights may change here.

        Args:
            step (`int`): Optimizer steps done.

        Returns `dict` or `None`: an event for `events.jsonl`.
        """

    def on_batch(self, batch: Mapping[str, "torch.Tensor"]) -> None:
        """Called after a batch was sampled, rewarded and scored, with this process's rows."""

    def on_loss(self, micro_batch: MicroBatch) -> None:
        """Called after the loss of each micro-batch."""

    def on_backward(self, parameters: Mapping[str, "torch.nn.Parameter"]) -> None:
        """Called with the model's parameters when the gradients of an update are complete, before clipping."""

    def on_pre_optimizer_step(self, step: int, norm: float | None, rate: float) -> None:
        """
        Called before optimizer step `step`, with the gradient norm before clipping (DeepSpeed may report `None`).
        """

    def on_step_end(self, step: int, parameters: Mapping[str, "torch.nn.Parameter"]) -> None:
        """Called after optimizer step `step`. Time spent here counts for that step."""

    def on_row(self, step: int, row: Row) -> Event | None:
        """
        Called after each step, when its row was written.

        Args:
            step (`int`): Optimizer steps done.
            row (`Mapping[str, float]`): Its row of `metrics.jsonl`.

        Returns `dict` or `None`: an event for `events.jsonl`. An event with `"action": "stop"` saves a checkpoint and
        ends the run.
        """

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> Event | None:
        """
        Called after each evaluation, with its metrics by name. It returns `None`, or an event that ends the run with a
        checkpoint.
        """

    def on_event(self, event: Event) -> None:
        """Called for every event that a part returned. The recorder completes and writes it."""

    # Start of a run, and checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resume needs, as JSON values."""
        return {name: getattr(self, name) for name in self.remembers}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        """
        Restore an earlier process's `state_dict`.

        Args:
            state (`Mapping[str, Any]`): Its result.
            changed (`Mapping[str, Any]`): Keys with another value than in that process, `[before, now]`.
        """
        for name in self.remembers:
            setattr(self, name, state[name])

    def save(self, folder: Path) -> None:
        """Write tensors into a checkpoint folder, on the main process."""

    def before_load(self, folder: Path) -> None:
        """Called before weights are loaded, also those of the best checkpoint at the end."""

    def load(self, folder: Path, changed: Mapping[str, Any]) -> None:
        """Read tensors from a checkpoint; `changed` as in `load_state_dict`."""


class Parts(dict[str, Part]):
    """The parts of a run by name, in calling order."""

    def state_dict(self) -> dict[str, Any]:
        """Return the non-empty states by part."""
        states = {name: part.state_dict() for name, part in self.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Restore all states. A part without one starts empty: a changed key, or this machine, enables it."""
        for name, part in self.items():
            if name in state:
                part.load_state_dict(state[name], changed)
