"""
A part of a run: one idea that remembers something from step to step, and owns how it begins, is saved and is restored.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class MicroBatch:
    """
    Holds what is known of a micro-batch once its loss is computed: B rows, T tokens.

    Attributes:
        batch (`Mapping[str, torch.Tensor]`): Tokens, masks, advantages and the anchors' log-probabilities.
        loss (`torch.Tensor`): A scalar, penalties included.
        logps (`torch.Tensor` of shape `(B, T)`): The policy's, without gradient.
        entropies (`torch.Tensor` of shape `(B, T)`): The policy's.
        rows (`torch.Tensor` of shape `(R,)`, *optional*): The rows that were computed; `None` means all.
        penalty (`torch.Tensor`, *optional*): A scalar: what entered the loss of the anchors' KL.
        trl_metrics (`Mapping[str, float]`): TRL's newest metrics, those of this loss among them.
        sampler_logps (`torch.Tensor` of shape `(B, T)`, *optional*): Of the model that was sampled, where it is not
            the policy to the last bit and this is the first pass.
    """

    batch: Mapping[str, "torch.Tensor"]
    loss: "torch.Tensor"
    logps: "torch.Tensor"
    entropies: "torch.Tensor"
    rows: "torch.Tensor | None" = None
    penalty: "torch.Tensor | None" = None
    trl_metrics: Mapping[str, float] = field(default_factory=dict)
    sampler_logps: "torch.Tensor | None" = None


def make_event(kind: str, requested: int, applied: int, reason: str, value: float, threshold: float) -> dict[str, Any]:
    """
    Make an event of a kind for the record: the optimizer steps after which it was requested and applied, why, the
    value that was seen, and what it was compared with.
    """
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
    Base of every part. The trainer calls each of its parts at the same moments; no part knows the trainer.

    A part that remembers plain values has `state_dict` and `load_state_dict`; one that remembers tensors writes its
    own file in `save` and reads it in `load`.
    """

    # Whether a run may have it although the run that it goes on from had it not, with the same configuration.
    may_join = False

    # Before the first step.

    def optimizer_made(self, optimizer: "torch.optim.Optimizer") -> None:
        """The optimizer is there, without Accelerate's wrapper. Called again when a training begins anew."""

    def schedule_made(self, schedule: Any) -> None:
        """The learning-rate schedule is there, as new, without Accelerate's wrapper."""

    # A step, in this order.

    def boundary(self, step: int) -> dict[str, Any] | None:
        """
        A generation is about to begin; no buffered log-probability outlives this moment, so weights may change.

        Args:
            step (`int`): Optimizer steps done.

        Returns `dict` or `None`: an event for the record.
        """

    def batch(self, batch: Mapping[str, "torch.Tensor"], measured: Mapping[str, float], tokens: int) -> None:
        """
        A generation batch is sampled, rewarded and scored.

        Args:
            batch (`Mapping[str, torch.Tensor]`): This process's rows.
            measured (`Mapping[str, float]`): For the record, of all processes.
            tokens (`int`): Sampled by all processes.
        """

    def micro_batch(self, micro_batch: MicroBatch) -> None:
        """The loss of a micro-batch is computed."""

    def gradients(self, model: "torch.nn.Module") -> None:
        """The gradients of an update are complete, and not clipped yet."""

    def before_update(self, step: int, norm: float, rate: float) -> None:
        """Optimizer step `step` comes next: the norm of its gradients before clipping, and its learning rate."""

    def update(self, step: int, model: "torch.nn.Module") -> None:
        """The weights of optimizer step `step` are in place. Seconds spent here belong to that step."""

    def row(self, step: int, row: Mapping[str, float]) -> dict[str, Any] | None:
        """
        A step is over, and its row is written.

        Args:
            step (`int`): Optimizer steps done.
            row (`Mapping[str, float]`): Its row of `metrics.jsonl`.

        Returns `dict` or `None`: an event for the record. One with `"action": "stop"` saves a checkpoint and ends the
        run.
        """

    def event(self, event: dict[str, Any]) -> None:
        """A part has returned an event. The record's own part writes it, and may complete it."""

    # The run's beginning, and its checkpoints.

    def begin(self) -> None:
        """A training begins at step 0, perhaps after one that was broken off: forget the earlier one."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resume needs, as JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        """
        Go on from the `state_dict` of another process.

        Args:
            state (`Mapping[str, Any]`): What `state_dict` returned.
            changed (`Mapping[str, Any]`): Keys of the configuration whose values differ from that process's, `[then,
                now]`.
        """

    def written(self) -> AbstractContextManager[None]:
        """Return a context in which the policy's weights are written, into a checkpoint or at the end."""
        return nullcontext()

    def save(self, folder: Path) -> None:
        """Write tensors into a checkpoint that has not got its name yet. Called on the main process."""

    def save_shards(self, folder: Path) -> None:
        """Write the tensors that every process holds a part of. Called on all of them."""

    def before_load(self, folder: Path) -> None:
        """The weights of a checkpoint, or of the best one at the end, are about to be loaded."""

    def load(self, folder: Path, changed: Mapping[str, Any]) -> None:
        """Read tensors from a checkpoint; `changed` as in `load_state_dict`."""


class Parts(dict[str, Part]):
    """The parts of a run in the order in which they are called; their names are keys of the checkpoint's state."""

    def add_first(self, name: str, part: Part) -> None:
        """Add a part that is called before the others."""
        others = {name: part, **self}
        self.clear()
        self.update(others)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every part that has one, by its name."""
        states = {name: part.state_dict() for name, part in self.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Go on from the states of the same parts; one that a changed key has switched on, or may join, begins."""
        another_version = "because another version wrote it. Resume with that version, or start a new run."
        for name, part in self.items():
            if name in state:
                try:
                    part.load_state_dict(state[name], changed)
                except KeyError as missing:
                    raise ValueError(f"the checkpoint has no {missing} of {name!r}, {another_version}") from None
                continue
            may_begin = changed or part.may_join or not part.state_dict()
            if not may_begin:
                raise ValueError(f"the checkpoint has no state of {name!r}, {another_version}")
