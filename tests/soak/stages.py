"""
In a training process: the stage that it is in, seen from outside, and an accident at one moment of one stage.

Nothing of this is in the product: the methods of its trainer are wrapped here. A moment is a number of Python calls,
or of file operations, since the stage of one step began. The runs are deterministic, so a moment can be met again.
"""

import contextlib
import json
import mmap
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from trl_prorl import ProRLTrainer


# `update` is everything between the others once the first step has begun; `start` and `end` are before and after all.
STAGES = ("start", "generation", "update", "evaluation", "save", "end")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
BOARD_BYTES = 64


@dataclass(frozen=True)
class Accident:
    """What happens, and where; `start` and `end` are at step 0."""

    stage: str
    step: int
    place: int  # at which call, or file operation; where there are fewer, when the stage is left
    counts: str  # "calls" or "files"
    kind: str  # a signal, "full disk" (it has `room` bytes left) or "file size" (no file grows beyond `room` bytes)
    room: int = 0
    disk: str = ""  # folder of the file system that is filled


class Watch:
    """
    Writes the present stage to the file `board`, which outlives the process, and a line about the accident to `note`
    before it happens; `counting` counts the calls and file operations of every stage.
    """

    def __init__(self, board: Path, note: Path, accident: Accident | None = None, counting: bool = False):
        board.write_bytes(b" " * BOARD_BYTES)
        with open(board, "r+b") as file:
            self.board = mmap.mmap(file.fileno(), BOARD_BYTES)
        self.note = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.accident, self.counting = accident, counting
        self.seen: dict[str, int] = {"calls": 0, "files": 0}
        self.counts: dict[str, dict[str, int]] = {}
        self.struck = False
        self.now = ("", 0)
        self.base = ("start", 0)
        sys.addaudithook(self._on_audit)

    @property
    def _aimed(self) -> bool:
        return self.accident is not None and self.now == (self.accident.stage, self.accident.step)

    def enter(self, stage: str, step: int) -> None:
        if (stage, step) == self.now:
            return
        self.leave()
        self.now = (stage, step)
        self.board[:] = f"{stage} {step}".ljust(BOARD_BYTES).encode()
        if self.counting or (self._aimed and not self.struck and self.accident.counts == "calls"):
            sys.setprofile(self._on_call)

    def leave(self) -> None:
        sys.setprofile(None)
        if self.counting and self.now[0]:
            total = self.counts.setdefault("{} {}".format(*self.now), {"calls": 0, "files": 0})
            for name in total:
                total[name] += self.seen[name]
                self.seen[name] = 0

    def over(self) -> None:
        """This stage of this step does not come again: if the accident has not come yet, it comes now."""
        if self._aimed:
            self._strike(sys._getframe(1))

    def begin(self, stage: str, step: int) -> None:
        """A stage that is not inside another one."""
        if (stage, step) != self.base:
            self.over()
            self.base = (stage, step)
        self.enter(stage, step)

    def inside(self, method, stage: str, training: bool = False, ahead: int = 0):
        """`method` of the trainer as a stage of its own, in training mode only if so asked."""

        def watched(trainer, *args, **kwargs):
            if training and not trainer.model.training or self.now[0] not in ("start", "update", "end"):
                return method(trainer, *args, **kwargs)
            self.enter(stage, trainer.state.global_step + ahead)
            try:
                result = method(trainer, *args, **kwargs)
                self.over()
                return result
            finally:
                self.enter(*self.base)

        return watched

    def _on_call(self, frame, event, arg) -> None:
        self.seen["calls"] += 1
        if self.accident is not None and self.seen["calls"] == self.accident.place:
            self._strike(frame)

    def _on_audit(self, event, args) -> None:
        if event != "open" and not event.startswith(("os.", "shutil.")):
            return
        if self.counting:
            self.seen["files"] += 1
        elif self._aimed and self.accident.counts == "files" and not self.struck:
            self.seen["files"] += 1
            if self.seen["files"] == self.accident.place:
                self._strike(sys._getframe(1))

    def _strike(self, frame) -> None:
        if self.struck:
            return
        self.struck = True
        sys.setprofile(None)
        code = frame.f_code
        where = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        os.write(self.note, json.dumps({"stage": self.now[0], "step": self.now[1], "where": where}).encode())
        if self.accident.kind in SIGNALS:
            os.kill(os.getpid(), getattr(signal, self.accident.kind))
        elif self.accident.kind == "file size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.accident.room, resource.RLIM_INFINITY))
        else:
            fill(Path(self.accident.disk), self.accident.room)


BALLAST = "ballast"


def fill(disk: Path, room: int) -> None:
    """Leave no more than `room` bytes of a file system."""
    state = os.statvfs(disk)
    size = max(0, state.f_bavail * state.f_frsize - room)
    # Several processes fill it together, each a file of its own; one of them comes too late for its share.
    with open(disk / f"{BALLAST}{os.getpid()}", "wb") as file, contextlib.suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(1, size))


def empty(disk: Path) -> None:
    """Take back what [`fill`] took."""
    for ballast in disk.glob(f"{BALLAST}*"):
        ballast.unlink()


def install(watch: Watch) -> None:
    """Wrap the trainer's methods, in this process."""
    cls = ProRLTrainer
    cls._generate_and_score_completions = watch.inside(
        cls._generate_and_score_completions, "generation", training=True, ahead=1
    )
    cls.evaluate = watch.inside(cls.evaluate, "evaluation")
    cls._save_checkpoint = watch.inside(cls._save_checkpoint, "save")
    step, train = cls.training_step, cls.train

    def training_step(trainer, *args, **kwargs):
        watch.begin("update", trainer.state.global_step + 1)
        return step(trainer, *args, **kwargs)

    def watched_train(trainer, *args, **kwargs):
        result = train(trainer, *args, **kwargs)
        watch.begin("end", 0)
        return result

    cls.training_step, cls.train = training_step, watched_train
    watch.enter("start", 0)
