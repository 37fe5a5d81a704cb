"""Complete checkpoints only: written under a temporary name, hashed, synchronised to disk, then renamed."""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ..errors import CheckpointError, InputError, RunError
from ..keys import AUTO_RESUME, read_resume_word
from .files import check_contents, file_sha256
from .folder import (
    MANIFEST_FILE,
    WRITING,
    RunFolder,
    find_named,
    first_of_processes,
    is_written,
    rename_abandoned,
    rename_to_remove,
    step_of,
    steps_of,
)
from .log_files import METRICS_FILE, read_json, read_log, recorded_run_id, saved_run_id, steps_made


logger = logging.getLogger(__name__)

LAYOUT = 2  # version of a checkpoint's files
UNNAMED = re.compile(rf"{WRITING}\d+")
SMALL = 1 << 20  # bytes; files that give a checkpoint's run and step are smaller


class WholeCheckpoint:
    """
    A checkpoint under construction. `resumable`: with optimizer, schedule and random states. `sharded`: processes
    gather tensors while writing (FSDP, DeepSpeed).
    """

    def __init__(self, output_dir: Path, step: int, resumable: bool, sharded: bool):
        name = f"checkpoint-{step}"
        self.output_dir = output_dir
        self.step = step
        self.resumable = resumable
        self.sharded = sharded
        self.folder = output_dir / f"{WRITING}{step}"  # Trainer's folder of checkpoints during the write
        self.staging = self.folder / name
        self.final = output_dir / name
        self.failure: Exception | None = None  # this process's first failed write

    @contextmanager
    def note_failure(self) -> Iterator[None]:
        """
        Record a failed write, and continue to the next barrier, where others wait. With sharded tensors, raise the
        error: this process could not take part in the next gather.
        """
        try:
            yield
        except Exception as error:
            if not is_failed_write(error) or isinstance(error, RunError):
                raise
            if self.sharded:
                raise CheckpointError(describe_failed_write(self.final, self.output_dir, error)) from error
            if self.failure is None:
                self.failure = error

    @contextmanager
    def write_staged(self, accelerator, gives_name: bool, record: Iterable[Path]) -> Iterator[None]:
        """
        Let all processes write in this context, then one (`gives_name`) rename, after synchronising the log files
        `record` to disk. A failure removes the checkpoint and raises [`~trl_prorl.errors.CheckpointError`] on every
        process.
        """
        with self.note_failure():
            yield
        self._raise_first_failure(accelerator, gives_name)
        if gives_name:
            with self.note_failure():
                for path in record:
                    sync(path)
                name_checkpoint(self.staging, self.final, self.step, self.resumable)
                self.folder.rmdir()
        self._raise_first_failure(accelerator, gives_name)

    def _raise_first_failure(self, accelerator, gives_name: bool) -> None:
        """Raise the first failure of any process on all."""
        message = None
        if self.failure is not None:
            message = describe_failed_write(self.final, self.output_dir, self.failure)
            if accelerator.num_processes > 1:
                message = f"In process {accelerator.process_index}, {message}"
        message = first_of_processes(message)
        if message is None:
            return
        if gives_name:
            shutil.rmtree(self.folder, ignore_errors=True)
        error = CheckpointError(message)
        error.already_reported = not accelerator.is_main_process
        raise error from self.failure


