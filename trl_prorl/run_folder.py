"""
The folder of a run. One run has it; a new run needs one in which nothing of a run lies, and no other folder.

In reading order: `RunFolder`; checkpoints among other files of a folder; `by_main_process`; the locks `FolderLock`,
`check_free` and `exclusive`.
"""

import logging
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .files import STAGED, WANDB, free_name, open_own, read_text
from .run_files import METRICS_FILE, RUN_ID_FILE, recorded_run_id, saved_run_id
from .tasks.plugin import check_not_loading


logger = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
SECONDS = 0.5  # a look at the lock takes it for a moment, see `check_free`
HOLDER = "process "  # begins what the file says
# What may be in the file: that, after a power loss zeros, and filelock's own where the kernel has no locks.
LOCK_CONTENT = re.compile(r"process |\0*$|\d+\n")
MAX_NAMES = 5  # in one message
MANIFEST_FILE = "manifest.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
ABANDONED = "abandoned-"
# Folders that a save, a removal and an upload leave behind when they are cut short. The Hub's uploads leave out what
# begins with an underscore.
WRITING = "_writing-"
REMOVING = "_removing-"
LEFT_BEHIND = re.compile(rf"({WRITING}|{REMOVING}|{STAGED})\d+")
PART = f".*.{'?' * 16}.part"  # of a file that was being written, see `replaced`
SET_ASIDE = "set_aside"  # an empty file in the folder of a run whose name another run has taken
COMPLETIONS = "completions"  # TRL's folder of what was sampled, for `log_completions`
# The files that a run writes. A new run does not begin beside one of them, whoever wrote it.
WRITTEN = (
    "config.yaml README.md merges.txt vocab.txt drift.png *.json *.jsonl *.jinja *.model *.safetensors *.bin"
).split()
# What only a run leaves in its folder, ours or one of TRL's trainer.
TRACES = (
    METRICS_FILE,
    RUN_ID_FILE,
    "training_args.bin",
    "checkpoint-*/trainer_state.json",
    f"{WRITING}*/checkpoint-*",
    f"{COMPLETIONS}/completions_*.parquet",
)


