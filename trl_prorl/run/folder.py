"""The folder of a run. A new run needs a folder without files of a run and without other folders."""

import logging
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import InputError
from ..tasks.plugin import check_not_loading
from .files import STAGED, WANDB, free_name, open_own, read_text
from .log_files import (
    DRIFT_FILE,
    METRICS_FILE,
    PASSK_FILE,
    RUN_ID_FILE,
    recorded_run_id,
    saved_run_id,
    step_of_evaluation,
)
from .shapes import read_shaped


logger = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
SECONDS = 0.5  # seconds to wait; `check_free` holds the lock for a moment
HOLDER = "process "  # start of the lock file's text
# ours, zeros after a power loss, or filelock's own without kernel locks
LOCK_CONTENT = re.compile(r"process |\0*$|\d+\n")
MAX_NAMES = 5  # in one message
MANIFEST_FILE = "manifest.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
ABANDONED = "abandoned-"
# Folders of interrupted saves, removals and uploads. The Hub's uploads skip names with a leading underscore.
WRITING = "_writing-"
REMOVING = "_removing-"
LEFT_BEHIND = re.compile(rf"({WRITING}|{REMOVING}|{STAGED})\d+")
PART = f".*.{'?' * 16}.part"  # of a file being written, see `replaced`
SET_ASIDE = "set_aside"  # empty file in a folder of an earlier run that was set aside
COMPLETIONS = "completions"  # TRL's folder for `log_completions`
# Files of a run. A new run does not start next to one.
WRITTEN = (
    "config.yaml README.md merges.txt vocab.txt drift.png *.json *.jsonl *.jinja *.model *.safetensors *.bin"
).split()
# Files that identify a run's folder, ours or TRL's.
TRACES = (
    METRICS_FILE,
    RUN_ID_FILE,
    "training_args.bin",
    "checkpoint-*/trainer_state.json",
    f"{WRITING}*/checkpoint-*",
    f"{COMPLETIONS}/completions_*.parquet",
)


