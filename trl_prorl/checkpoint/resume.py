"""Resume a run: find the checkpoint, check that it is the same run, trim the log files, restore our own state."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..record.run_files import AT_BOUNDARY, EVENTS_FILE, RESUME, ROLLBACK, read_json, read_jsonl
from ..record.run_folder import CHECKPOINT, RunFolders
from .files import find_checkpoint
from .identity import IDENTITY_FILE, check_change, check_same_run
from .state import read_state


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedRollback:
    """
    A roll-back that is possible and not made yet.

    Attributes:
        checkpoint (`Path`): The run continues from here.
        event (`dict[str, Any]`): The event for `events.jsonl`.
    """

    checkpoint: Path
    event: dict[str, Any]


class RollbackRequest(RunError):
    """Leaves the training loop in the middle of it, so that `train` can continue from an earlier checkpoint."""

    def __init__(self, planned: PlannedRollback):
        super().__init__(f"step {planned.event['step_requested']}: {planned.event['reason']}")
        self.planned = planned


def last_rollback(run_dir: Path) -> dict[str, Any] | None:
    """Return the last roll-back on record; earlier ones may have been behind its checkpoint."""
    for event in reversed(read_jsonl(run_dir / EVENTS_FILE)):
        if event["event"] == ROLLBACK:
            return event
    return None


def checkpoint_after_rollback(newest: Path, run_dir: Path) -> Path:
    """
    Return the checkpoint from which a run goes on whose newest is `newest`.

    It is another one if the run was killed in a roll-back, after its event and before the newer checkpoints were
    renamed: the one that the event names.
    """
    last = last_rollback(run_dir)
    if last is None:
        return newest
    step = int(CHECKPOINT.fullmatch(newest.name)[1])
    if step <= last["step_applied"]:
        return newest
    state = read_state(newest)["parts"].get("rollback", {})
    if state.get("known", 0) < last["rollbacks"]:
        return newest.with_name(last["checkpoint"])
    return newest


@dataclass
class Resume:
    """
    Says where a run goes on.

    Attributes:
        checkpoint (`Path`): The checkpoint.
        step (`int`): Optimizer steps done.
        epochs (`int`): Epochs that were completed.
        skipped (`dict[str, str]`): Newer checkpoints that were not usable, with the reason.
        changed (`dict[str, list]`): Keys that differ from the checkpoint's, `[then, now]`.
        began (`float`): When the search for the checkpoint began, by `time.perf_counter`.
        abandoned (`list[str]`): Newer checkpoints that were renamed.
    """

    checkpoint: Path
    step: int
    epochs: int
    skipped: dict[str, str]
    changed: dict[str, list[Any]]
    began: float
    abandoned: list[str] = field(default_factory=list)

    @classmethod
    def find(
        cls,
        resume_from: str | os.PathLike | bool,
        output_dir: str,
        run_dir: Path,
        identity: Mapping[str, Any],
        allowed: bool,
    ) -> "Resume":
        """
        Find the checkpoint, and refuse one from which this would not be the same run.

        Args:
            resume_from (`str`, `os.PathLike` or `bool`): A checkpoint, or `True` for the newest complete one.
            output_dir (`str`): The folder of the checkpoints.
            run_dir (`Path`): Folder of the log files.
            identity (`Mapping[str, Any]`): The keys that can change a number, the data and the model.
            allowed (`bool`): `allow_config_change`.

        Raises:
            `ValueError`: The checkpoint is not whole, or the run would not be the same.
        """
        began = time.perf_counter()
        checkpoint, skipped = find_checkpoint(resume_from, output_dir)
        if resume_from is True or str(resume_from).lower() == "true":
            checkpoint = checkpoint_after_rollback(checkpoint, run_dir)
        for name, reason in skipped.items():
            logger.warning("Skipping checkpoint %s: %s.", name, reason)
        changed = check_same_run(read_json(checkpoint / IDENTITY_FILE), identity, allowed)
        check_change(changed, identity, checkpoint)
        state = read_json(checkpoint / "trainer_state.json")
        return cls(checkpoint, state["global_step"], int(state["epoch"]), skipped, changed, began)

    def keeps_row(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of `metrics.jsonl` was there at the checkpoint."""
        return row["step"] <= self.step

    def keeps_event(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event was there at the checkpoint."""
        if event["event"] in AT_BOUNDARY:  # at the checkpoint's own step it came after the save, and happens again
            return event["step_applied"] < self.step
        return event["step_applied"] <= self.step

    def abandon_newer(self, folders: RunFolders) -> None:
        """
        Rename the checkpoints newer than this one, before the log files are trimmed: they no longer belong to the run.
        """
        renamed = folders.abandon_newer(self.checkpoint, self.skipped)
        for name, now in renamed.items():
            logger.warning(
                f"{name} is newer than {self.checkpoint.name}, from which the run resumes, so it was renamed to "
                f"{now}. Delete it if you do not need it."
            )
        self.abandoned = list(renamed)

    @property
    def event(self) -> dict[str, Any]:
        """Event of this resume for `events.jsonl`."""
        return {
            "event": RESUME,
            "step_requested": self.step,
            "step_applied": self.step,
            "checkpoint": self.checkpoint.name,
            "skipped": self.skipped,
            "changed": self.changed,
            "abandoned": self.abandoned,
        }


def find_best_beside(checkpoint: Path, output_dir: Path) -> Path | None:
    """
    Find the best checkpoint of a run that is resumed, as `output_dir` names it now.

    The state contains its path of that time, which may be relative to another directory, or the path of a folder that
    was renamed. It is still next to the checkpoint.
    """
    recorded = read_json(checkpoint / "trainer_state.json")["best_model_checkpoint"]
    if recorded is None:
        return None
    beside = checkpoint.with_name(Path(recorded).name)
    here = output_dir / beside.name
    if here.is_dir() and beside.is_dir() and here.samefile(beside):
        return here
    return beside if beside.is_dir() else None
