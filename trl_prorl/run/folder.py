"""
The folder of one run, and its checkpoints.

    config.yaml env.json metrics.jsonl events.jsonl evaluations.jsonl
    checkpoint-200/manifest.json …         whole: size and SHA-256 of every file
    _writing-300/checkpoint-300/           while it is written

A checkpoint gets its manifest, and then its name. What a kill leaves between the two, [`RunFolder.find`] returns, and
[`RunFolder.settle`] finishes.
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
LAYOUT = 4  # version of a checkpoint's files
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
        Return the checkpoint of `resume_from_checkpoint`, see [`begin`]; `None`: `"auto"` starts at step 0. Nothing is
        written. Raises `ValueError`: there is no complete checkpoint.
        """
        if self.is_run():
            check_contents(self.path, self.label)  # a log file that is a link would be written through it
        unnamed = {path.name: path for path in self._unnamed()}
        if resume_from not in NEWEST:
            path = Path(resume_from)
            if path.resolve().parent == self.path.resolve():
                path = unnamed.get(path.name, path)
            check_contents(path, f"resume_from_checkpoint={resume_from!r}")
            reason = unusable_reason(path, content)
            if reason is not None:
                raise ValueError(f"resume_from_checkpoint={resume_from!r} cannot be resumed from: {reason}.")
            return path
        reasons = []
        checkpoints = {path.name: path for path in steps_of(self.path)} | unnamed
        for path in sorted(checkpoints.values(), key=step_of, reverse=True):
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

    def begin(self, checkpoint: Path | None, overwrite: bool, base: str | None = None) -> Path | None:
        """
        Start a run at step 0, or from a checkpoint, which is returned with its name: see [`check_room`]. An earlier
        run's folder is renamed. If it is a link, its files stay where they are.
        """
        self.check_room(checkpoint, overwrite, base)
        if self.has_checkpoint(checkpoint):
            is_unnamed = checkpoint in self._unnamed()
            self.settle()
            self._remove_leftovers()
            return self.path / checkpoint.name if is_unnamed else checkpoint
        if not self._obstacles():
            return checkpoint
        aside = free_name(self.path)
        try:
            self.path.rename(aside)
        except OSError as error:  # of a mount point
            raise ValueError(
                f"{self.label} cannot be moved to {aside}: {error.strerror}. Choose another output_dir."
            ) from error
        (aside / SET_ASIDE).touch()
        (aside / LOCK_FILE).unlink(missing_ok=True)
        self._lock.release(force=True)
        self._acquire()
        logger.warning("%s contained an earlier run, which was moved to %s.", self.label, aside)
        return checkpoint

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
        if checkpoint is None:
            return False
        is_here = checkpoint.resolve().parent == self.path.resolve() or checkpoint in self._unnamed()
        if not is_here:
            return False
        if recorded_run_id(self.path) is None:
            files = [path for pattern in WRITTEN for path in self.path.glob(pattern)]
            return not any(path.lstat().st_size for path in files)
        return self._has_written(checkpoint)

    def _has_written(self, checkpoint: Path) -> bool:
        """Return whether the run of this folder has written a checkpoint."""
        return is_written(checkpoint) and saved_run_id(checkpoint) in (None, recorded_run_id(self.path))

    def _may_remove(self, checkpoint: Path) -> bool:
        """Return whether the run of this folder has written a checkpoint, and every file in it."""
        if not self._has_written(checkpoint):
            return False
        try:
            listed = read_json(checkpoint / MANIFEST_FILE).get("files", {})
        except InputError:  # it is damaged
            return False
        return files_of(checkpoint).keys() - listed.keys() == {MANIFEST_FILE}

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
        files = {
            name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
            for name, path in files_of(written).items()
        }
        manifest = {"layout": LAYOUT, "step": step, "resumable": resumable, "files": files}
        (written / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n")
        for path in [*written.rglob("*"), written]:
            sync(path)
        return self._rename(written)

    def _rename(self, written: Path) -> Path:
        named = self.path / written.name
        if self._may_remove(named):
            self.remove(named)
        elif named.exists():  # somebody's own folder, or with somebody's own files
            self._abandon(named, f"abandoned-{named.name}")
        written.rename(named)  # after a kill before this line, `settle` does it
        sync(self.path)
        written.parent.rmdir()
        return named

    def settle(self) -> None:
        """Name the complete checkpoints that a kill left without a name."""
        for written in self._unnamed():
            self._rename(written)

    def _unnamed(self) -> list[Path]:
        if not self.is_run():
            return []
        folders = [folder for folder in self._leftovers() if folder.name.startswith(WRITING)]
        checkpoints = [path for folder in folders for path in steps_of(folder)]
        return [path for path in checkpoints if incomplete_reason(path, content=False) is None]

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
        """
        Remove the oldest checkpoints beyond a limit, but neither that of `step` nor the best. One with a file that no
        run wrote stays, and does not count.
        """
        if not limit or limit < 0:
            return
        checkpoints = [path for path in steps_of(self.path) if step_of(path) <= step and self._may_remove(path)]
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


def files_of(checkpoint: Path) -> dict[str, Path]:
    """Return the files of a checkpoint by their names in its manifest."""
    return {str(path.relative_to(checkpoint)): path for path in sorted(checkpoint.rglob("*")) if path.is_file()}


def is_written(checkpoint: Path) -> bool:
    return (checkpoint / MANIFEST_FILE).is_file()


def unusable_reason(checkpoint: Path, content: bool = True) -> str | None:
    """Return why a run cannot be resumed from a folder, or `None`. Without `content` only JSON files are hashed."""
    reason = incomplete_reason(checkpoint, content)
    if reason is None and not read_json(checkpoint / MANIFEST_FILE)["resumable"]:
        return "it was saved with save_only_model, without optimizer and random states"
    return reason


def incomplete_reason(checkpoint: Path, content: bool = True) -> str | None:
    """Return how a checkpoint differs from its manifest, or `None`; `content` as in [`unusable_reason`]."""
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
        if (content or path.suffix == ".json") and file_sha256(path) != file["sha256"]:
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