class RunFolder:
    """
    The folder that a run writes to: log files, checkpoints and the trained model.

    Args:
        path (`str` or `os.PathLike`): `output_dir`; a search for hyperparameters has a folder a trial in it.
        own (`Collection[str]`): Names of what the run's own trainer has made in it, which hinders nothing.
    """

    def __init__(self, path: str | os.PathLike, own: Collection[str] = ()):
        self.path = Path(path)
        self.own = own
        self.given = f"output_dir={str(path)!r}"

    # ------------------------------------------------------------------------------- before a run begins

    def check_usable(self) -> None:
        """
        Raise an error for what is there and is no folder that can be written.

        Raises:
            `ValueError`: The message names the key, its value and the cure.
        """
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
        """Return the names of what hinders a new run: folders, and files of a run. A job's log may lie there."""
        if not self.path.is_dir():
            return []
        hinders = []
        for path in sorted(self.path.iterdir()):
            # TRL makes an empty `completions` with its trainer, and a kill may come before the run begins.
            is_folder = path.is_dir() and path.name != WANDB and any(path.iterdir())
            is_written = any(path.match(pattern) for pattern in WRITTEN)
            if (is_folder or is_written) and path.name not in self.own:
                hinders.append(path.name)
        return hinders

    def is_run(self) -> bool:
        """Return whether a run, ours or one of TRL's trainer, has left its traces."""
        return recorded_run_id(self.path) is not None or any(any(self.path.glob(trace)) for trace in TRACES)

    def check_new(self) -> None:
        """
        Raise an error for a folder in which a new run would lie among other files.

        Raises:
            `ValueError`: The message names the folder, what it holds, and the cures.
        """
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

    def check_movable(self, base: str | None) -> None:
        """
        Raise an error for a folder that cannot be set aside as a whole.

        Args:
            base (`str`, *optional*): Hub name or folder of the model of the run that begins.

        Raises:
            `ValueError`: The message names the folder, the reason and the cure.
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
        }
        for reason, applies in reasons.items():
            if applies:
                raise ValueError(
                    f"{self.given} already contains a run, and the folder cannot be moved: it {reason}. Choose "
                    "another output_dir."
                )

    def set_aside(self, base: str | None, lock: "FolderLock") -> None:
        """
        Rename the folder of an earlier run to `NAME.1`, or the next free number, and log it. The run that begins has
        an empty one.

        Args:
            base: As in [`check_movable`].
            lock ([`FolderLock`]): The folder's, which is held, and is held afterwards.

        Raises:
            `ValueError`: It cannot be moved.
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
        """
        Raise an error for a checkpoint of this folder that is of another run than its log files.

        Raises:
            `ValueError`: The message names the folder, the checkpoint and the cure.
        """
        saved = saved_run_id(checkpoint)
        recorded = recorded_run_id(self.path)
        if None not in (saved, recorded) and saved != recorded:  # TRL's own trainer writes no id
            raise ValueError(
                f"{self.given} contains the log files of a different run than {checkpoint.name}, which would be lost. "
                "Set resume_from_checkpoint to its path, and choose another output_dir."
            )

    # --------------------------------------------------------------------------------------- checkpoints

    def has_checkpoint(self, checkpoint: Path) -> bool:
        """Return whether a checkpoint lies in this folder, so that a resume continues with the same run."""
        folder = checkpoint.resolve().parent
        if folder.name.startswith(WRITING):  # it is complete, and gets its name when the run goes on
            folder = folder.parent
        return folder == self.path.resolve()

    def id_of_run(self, checkpoint: Path | None) -> str:
        """Return the id of the run that a checkpoint of this folder continues, else a new one."""
        found = None
        if checkpoint is not None and self.has_checkpoint(checkpoint):
            found = saved_run_id(checkpoint) or recorded_run_id(self.path)
        return found or uuid.uuid4().hex  # which draws from none of the generators of random numbers that a run uses

    def clear_leftovers(self) -> None:
        """Remove what writing, removing, uploading and setting aside left behind when they were cut short."""
        for path in find_named(self.path, LEFT_BEHIND):
            shutil.rmtree(path)
        for path in self.path.glob(PART):
            path.unlink()
        (self.path / SET_ASIDE).unlink(missing_ok=True)

    def abandon_newer(self, checkpoint: Path, unusable: Collection[str] = ()) -> dict[str, str]:
        """
        Rename the checkpoints that are newer than the one from which the run goes on, and log it.

        The run has gone back behind their steps, and the next resume would take the newest of them for its own.

        Args:
            checkpoint (`Path`): The run continues from here; if it lies elsewhere, nothing is renamed.
            unusable (`Collection[str]`): Names of checkpoints that no resume takes; they stay.

        Returns:
            `dict[str, str]`: The new names by the old.
        """
        steps = steps_of(self.path)
        here = [step for path, step in steps.items() if path.resolve() == checkpoint.resolve()]
        newer = [path for path, step in steps.items() if here and step > here[0] and path.name not in unusable]
        renamed = {path.name: rename_abandoned(path).name for path in newer}
        for name, now in renamed.items():
            logger.warning(
                f"{name} is newer than {checkpoint.name}, from which the run resumes, so it was renamed to {now}. "
                "Delete it if you do not need it."
            )
        return renamed

    def remove_oldest(self, step: int, limit: int | None, best: str | os.PathLike | None) -> None:
        """
        Remove the oldest checkpoints of a run beyond a limit, but neither the newest nor the best.

        A folder without a manifest stays, and does not count. Later ones are not of this run: no resume could take
        them, or they would be abandoned. Their steps give the order, not the times at which folders were changed: the
        removal changes a folder as well, and a kill may come in its middle.

        Args:
            step (`int`): The optimizer step of the newest.
            limit (`int`, *optional*): `None`, 0 or less means no limit, as in transformers.
            best (`str` or `os.PathLike`, *optional*): The best checkpoint.
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
    """Find the folders in a folder whose whole name matches a pattern, in order."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if pattern.fullmatch(path.name) and path.is_dir()]


def step_of(checkpoint: Path) -> int:
    """Return the optimizer steps done at a checkpoint."""
    return int(CHECKPOINT.fullmatch(checkpoint.name)[1])


