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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import InputError
from .files import STAGED, check_contents, file_sha256, free_name
from .log_files import METRICS_FILE, RUN_ID_FILE, read_json, recorded_run_id


logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
WRITING = "_writing-"
REMOVING = "_removing-"
LEFT_BEHIND = re.compile(rf"({WRITING}|{REMOVING}|{STAGED})\d+")
WRITTEN = "config.yaml README.md *.json *.jsonl *.jinja *.safetensors *.bin".split()  # what a run would overwrite
SET_ASIDE = "set_aside"  # empty file in the folder of an earlier run
NEWEST = ("True", "auto")


class FinishedError(ValueError):
    """The run to resume is finished."""


class FolderInUseError(ValueError):
    """Another process trains into a folder."""


class RunFolder:
    """The folder that one run, and nothing else, writes to."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.given = f"output_dir={str(path)!r}"
        whole = self.path.resolve()  # one lock for a folder and the links to it
        self._lock = FileLock(whole.with_name(f".{whole.name}.lock"), timeout=0.5, thread_local=False)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out of the folder; re-entrant. Raises [`FolderInUseError`]."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise FolderInUseError(f"{self.given} is in use by another run. Wait, or choose another folder.") from None
        try:
            yield
        finally:
            self._lock.release()

    def begin(self, resume_from: str | None, overwrite: bool) -> Path | None:
        """
        Return the checkpoint from which a run goes on; `None`: it starts anew, in a folder without another run.
        Raises `ValueError`: there is a run, or no whole checkpoint.
        """
        self.settle()
        if resume_from is not None:
            check_contents(self.path, self.given)  # a log file that is a link would be written through it
        if resume_from == "auto" and not steps_of(self.path):
            if (self.path / RUN_ID_FILE).is_file():  # written last
                raise FinishedError(f"{self.given} contains a finished run without a checkpoint: nothing to resume.")
            resume_from, overwrite = None, True
        checkpoint = None if resume_from is None else self.find(resume_from)
        if checkpoint is None or not self.has_checkpoint(checkpoint):
            self._make_room(overwrite)
        return checkpoint

    def _make_room(self, overwrite: bool) -> None:
        if not (self.path / METRICS_FILE).exists() and not steps_of(self.path):
            others = sorted({path.name for pattern in WRITTEN for path in self.path.glob(pattern)})
            if others:
                raise ValueError(f"{self.given} contains {', '.join(others)}, which a run would overwrite, and none wrote.")
            return
        if not overwrite:
            raise ValueError(
                f"{self.given} already contains a run. Choose another output_dir, resume the run with "
                "resume_from_checkpoint: true, or move it aside with overwrite: true."
            )
        whole = self.path.resolve()
        if any(place.is_relative_to(whole) for place in (Path.cwd(), Path.home())):
            raise ValueError(f"{self.given} cannot be moved aside: it contains the working or the home directory.")
        aside = free_name(self.path)
        (self.path / SET_ASIDE).touch()
        self.path.rename(aside)
        logger.warning("%s contained an earlier run, which was moved to %s.", self.given, aside)

    def find(self, resume_from: str, content: bool = True) -> Path:
        """Return the checkpoint of `resume_from_checkpoint`. Raises `ValueError`: it is not whole."""
        if resume_from not in NEWEST:
            path = Path(resume_from)
            reason = unusable_reason(path, content)
            if reason is not None:
                raise ValueError(f"resume_from_checkpoint={resume_from!r} cannot be resumed from: {reason}.")
            return path
        for path in sorted(steps_of(self.path), key=step_of, reverse=True):
            reason = unusable_reason(path, content)
            if reason is None:
                return path
            logger.warning("Skipping checkpoint %s: %s.", path.name, reason)
        raise ValueError(
            f"resume_from_checkpoint={resume_from}, but {self.given} contains no whole checkpoint. Start a new run in "
            "another folder, or move this one aside with overwrite: true and without resume_from_checkpoint."
        )

    def has_checkpoint(self, checkpoint: Path) -> bool:
        return checkpoint.resolve().parent == self.path.resolve()

    def id_of_run(self, checkpoint: Path | None) -> str:
        """Return the id of the run that goes on here, else a new one."""
        is_here = checkpoint is not None and self.has_checkpoint(checkpoint)
        return (recorded_run_id(self.path) if is_here else None) or uuid.uuid4().hex

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
        manifest = {"step": step, "resumable": resumable, "files": files}
        (written / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n")
        for path in [*written.rglob("*"), written]:
            sync(path)
        return self._rename(written)

    def _rename(self, written: Path) -> Path:
        named = self.path / written.name
        if is_written(named):
            self.remove(named)
        elif named.exists():  # somebody's own folder
            named.rename(free_name(named.with_name(f"abandoned-{named.name}")))
        written.rename(named)  # after a kill before this line, `settle` does it
        sync(self.path)
        written.parent.rmdir()
        return named

    def settle(self) -> None:
        """Name the whole checkpoints that a kill left without a name, and remove what is not whole."""
        for folder in [path for path in self.path.glob("_*") if LEFT_BEHIND.fullmatch(path.name)]:
            for written in steps_of(folder):
                if folder.name.startswith(WRITING) and incomplete_reason(written, content=False) is None:
                    self._rename(written)
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self, checkpoint: Path) -> None:
        """Remove a checkpoint: a kill leaves no half of it."""
        gone = self.path / f"{REMOVING}{step_of(checkpoint)}"
        shutil.rmtree(gone, ignore_errors=True)
        checkpoint.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def remove_oldest(self, step: int, limit: int | None, best: str | None) -> None:
        """Remove the oldest checkpoints beyond a limit, but neither that of `step` nor the best."""
        own = [path for path in sorted(steps_of(self.path), key=step_of) if step_of(path) <= step and is_written(path)]
        kept = {Path(path).resolve() for path in (self.path / f"checkpoint-{step}", best) if path}
        surplus = len(own) - max(limit, len(kept)) if limit else 0
        for path in [path for path in own if path.resolve() not in kept][: max(0, surplus)]:
            self.remove(path)

    def abandon_newer(self, step: int) -> None:
        """Rename checkpoints that are newer than the one from which a run goes on: the next resume would take them."""
        for path in steps_of(self.path):
            if step_of(path) > step:
                now = path.rename(free_name(path.with_name(f"abandoned-{path.name}")))
                logger.warning("%s is newer than the resumed step %d, and was renamed to %s.", path, step, now.name)


def steps_of(folder: Path) -> dict[Path, int]:
    """Return the named checkpoints of a folder, with their steps."""
    found = [path for path in folder.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name) and path.is_dir()]
    return {path: step_of(path) for path in sorted(found)}


def step_of(checkpoint: Path) -> int:
    return int(CHECKPOINT.fullmatch(checkpoint.name)[1])


def is_written(checkpoint: Path) -> bool:
    return (checkpoint / MANIFEST_FILE).is_file()


def unusable_reason(checkpoint: Path, content: bool = True) -> str | None:
    """Return why a run cannot go on from a folder, or `None`. Without `content` only sizes are compared."""
    reason = incomplete_reason(checkpoint, content)
    if reason is None and not read_json(checkpoint / MANIFEST_FILE)["resumable"]:
        return "it was saved with save_only_model, without optimizer and random states"
    return reason


def incomplete_reason(checkpoint: Path, content: bool = True) -> str | None:
    """Return how a checkpoint differs from its manifest, or `None`."""
    if not is_written(checkpoint):
        return f"it has no {MANIFEST_FILE}, so it is not whole"
    try:
        files = read_json(checkpoint / MANIFEST_FILE)["files"]
    except (InputError, KeyError) as error:  # a kill leaves an empty one
        return f"its {MANIFEST_FILE} is not whole ({error})"
    for name, file in files.items():
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


def on_main_process(is_main: bool, find: Callable[[], Any]) -> Any:
    """Call a function on the main process. Its result is returned, its `ValueError` or `OSError` raised, on all."""
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


@contextmanager
def exclusive(path: Path, busy: str) -> Iterator[None]:
    """Lock a path by the file `.NAME.lock` next to it, or print `busy` and wait."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print(busy, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
