"""
The folder of one run, and its checkpoints.

    config.yaml env.json metrics.jsonl events.jsonl evaluations.jsonl
    checkpoint-200/manifest.json …         whole: size and SHA-256 of every file
    _writing-300/checkpoint-300/           while it is written

A checkpoint gets its manifest, and then its name. What a kill leaves between the two, [`RunFolder.settle`] finishes.
"""

import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import InputError
from ..keys import AUTO_RESUME
from ..text import visible
from .files import STAGED, check_contents, file_sha256, free_name
from .log_files import (
    DRIFT_FILE,
    METRICS_FILE,
    PASSK_FILE,
    RUN_ID_FILE,
    read_json,
    recorded_run_id,
    saved_run_id,
    step_of_evaluation,
)


logger = logging.getLogger(__name__)

LOCK_FILE = "run.lock"  # empty
MANIFEST_FILE = "manifest.json"
LAYOUT = 3  # version of a checkpoint's files
OTHER_LAYOUT = "it was made by another version of trl-prorl: resume with that version, or start a new run"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
WRITING = "_writing-"
REMOVING = "_removing-"
LEFT_BEHIND = re.compile(rf"({WRITING}|{REMOVING}|{STAGED})\d+")
PART = f".*.{'?' * 16}.part"  # of a file being written, see `replaced`
COMPLETIONS = "completions"  # TRL's folder for `log_completions`
# Files that a run would overwrite.
WRITTEN = (
    "config.yaml README.md merges.txt vocab.txt drift.png *.json *.jsonl *.jinja *.model *.safetensors *.bin"
).split()
TRACES = (METRICS_FILE, RUN_ID_FILE, "checkpoint-*/trainer_state.json")  # of a run, ours or TRL's
SET_ASIDE = "set_aside"  # empty file in the folder of an earlier run
NEWEST = ("True", AUTO_RESUME)


class FinishedError(ValueError):
    """The run to resume is finished."""


class FolderInUseError(ValueError):
    """Another process trains into a folder."""