def steps_of(output_dir: Path) -> dict[Path, int]:
    """Map every checkpoint of a folder to the optimizer steps done."""
    return {path: step_of(path) for path in find_named(output_dir, CHECKPOINT)}


def is_written(checkpoint: Path) -> bool:
    """Return whether a run has written a folder of a checkpoint's name."""
    return (checkpoint / MANIFEST_FILE).is_file()


def rename_abandoned(checkpoint: Path) -> Path:
    """Rename a checkpoint that is no longer part of its run, to a name that is free."""
    target = checkpoint.with_name(f"{ABANDONED}{checkpoint.name}")
    if target.exists():
        target = free_name(target)
    return checkpoint.rename(target)


def rename_to_remove(checkpoint: Path) -> Path:
    """Rename a checkpoint that is about to be removed: if a kill comes in the middle, it counts as none."""
    target = checkpoint.with_name(f"{REMOVING}{checkpoint.name.rpartition('-')[2]}")
    if target.exists():
        shutil.rmtree(target)
    return checkpoint.rename(target)


def by_main_process(is_main: bool, find: Callable[[], Any]) -> Any:
    """
    Call a function in the main process, and give its result to all.

    Args:
        is_main (`bool`): Whether this process is the main one.
        find (`Callable`): Returns something that can be pickled.

    Returns:
        `Any`: What `find` returned, in every process.

    Raises:
        `ValueError` or `OSError`: In every process, where `find` raised it.
    """
    from accelerate.utils import broadcast_object_list  # the demo's command line need not wait for torch

    found = [None]
    if is_main:
        try:
            found = [find()]
        except (ValueError, OSError) as error:
            found = [error]
    broadcast_object_list(found)
    if isinstance(found[0], Exception):
        found[0].said_elsewhere = not is_main  # one line is enough
        raise found[0]
    return found[0]


class FolderInUseError(ValueError):
    """Another process trains into a folder."""


class FolderLock:
    """
    Keeps every other `FolderLock`, in this process or in any other, out of a folder.

    The lock is the kernel's, on the file `run.lock`, which also says who holds it. It ends with its process, however
    that ends: a killed process leaves a file behind and no lock. Forked children do not inherit it. Where the kernel
    has no locks, filelock takes the file itself for one.

    Args:
        folder (`str` or `os.PathLike`): It is made if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike):
        self.file = Path(folder).absolute() / LOCK_FILE
        self._lock = FileLock(self.file, timeout=SECONDS, thread_local=False)

    @property
    def held(self) -> bool:
        """Return whether it is held now."""
        return self._lock.is_locked

    def hold(self) -> None:
        """
        Take the folder, or count once more.

        Raises:
            [`FolderInUseError`]: Another process holds it; the message names both.
            `OSError`: The folder cannot be written or locked.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True)
        _acquire(self.file, self._lock)
        try:
            if not self.file.read_bytes()[:1].isdigit():  # else it is filelock's own
                since = time.strftime("%Y-%m-%d %H:%M:%S")
                with open_own(self.file, "w") as opened:
                    opened.write(f"{HOLDER}{os.getpid()} on {socket.gethostname()}, since {since}")
        except BaseException:
            self._lock.release()
            raise

    def release(self) -> None:
        """Count back; the folder is free once it has been called as often as `hold`."""
        if self.held and self._lock.lock_counter == 1:  # not in a forked child
            self.file.unlink(missing_ok=True)  # before it is released: it is nobody else's yet
        self._lock.release()

    def move(self, folder: Path) -> None:
        """Rename the folder, which is held, and hold an empty one of its name."""
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
    """
    Raise an error for a folder that another process trains into. Makes nothing.

    Raises:
        [`FolderInUseError`]: The message names the folder and the process.
    """
    file = Path(folder, LOCK_FILE)
    if file.is_file():
        lock = FileLock(file, blocking=False)
        _acquire(file, lock)
        lock.release()


@contextmanager
def exclusive(path: Path, busy: str) -> Iterator[None]:
    """
    Keep other processes out of what is to be read, completed and written, in this context; wait for one that is there.
    Where the file system has no locks, or the folder cannot be written, nothing is kept out.

    Args:
        path (`Path`): What is locked, by the file `.NAME.lock` in the same folder.
        busy (`str`): Is printed if another process holds the lock.
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