class RunFolder:
    """The folder of a run. `own`: names made by the run's own trainer; ignored."""

    def __init__(self, path: str | os.PathLike, own: Collection[str] = ()):
        self.path = Path(path)
        self.own = own
        self.given = f"output_dir={str(path)!r}"

    # ------------------------------------------------------------------------------- before a run begins

    def check_usable(self) -> None:
        """Raise `ValueError` for a path that is not a writable folder."""
        check_not_loading()
        whole = self.path.absolute()
        there = next(path for path in (whole, *whole.parents) if os.path.lexists(path))
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ValueError(f"{self.given} cannot be used: {there} is not a writable folder. Choose another folder.")
        lock = self.path / LOCK_FILE
        is_ours = not lock.is_symlink() and (not lock.exists() or LOCK_CONTENT.match(read_text(lock)))
        if not is_ours:
            raise ValueError(
                f"{self.given} contains {LOCK_FILE}, which no run wrote. Choose another output_dir, or move this file."
            )

    def contents(self) -> list[str]:
        """Return the names that prevent a new run: folders, and files of a run. A job's log is allowed."""
        if not self.path.is_dir():
            return []
        hinders = []
        for path in sorted(self.path.iterdir()):
            # TRL makes an empty `completions` with its trainer; a kill may follow before the run starts.
            is_folder = path.is_dir() and path.name != WANDB and any(path.iterdir())
            is_written = any(path.match(pattern) for pattern in WRITTEN)
            if (is_folder or is_written) and path.name not in self.own:
                hinders.append(path.name)
        return hinders

    def is_run(self) -> bool:
        return recorded_run_id(self.path) is not None or any(any(self.path.glob(trace)) for trace in TRACES)

    def check_new(self) -> None:
        """Raise `ValueError` for a folder in which a new run would mix with other files."""
        names = self.contents()
        if names and self.is_run():
            raise ValueError(
                f"{self.given} already contains a run. Choose another output_dir, resume the run with "
                "resume_from_checkpoint: true (--resume_from_checkpoint True), or move it to "
                f"{free_name(self.path).name} with overwrite: true (--overwrite true)."
            )
        if names:
            shown = ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
            raise ValueError(
                f"{self.given} contains {shown}: a new run needs a folder without other folders and without files "
                "that a run would overwrite, and no run wrote these. Choose another output_dir, or move them."
            )

    def check_movable(self, base: str | None, checkpoint: Path | None = None) -> None:
        """
        Raise `ValueError` for a folder that cannot be renamed. `base`: Hub name or folder of the new run's model;
        `checkpoint`: the one that it resumes from.
        """
        if not self.contents():
            return
        if not self.is_run():
            self.check_new()
        whole = self.path.absolute()
        model = Path(base).resolve() if base and Path(base).is_dir() else None
        reasons = {
            "is a link": self.path.is_symlink(),
            "is the root of a disk": os.path.ismount(whole),
            "is the home folder": whole.resolve() == Path.home().resolve(),
            "contains the working directory": Path.cwd().is_relative_to(whole.resolve()),
            f"contains the starting model {base!r}": model is not None and model.is_relative_to(whole.resolve()),
            f"contains {checkpoint}": checkpoint is not None and checkpoint.resolve().is_relative_to(whole.resolve()),
        }
        for reason, applies in reasons.items():
            if applies:
                raise ValueError(
                    f"{self.given} already contains a run, and the folder cannot be moved: it {reason}. Choose "
                    "another output_dir."
                )

    def set_aside(self, base: str | None, lock: "FolderLock") -> None:
        """
        Rename the folder of an earlier run to `NAME.1`, or the next free number, and make an empty one. The `lock` is
        held before and after.
        """
        self.check_movable(base)
        if not self.contents():
            return
        aside = free_name(self.path)
        (self.path / SET_ASIDE).touch()
        lock.move(aside)
        logger.warning(
            "%s contained an earlier run, which was moved to %s. Delete it if you do not need it.", self.given, aside
        )

    def check_own(self, checkpoint: Path) -> None:
        """Raise `ValueError` if a checkpoint belongs to another run than the log files."""
        saved = saved_run_id(checkpoint)
        recorded = recorded_run_id(self.path)
        if None not in (saved, recorded) and saved != recorded:  # TRL's own trainer writes no id
            raise ValueError(
                f"{self.given} contains the log files of a different run than {checkpoint.name}, which would be lost. "
                "Set resume_from_checkpoint to its path, and choose another output_dir."
            )

    # --------------------------------------------------------------------------------------- checkpoints

    def has_checkpoint(self, checkpoint: Path) -> bool:
        folder = checkpoint.resolve().parent
        if folder.name.startswith(WRITING):  # complete, and renamed when the run continues
            folder = folder.parent
        return folder == self.path.resolve()

    def id_of_run(self, checkpoint: Path | None) -> str:
        """Return the id of the run of a checkpoint here, else a new one."""
        found = None
        if checkpoint is not None and self.has_checkpoint(checkpoint):
            found = saved_run_id(checkpoint) or recorded_run_id(self.path)
        return found or uuid.uuid4().hex  # draws from no generator that a run uses

    def clear_leftovers(self) -> None:
        for path in find_named(self.path, LEFT_BEHIND):
            shutil.rmtree(path)
        for path in self.path.glob(PART):
            path.unlink()
        (self.path / SET_ASIDE).unlink(missing_ok=True)

    def abandon_newer(self, checkpoint: Path, own_step: int, unusable: Collection[str]) -> dict[str, str]:
        """
        Rename checkpoints that are newer than one here, whatever its name is, or another one of its step, except
        unusable ones: the next resume would choose them. Returns the new names by the old.
        """
        if not self.has_checkpoint(checkpoint):
            return {}
        renamed = {}
        for path, step in steps_of(self.path).items():
            is_other = step == own_step and not is_copy(path, checkpoint)
            if (step > own_step or is_other) and path.name not in unusable:
                renamed[path.name] = rename_abandoned(path).name
        for name, now in renamed.items():
            logger.warning(
                f"{name} does not precede {checkpoint.name}, from which the run resumes, so it was renamed to {now}. "
                "Delete it if you do not need it."
            )
        return renamed

    def set_aside_evaluations(self, checkpoint: Path, step: int) -> None:
        """Rename evaluations of later steps than that of a checkpoint: the run computes these steps again."""
        for path in (self.path / PASSK_FILE, self.path / DRIFT_FILE):
            measured = None
            with suppress(InputError):  # a missing one, or one that no command reads
                measured = step_of_evaluation(read_shaped(path))
            if measured is not None and measured > step:
                now = path.rename(free_name(path)).name
                logger.warning(
                    f"{path.name} measured step {measured}, which the run computes again from {checkpoint.name}, so "
                    f"it was renamed to {now}."
                )

    def remove_oldest(self, step: int, limit: int | None, best: str | os.PathLike | None) -> None:
        """
        Remove the oldest checkpoints beyond a limit (`None`, 0 or less: none), but neither that of `step` nor the
        best. Folders without a manifest and later steps do not count. Not by modification time, which an interrupted
        removal changes.
        """
        if limit is None or limit <= 0:
            return
        steps = steps_of(self.path)
        own = [path for path in sorted(steps, key=steps.get) if steps[path] <= step and is_written(path)]
        kept = {Path(path).resolve() for path in (self.path / f"checkpoint-{step}", best) if path}
        surplus = len(own) - max(limit, len(kept))
        removable = [path for path in own if path.resolve() not in kept]
        for path in removable[: max(0, surplus)]:
            shutil.rmtree(rename_to_remove(path), ignore_errors=True)


