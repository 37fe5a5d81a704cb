"""
In a training process: the stage that it is in, seen from outside, and an accident at one moment of one stage.

Nothing of this is in the product: the methods of its trainer are wrapped here. A moment is a number of calls, or of
file operations, since the stage of one step began. The runs are deterministic, so a moment can be met again.
"""

import contextlib
import os
import resource
import signal
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from trl_prorl import ProRLTrainer


# `update` is everything between the others once the first step has begun; `start` and `end` are before and after all.
OUTER = ("start", "update", "end")
BALLAST = "ballast"


@dataclass(frozen=True)
class Accident:
    """What happens, and where; `start` and `end` are at step 0."""

    stage: str
    step: int
    place: int  # at which call, or file operation; where there are fewer, when the stage is left
    counts: str  # "calls" or "files"
    kind: str  # a signal, or "no room"
    room: int  # bytes that are left, or that a file may have
    disk: Path | None  # a file system that can be filled; without one the size of files is limited


class Watch:
    """Makes an accident, which it notes in a file, or counts calls and file operations of every stage and step."""

    def __init__(self, note: Path, accident: Accident | None):
        self.note = note
        self.accident = accident
        self.counts: dict[tuple[str, int], Counter] = defaultdict(Counter)
        self.enter("start", 0)
        cls = ProRLTrainer
        step = cls.training_step
        train = cls.train
        self._wrap("_generate_and_score_completions", "generation", training=True, ahead=1)
        self._wrap("evaluate", "evaluation")
        self._wrap("_save_checkpoint", "save")

        def training_step(trainer, *args, **kwargs):
            self._begin("update", trainer.state.global_step + 1)
            return step(trainer, *args, **kwargs)

        def watched_train(trainer, *args, **kwargs):
            result = train(trainer, *args, **kwargs)
            self._begin("end", 0)
            return result

        cls.training_step = training_step
        cls.train = watched_train

    def enter(self, stage: str, step: int) -> None:
        self.now = (stage, step)
        sys.setprofile(self._on_call if self.accident is None or self._aimed else None)

    def over(self) -> None:
        """This stage of this step does not come again: if the accident has not come yet, it comes now."""
        if self._aimed:
            self._strike(sys._getframe(1))

    @property
    def _aimed(self) -> bool:
        return self.accident is not None and self.now == (self.accident.stage, self.accident.step)

    def _begin(self, stage: str, step: int) -> None:
        """A stage that is not inside another one."""
        if (stage, step) != self.now:
            self.over()
            self.enter(stage, step)

    def _wrap(self, name: str, stage: str, training: bool = False, ahead: int = 0) -> None:
        """Make a method of the trainer a stage of its own, in training mode only if so asked."""
        method = getattr(ProRLTrainer, name)

        def watched(trainer, *args, **kwargs):
            if training and not trainer.model.training or self.now[0] not in OUTER:
                return method(trainer, *args, **kwargs)
            outer = self.now
            self.enter(stage, trainer.state.global_step + ahead)
            try:
                result = method(trainer, *args, **kwargs)
                self.over()
                return result
            finally:
                self.enter(*outer)

        setattr(ProRLTrainer, name, watched)

    def _on_call(self, frame, event, arg) -> None:
        seen = self.counts[self.now]
        seen["calls"] += 1
        seen["files"] += event == "c_call" and getattr(arg, "__module__", None) in ("posix", "_io")
        if self._aimed and seen[self.accident.counts] >= self.accident.place:
            self._strike(frame)

    def _strike(self, frame) -> None:
        sys.setprofile(None)
        accident = self.accident
        self.accident = None
        code = frame.f_code
        where = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        self.note.write_text(f"{accident.stage} {accident.step}, {where}")
        if accident.kind != "no room":
            os.kill(os.getpid(), signal.Signals[accident.kind])
        elif accident.disk is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (accident.room, resource.RLIM_INFINITY))
        else:
            fill(accident.disk, accident.room)


def fill(disk: Path, room: int) -> None:
    """Leave no more than `room` bytes of a file system."""
    state = os.statvfs(disk)
    # Another process may take a part of it meanwhile.
    with open(disk / BALLAST, "wb") as file, contextlib.suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(1, state.f_bavail * state.f_frsize - room))