class RunFolder:
    """The folder that one run, and nothing else, writes to."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.label = f"output_dir={str(path)!r}"
        self._lock = FileLock(self.path / LOCK_FILE, timeout=0.5, thread_local=False)
        # TRL makes it with the trainer, whose evaluations may fill it before the run.
        self._made_by_trl = {COMPLETIONS}.difference(self._obstacles())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out of the folder, which is made if it is missing; re-entrant."""
        if self._lock.is_locked:
            yield
            return
        self._acquire()
        try:
            yield
        finally:
            self._release()

    def _acquire(self) -> None:
        """Raises [`FolderInUseError`]."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise FolderInUseError(f"{self.label} is in use by another run. Wait, or choose another folder.") from None

    def _release(self) -> None:
        lock_file = self.path / LOCK_FILE
        if self._lock.is_locked and lock_file.is_file() and lock_file.stat().st_size == 0:
            lock_file.unlink()  # while it is locked: afterwards it may be another process's
        self._lock.release()

    # The start of a run.

    def find(self, resume_from: str, content: bool = True) -> Path | None:
        """
        Return the checkpoint of `resume_from_checkpoint`; `None`: `"auto"` starts at step 0. Raises `ValueError`:
        there is no complete checkpoint.
        """
        if resume_from not in NEWEST:
            path = Path(resume_from)
            check_contents(path, f"resume_from_checkpoint={resume_from!r}")
            reason = unusable_reason(path, content)
            if reason is not None:
                raise ValueError(f"resume_from_checkpoint={resume_from!r} cannot be resumed from: {reason}.")
            return path
        reasons = []
        for path in sorted(steps_of(self.path), key=step_of, reverse=True):
            reason = unusable_reason(path, content)
            if reason is None:
                return path
            logger.warning("Skipping checkpoint %s: %s.", path.name, visible(reason))
            reasons.append(reason)
        if resume_from == AUTO_RESUME and OTHER_LAYOUT not in reasons:
            if (self.path / RUN_ID_FILE).is_file():  # written last
                raise FinishedError(f"{self.label} contains a finished run without a checkpoint: nothing to resume.")
            return None
        raise ValueError(
            f"resume_from_checkpoint={resume_from}, but {self.label} contains no complete checkpoint "
            f"({reasons[0] if reasons else 'none at all'}). Start a new run in another folder, or move this one aside "
            "with overwrite: true and without resume_from_checkpoint."
        )

    def begin(self, checkpoint: Path | None, overwrite: bool, base: str | None = None) -> None:
        """Start a run at step 0, or from a checkpoint: see [`check_room`]. An earlier run's folder is renamed."""
        self.check_room(checkpoint, overwrite, base)
        if self.has_checkpoint(checkpoint):
            self._remove_leftovers()
            return
        if not self._obstacles():
            return
        aside = free_name(self.path)
        self.path.rename(aside)
        (aside / SET_ASIDE).touch()
        (aside / LOCK_FILE).unlink(missing_ok=True)
        self._lock.release(force=True)
        self._acquire()
        logger.warning("%s contained an earlier run, which was moved to %s.", self.label, aside)

    def check_room(self, checkpoint: Path | None, overwrite: bool, base: str | None = None) -> None:
        """
        Raise `ValueError` for a folder with files that a run from a checkpoint (`None`: from step 0) would overwrite,
        or that cannot be moved. `base`: the starting model, which may be a folder.
        """
        obstacles = [] if self.has_checkpoint(checkpoint) else self._obstacles()
        if not obstacles:
            return
        if not self.is_run():
            raise ValueError(
                f"{self.label} contains {', '.join(obstacles[:5])}, which no run wrote: a new run needs a folder "
                "without other folders and without files that it would overwrite. Choose another output_dir."
            )
        if not overwrite:
            which = "" if checkpoint is None else f", not that of {checkpoint.name}"
            raise ValueError(
                f"{self.label} already contains a run{which}. Choose another output_dir, resume the run with "
                "resume_from_checkpoint: true, or move it aside with overwrite: true."
            )
        whole = self.path.resolve()
        needed = [Path.cwd(), Path.home(), *(Path(path).resolve() for path in (base, checkpoint) if path)]
        for path in needed:
            if path.is_relative_to(whole):
                raise ValueError(f"{self.label} cannot be moved aside: it contains {path}. Choose another output_dir.")

    def _obstacles(self) -> list[str]:
        """Return the names that prevent a new run: folders, and files that it would overwrite."""
        names = []
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            is_folder = path.is_dir() and path.name != "wandb" and any(path.iterdir())
            is_file = any(path.match(pattern) for pattern in WRITTEN)
            if is_folder or is_file:
                names.append(path.name)
        return [name for name in names if name not in getattr(self, "_made_by_trl", ())]

    def is_run(self) -> bool:
        return recorded_run_id(self.path) is not None or any(any(self.path.glob(trace)) for trace in TRACES)

    def has_checkpoint(self, checkpoint: Path | None) -> bool:
        """Return whether a checkpoint lies here, and no files of another run, or of a user, that would be lost."""
        if checkpoint is None or checkpoint.resolve().parent != self.path.resolve():
            return False
        if recorded_run_id(self.path) is None:
            files = [path for pattern in WRITTEN for path in self.path.glob(pattern)]
            return not any(path.lstat().st_size for path in files)
        return self._has_written(checkpoint)

    def _has_written(self, checkpoint: Path) -> bool:
        """Return whether the run of this folder has written a checkpoint."""
        return is_written(checkpoint) and saved_run_id(checkpoint) in (None, recorded_run_id(self.path))

    def id_of_run(self, checkpoint: Path | None) -> str:
        """Return the id of the run that continues here, else a new one."""
        run_id = saved_run_id(checkpoint) if self.has_checkpoint(checkpoint) else None
        return run_id or uuid.uuid4().hex

    # Checkpoints.

    def staging(self, step: int) -> Path:
        """Return the folder of checkpoints while that of a step is written."""
        return self.path / f"{WRITING}{step}"

    def name(self, step: int, resumable: bool) -> Path:
        """Write the manifest of a written checkpoint, and give it its name."""
        written = self.staging(step) / f"checkpoint-{step}"
        files = {}
        for path in sorted(written.rglob("*")):
            if path.is_file():
                files[str(path.relative_to(written))] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        manifest = {"layout": LAYOUT, "step": step, "resumable": resumable, "files": files}
        (written / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n")
        for path in [*written.rglob("*"), written]:
            sync(path)
        return self._rename(written)

    def _rename(self, written: Path) -> Path:
        named = self.path / written.name
        if self._has_written(named):
            self.remove(named)
        elif named.exists():  # somebody's own folder
            self._abandon(named, f"abandoned-{named.name}")
        written.rename(named)  # after a kill before this line, `settle` does it
        sync(self.path)
        written.parent.rmdir()
        return named

    def settle(self) -> None:
        """Name the complete checkpoints that a kill left without a name."""
        if not self.is_run():
            return
        check_contents(self.path, self.label)  # a log file that is a link would be written through it
        for folder in self._leftovers():
            for written in steps_of(folder):
                if folder.name.startswith(WRITING) and incomplete_reason(written, content=False) is None:
                    self._rename(written)

    def _leftovers(self) -> list[Path]:
        return [path for path in self.path.glob("_*") if LEFT_BEHIND.fullmatch(path.name)]

    def _remove_leftovers(self) -> None:
        """Remove what else a kill left. Not in `settle`: a start that is refused removes nothing."""
        for folder in self._leftovers():
            shutil.rmtree(folder, ignore_errors=True)
        for path in [*self.path.glob(PART), self.path / SET_ASIDE]:
            path.unlink(missing_ok=True)

    def remove(self, checkpoint: Path) -> None:
        """Remove a checkpoint: a kill leaves no half of it."""
        gone = self.path / f"{REMOVING}{step_of(checkpoint)}"
        shutil.rmtree(gone, ignore_errors=True)
        checkpoint.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def remove_oldest(self, step: int, limit: int | None, best: str | None) -> None:
        """Remove the oldest checkpoints beyond a limit, but neither that of `step` nor the best."""
        if not limit or limit < 0:
            return
        checkpoints = [path for path in steps_of(self.path) if step_of(path) <= step and self._has_written(path)]
        needed = {Path(path).resolve() for path in (self.path / f"checkpoint-{step}", best) if path}
        surplus = max(0, len(checkpoints) - max(limit, len(needed)))
        removable = [path for path in sorted(checkpoints, key=step_of) if path.resolve() not in needed]
        for path in removable[:surplus]:
            self.remove(path)

    def abandon_newer(self, checkpoint: Path, step: int) -> None:
        """
        Rename checkpoints and evaluations that are newer than the checkpoint, of a step, from which a run continues:
        the next resume would choose them. So would it another checkpoint of that step, if this one has another name.
        """
        manifest = (checkpoint / MANIFEST_FILE).read_bytes()
        for path, number in steps_of(self.path).items():
            if number < step or not is_written(path):
                continue
            if number > step or (path / MANIFEST_FILE).read_bytes() != manifest:
                self._abandon(path, f"abandoned-{path.name}")
        for name in (PASSK_FILE, DRIFT_FILE):
            with suppress(InputError):  # there is none
                measured = step_of_evaluation(read_json(self.path / name))
                if measured is not None and measured > step:
                    self._abandon(self.path / name, name)

    def _abandon(self, path: Path, name: str) -> None:
        target = path.with_name(name)
        if target.exists():
            target = free_name(target)
        path.rename(target)
        logger.warning("%s was renamed to %s: the run does not continue from it.", path, target.name)


def steps_of(folder: Path) -> dict[Path, int]:
    """Return the checkpoints of a folder, and folders with such names, with their steps."""
    folders = [path for path in folder.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return {path: step_of(path) for path in sorted(folders)}


def step_of(checkpoint: Path) -> int:
    return int(CHECKPOINT.fullmatch(checkpoint.name)[1])


def is_written(checkpoint: Path) -> bool:
    return (checkpoint / MANIFEST_FILE).is_file()


def unusable_reason(checkpoint: Path, content: bool = True) -> str | None:
    """Return why a run cannot be resumed from a folder, or `None`. Without `content` only sizes are compared."""
    reason = incomplete_reason(checkpoint, content)
    if reason is None and not read_json(checkpoint / MANIFEST_FILE)["resumable"]:
        return "it was saved with save_only_model, without optimizer and random states"
    return reason


def incomplete_reason(checkpoint: Path, content: bool = True) -> str | None:
    """Return how a checkpoint differs from its manifest, or `None`."""
    if not is_written(checkpoint):
        return f"it has no {MANIFEST_FILE}, so it is not complete"
    try:
        manifest = read_json(checkpoint / MANIFEST_FILE)
    except InputError as error:  # a kill leaves an empty one
        return f"its {MANIFEST_FILE} is not complete ({error})"
    if manifest.get("layout") != LAYOUT:
        return OTHER_LAYOUT
    for name, file in manifest["files"].items():
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != file["bytes"]:
            return f"{name} is missing, or has another size"
        if content and file_sha256(path) != file["sha256"]:
            return f"{name} is damaged"
    return None


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def on_main_process(is_main: bool, compute: Callable[[], Any]) -> Any:
    """Call a function on the main process. Its result is returned, its `ValueError` or `OSError` raised, on all."""
    from accelerate.utils import broadcast_object_list  # the demo's command line need not import torch

    results = [None]
    if is_main:
        try:
            results = [compute()]
        except (ValueError, OSError) as error:
            results = [error]
    broadcast_object_list(results)
    (result,) = results
    if isinstance(result, Exception):
        result.already_reported = not is_main
        raise result
    return result


def first_of_processes(value: Any) -> Any:
    """Return the first process's value that is not `None`, on every process."""
    from accelerate.utils import gather_object  # as in `on_main_process`

    return next((gathered for gathered in gather_object([value]) if gathered is not None), None)


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
