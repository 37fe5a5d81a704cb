"""
A part of a run: one idea that remembers something from step to step, and owns how it begins, is saved and is restored.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any


class Part:
    """
    Base of every part. The trainer calls each of its parts at the same moments; no part knows the trainer.

    A part that remembers plain values has `state_dict` and `load_state_dict`; one that remembers tensors writes its
    own file in `save` and reads it in `load`.
    """

    # Whether a run may have it although the run that it goes on from had it not, with the same configuration.
    may_join = False

    # A step, in this order. A part that acts at none of these moments is called by name.

    def at_boundary(self, step: int) -> dict[str, Any] | None:
        """
        A generation is about to begin; no buffered log-probability outlives this moment, so weights may change.

        Args:
            step (`int`):
                Optimizer steps done.

        Returns:
            `dict` or `None`: an event for the record.
        """

    def after_update(self, step: int) -> None:
        """The weights of optimizer step `step` are in place. Seconds spent here belong to that step."""

    def observe_step(self, step: int, row: Mapping[str, float]) -> dict[str, Any] | None:
        """
        A step is over, and its row is written.

        Args:
            step (`int`):
                Optimizer steps done.
            row (`Mapping[str, float]`):
                Its row of `metrics.jsonl`.

        Returns:
            `dict` or `None`: an event for the record. One with `"action": "stop"` saves a checkpoint and ends the run.
        """

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
            state (`Mapping[str, Any]`):
                What `state_dict` returned.
            changed (`Mapping[str, Any]`):
                Keys of the configuration whose values differ from that process's.
        """

    def save(self, folder: Path) -> None:
        """Write tensors into a checkpoint that has not got its name yet. Called on the main process."""

    def load(self, folder: Path, changed: Mapping[str, Any]) -> None:
        """Read them from a checkpoint; `changed` as in `load_state_dict`."""


class Parts(dict[str, Part]):
    """
    The parts of a run by name; each name is a key of the checkpoint's state. They are called in the order in which
    they were added.
    """

    def at_boundary(self, step: int) -> Iterator[dict[str, Any]]:
        """The events of [`Part.at_boundary`], each before the next part is called."""
        return (event for part in self.values() if (event := part.at_boundary(step)) is not None)

    def after_update(self, step: int) -> None:
        """See [`Part.after_update`]."""
        for part in self.values():
            part.after_update(step)

    def observe_step(self, step: int, row: Mapping[str, float]) -> Iterator[dict[str, Any]]:
        """The events of [`Part.observe_step`], each before the next part is called."""
        return (event for part in self.values() if (event := part.observe_step(step, row)) is not None)

    def begin(self) -> None:
        """See [`Part.begin`]."""
        for part in self.values():
            part.begin()

    def state_dict(self) -> dict[str, Any]:
        """The state of every part, by its name."""
        return {name: part.state_dict() for name, part in self.items()}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Go on from the states of the same parts; one that a changed key has switched on, or may join, begins."""
        for name, part in self.items():
            if name in state or not (changed or part.may_join):
                part.load_state_dict(state[name], changed)

    def save(self, folder: Path) -> None:
        """See [`Part.save`]."""
        for part in self.values():
            part.save(folder)

    def load(self, folder: Path, changed: Mapping[str, Any] = MappingProxyType({})) -> None:
        """See [`Part.load`]."""
        for part in self.values():
            part.load(folder, changed)