def find_named(folder: Path, pattern: re.Pattern) -> list[Path]:
    """Return the subfolders with a fully matching name, sorted."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if pattern.fullmatch(path.name) and path.is_dir()]


def step_of(checkpoint: Path) -> int:
    return int(CHECKPOINT.fullmatch(checkpoint.name)[1])


def steps_of(output_dir: Path) -> dict[Path, int]:
    return {path: step_of(path) for path in find_named(output_dir, CHECKPOINT)}


def is_written(checkpoint: Path) -> bool:
    return (checkpoint / MANIFEST_FILE).is_file()


def is_copy(checkpoint: Path, other: Path) -> bool:
    """Return whether two checkpoints have the same files, or are the same folder."""
    files = [path / MANIFEST_FILE for path in (checkpoint, other)]
    return all(file.is_file() for file in files) and files[0].read_bytes() == files[1].read_bytes()


def rename_abandoned(checkpoint: Path) -> Path:
    target = checkpoint.with_name(f"{ABANDONED}{checkpoint.name}")
    if target.exists():
        target = free_name(target)
    return checkpoint.rename(target)


def rename_to_remove(checkpoint: Path) -> Path:
    """Rename before removal, so that a kill leaves no partial checkpoint."""
    target = checkpoint.with_name(f"{REMOVING}{checkpoint.name.rpartition('-')[2]}")
    if target.exists():
        shutil.rmtree(target)
    return checkpoint.rename(target)


def on_main_process(is_main: bool, find: Callable[[], Any]) -> Any:
    """
    Call a function on the main process; its picklable result is returned, its `ValueError` or `OSError` raised, on
    all.
    """
    from accelerate.utils import broadcast_object_list  # the demo's command line need not import torch

    found = [None]
    if is_main:
        try:
            found = [find()]
        except (ValueError, OSError) as error:
            found = [error]
    broadcast_object_list(found)
    if isinstance(found[0], Exception):
        found[0].already_reported = not is_main
        raise found[0]
    return found[0]


def first_of_processes(value: Any) -> Any:
    """Return the first process's value that is not `None`, on every process."""
    from accelerate.utils import gather_object  # as in `on_main_process`

    return next((found for found in gather_object([value]) if found is not None), None)


class FolderInUseError(ValueError):
    """Another process trains into a folder."""


class FolderLock:
    """
    Keeps every other `FolderLock`, of any process, out of a folder, created if missing.

    A kernel lock on `run.lock`, which names the holder, ends with its process. Forked children do not inherit it.
    Without kernel locks, filelock uses the file's existence.
    """

    def __init__(self, folder: str | os.PathLike):
        self.file = Path(folder).absolute() / LOCK_FILE
        self._lock = FileLock(self.file, timeout=SECONDS, thread_local=False)

    @property
    def held(self) -> bool:
        return self._lock.is_locked

    def hold(self) -> None:
        """Raises [`FolderInUseError`], or `OSError` if it cannot be locked."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        _acquire(self.file, self._lock)
        try:
            if not self.file.read_bytes()[:1].isdigit():  # else filelock's own content
                since = time.strftime("%Y-%m-%d %H:%M:%S")
                with open_own(self.file, "w") as opened:
                    opened.write(f"{HOLDER}{os.getpid()} on {socket.gethostname()}, since {since}")
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        """Decrement the counter; at 0 the folder is free."""
        if self.held and self._lock.lock_counter == 1:  # not in a forked child
            self.file.unlink(missing_ok=True)  # while still locked: afterwards it may be another process's
        self._lock.release()

    def move(self, folder: Path) -> None:
        """Rename the held folder, and hold an empty one of its name."""
        count = self._lock.lock_counter
        self.file.parent.rename(folder)
        (folder / LOCK_FILE).unlink(missing_ok=True)
        self._lock.release(force=True)
        for _ in range(count):
            self.hold()


def _acquire(file: Path, lock: FileLock) -> None:
    try:
        lock.acquire()
    except Timeout:
        content = file.read_text(errors="replace")
        who = content if content.startswith(HOLDER) else "another process"
        raise FolderInUseError(
            f"output_dir '{file.parent}' is in use by another run: {who}. Wait until it ends, stop it, or choose "
            "another folder."
        ) from None
    except OSError as error:
        raise OSError(f"'{file.parent}' cannot be locked ({error}). Choose a folder on another disk.") from error


def check_free(folder: str | os.PathLike) -> None:
    """Raise [`FolderInUseError`] if another process trains into a folder. Creates nothing."""
    file = Path(folder, LOCK_FILE)
    if file.is_file():
        lock = FileLock(file, blocking=False)
        _acquire(file, lock)
        lock.release()


@contextmanager
def exclusive(path: Path, busy: str) -> Iterator[None]:
    """
    Lock a path by the file `.NAME.lock` next to it, or print `busy` and wait. Locks nothing without write permission
    or locks in the file system.
    """
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        print(busy, flush=True)
        lock.acquire()
    except OSError:
        pass
    try:
        yield
    finally:
        lock.release()