def name_checkpoint(staging: Path, final: Path, step: int, resumable: bool) -> None:
    """
    Write the manifest of `staging` and rename it to `final` (same file system). Replaces an older checkpoint; renames
    a folder without a manifest.
    """
    files = {}
    for path in sorted(staging.rglob("*")):
        if path.is_file():
            files[str(path.relative_to(staging))] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    manifest = {"layout": LAYOUT, "step": step, "resumable": resumable, "files": files}
    (staging / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n")
    for path in [*staging.rglob("*"), staging]:
        sync(path)
    old = None
    if final.exists():
        if is_written(final):
            old = rename_to_remove(final)
        else:
            now = rename_abandoned(final)
            logger.warning("%s was written by no run. It was renamed to %s.", final, now.name)
    staging.rename(final)  # after a kill before this line, `adopt_unnamed` renames `staging`
    sync(final.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_failed_write(error: Exception) -> bool:
    # tokenizers raises plain `Exception`.
    return isinstance(error, (OSError, RuntimeError, SafetensorError)) or type(error) is Exception


def describe_failed_write(target: Path, output_dir: Path, error: Exception) -> str:
    steps = steps_of(output_dir)
    newest = f"The newest checkpoint is {max(steps, key=steps.get).name}" if steps else "There is no older checkpoint"
    free = shutil.disk_usage(output_dir).free / 2**30
    return (
        f"{target} could not be written: {type(error).__name__}: {error} ({free:.2f} GiB free). {newest}. Free some "
        "space, lower save_total_limit or set another output_dir, then resume with resume_from_checkpoint: true."
    )


def find_checkpoint(
    resume_from: str | os.PathLike | bool, output_dir: str, content: bool = True
) -> tuple[Path, dict[str, str]]:
    """
    Find the checkpoint of `resume_from_checkpoint`, and the skipped newer ones with reasons. Raises `ValueError`:
    none, or unusable.
    """
    if means_newest(resume_from):
        found, skipped = find_newest_checkpoint(output_dir, content)
        if found is None:
            listed = "".join(f" {name}: {reason}." for name, reason in skipped.items())
            cure = "Set resume_from_checkpoint: auto to start at step 0"
            if skipped:
                cure = "Start a new run in another output_dir"
            raise ValueError(
                f"resume_from_checkpoint={resume_from}, but output_dir={str(output_dir)!r} contains no complete "
                f"checkpoint.{listed} {cure}, or set resume_from_checkpoint to a checkpoint in another folder."
            )
        return found, skipped
    path = Path(resume_from)
    if not path.is_dir():
        raise ValueError(
            f"resume_from_checkpoint={str(resume_from)!r} is not a checkpoint: the folder does not exist."
        )
    check_contents(path, f"resume_from_checkpoint={str(resume_from)!r}")
    reason = unusable_reason(path, content)
    if reason is not None:
        raise ValueError(
            f"resume_from_checkpoint={str(resume_from)!r} cannot be resumed from: {reason}. Choose another "
            "checkpoint, or set resume_from_checkpoint: true for the newest complete one."
        )
    return path, {}


def means_newest(resume_from: str | os.PathLike | bool) -> bool:
    return str(resume_from).lower() in ("true", AUTO_RESUME)


def begins_again(resume_from: str | os.PathLike | bool, folder: RunFolder) -> bool:
    """Return whether a resume restarts at step 0, for lack of a checkpoint. Raises [`FinishedError`]."""
    if not means_newest(resume_from):
        return False
    newest, unusable = find_newest_checkpoint(folder.path, content=False)
    if newest is not None:
        return False
    if saved_run_id(folder.path) is not None:  # written last by a run
        raise FinishedError(
            f"{folder.given} contains a finished run without a complete checkpoint, so there is nothing to resume. "
            "Choose another output_dir. To continue a run later, set save_strategy: steps."
        )
    if unusable and recorded_run_id(folder.path) is None:
        return False  # not written by trl-prorl
    return True


def refuse_finished(resume_from: str | os.PathLike | bool, folder: RunFolder, max_steps: int) -> None:
    """
    Raise [`FinishedError`] if `"auto"` would compute the last steps of a finished run again: its newest checkpoint is
    older (`save_strategy: best`), but it has made all `max_steps`, and saved its model.
    """
    if read_resume_word(resume_from) != AUTO_RESUME or max_steps <= 0:
        return
    newest, _ = find_newest_checkpoint(folder.path, content=False)
    own = saved_run_id(folder.path)
    if newest is None or own is None or own != recorded_run_id(folder.path):
        return
    steps = [row["step"] for row in read_log(folder.path, METRICS_FILE)]  # without those that a resume went back over
    last = min(steps_made(folder.path), max(steps, default=0))
    if step_of(newest) < max_steps <= last:
        raise FinishedError(
            f"{folder.given} contains a finished run of {last} steps. To train it for longer, raise "
            f"max_steps={max_steps}. To repeat its last steps from {newest.name}, set resume_from_checkpoint: true."
        )


class FinishedError(ValueError):
    """The run to resume is finished, and has no checkpoint of its last step."""


def find_newest_checkpoint(output_dir: str | os.PathLike, content: bool = True) -> tuple[Path | None, dict[str, str]]:
    """Return the newest usable checkpoint, and the skipped newer ones with reasons."""
    folder = Path(output_dir)
    unnamed = find_unnamed(folder)
    complete = {path.parent for path in unnamed}
    skipped = {}
    for path in find_named(folder, UNNAMED):
        if path not in complete:
            skipped[path.name] = "the run ended while it was being written"
    steps = {**unnamed, **steps_of(folder)}
    for path in sorted(steps, key=steps.get, reverse=True):
        reason = unusable_reason(path, content)
        if reason is None:
            return path, skipped
        skipped[path.name] = reason
    return None, skipped


def find_unnamed(output_dir: Path) -> dict[Path, int]:
    """
    Return steps of complete checkpoints that a kill left under their temporary name, unless an older one of that step
    has the final name.
    """
    found = {}
    for folder in find_named(output_dir, UNNAMED):
        for staging, step in steps_of(folder).items():
            is_free = not os.path.lexists(output_dir / staging.name)
            if is_free and incomplete_reason(staging, content=False) is None:
                found[staging] = step
    return found


def adopt_unnamed(output_dir: Path) -> None:
    """Rename the checkpoints of [`find_unnamed`], with the folder's lock."""
    for staging in find_unnamed(output_dir):
        name_staged(staging, output_dir)
        logger.warning("The run was killed before %s had its name; it is complete, and has it now.", staging.name)


def name_staged(staging: Path, output_dir: Path) -> Path:
    named = staging.rename(output_dir / staging.name)
    sync(output_dir)
    staging.parent.rmdir()
    return named


def unusable_reason(checkpoint: Path, content: bool = True) -> str | None:
    """
    Return why a run cannot be resumed from a folder, or `None`. Without `content`, only hashes of small files, and
    sizes, are compared.
    """
    reason = incomplete_reason(checkpoint, content=False)
    if reason is None and not read_json(checkpoint / MANIFEST_FILE)["resumable"]:
        reason = "it was saved with save_only_model, without optimizer and random states"
    if reason is None and content:
        reason = incomplete_reason(checkpoint)
    return reason


def incomplete_reason(checkpoint: Path, content: bool = True) -> str | None:
    """Return the first mismatch with a checkpoint's manifest, or `None`."""
    try:
        if not (checkpoint / MANIFEST_FILE).exists():
            return (
                f"it has no {MANIFEST_FILE}: it is incomplete, or was written by TRL's own trainer; its weights can "
                'start a new run (docs/howto-model.md, "From a TRL run")'
            )
        manifest = read_json(checkpoint / MANIFEST_FILE, ("resumable", "files"))
        if manifest.get("layout") != LAYOUT:
            return "it was made by another version of trl-prorl: resume with that one, or start a new run"
        files = manifest["files"]
        expected = {name: (file["bytes"], file["sha256"]) for name, file in files.items()}
    except (InputError, TypeError, KeyError, AttributeError) as error:
        return f"its {MANIFEST_FILE} cannot be read ({error})"
    for name, (size, _) in expected.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    for name, (size, sha256) in expected.items():
        if (content or size <= SMALL) and file_sha256(checkpoint / name) != sha256:
            return f"{name} is damaged: it does not match its hash"
    return None


def buffer_file(process: int) -> str:
    return f"buffer-{process}.safetensors"
