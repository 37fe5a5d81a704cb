"""
Complete checkpoints only: written under another name, hashed, synchronised to disk, then renamed.

In reading order: `WholeCheckpoint` writes one, of all processes; `name_checkpoint` gives it its name; a write that
fails; `find_checkpoint` finds the one to resume from; `adopt_unnamed` names what a kill left without a name, and
`why_unusable` says what is wrong with one.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from .errors import CheckpointError, InputError, RunError
from .files import check_contents, file_sha256
from .keys import AUTO_RESUME
from .run_files import read_json, recorded_run_id, saved_run_id
from .run_folder import (
    MANIFEST_FILE,
    WRITING,
    RunFolder,
    find_named,
    is_written,
    rename_abandoned,
    rename_to_remove,
    steps_of,
)


logger = logging.getLogger(__name__)

LAYOUT = 2  # of a checkpoint: what it holds, and where
UNNAMED = re.compile(rf"{WRITING}\d+")
SMALL = 1 << 20  # bytes; the files that say whose a checkpoint is, and of which step, are smaller


class WholeCheckpoint:
    """
    Holds a checkpoint under construction: it is written aside, and gets its name when it is whole.

    Args:
        output_dir (`Path`): The folder of all checkpoints.
        step (`int`): Optimizer steps done.
        resumable (`bool`): Whether optimizer, schedule and random states will be in it.
        sharded (`bool`): Whether processes gather its tensors from one another while they write, as FSDP and DeepSpeed
            do.
    """

    def __init__(self, output_dir: Path, step: int, resumable: bool, sharded: bool = False):
        name = f"checkpoint-{step}"
        self.output_dir = output_dir
        self.step = step
        self.resumable = resumable
        self.sharded = sharded
        self.folder = output_dir / f"{WRITING}{step}"  # where the trainer believes its checkpoints to be
        self.aside = self.folder / name
        self.final = output_dir / name
        self.failure: Exception | None = None  # the first write of this process that failed

    @contextmanager
    def note_failure(self) -> Iterator[None]:
        """
        Note a write that fails in this context, and let this process go on to where it meets the others.

        If it ended here, it would leave them waiting. Where tensors are sharded it ends here, because it could not
        take part in what the others gather next; the launcher ends them.
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
    def write_aside(self, accelerator, gives_name: bool, record: Iterable[Path]) -> Iterator[None]:
        """
        Let all processes write the checkpoint in this context; at its end one of them gives it its name.

        Args:
            accelerator: Accelerate's.
            gives_name (`bool`): Whether this process gives the name.
            record (`Iterable[Path]`): Log files, which are synchronised to disk before.

        Raises:
            [`~trl_prorl.errors.CheckpointError`]: In every process, if one of them could not write its part; nothing
                of the checkpoint is left.
        """
        with self.note_failure():
            yield
        self._settle(accelerator, gives_name)
        if gives_name:
            with self.note_failure():
                for path in record:
                    sync(path)
                name_checkpoint(self.aside, self.final, self.step, self.resumable)
                self.folder.rmdir()
        self._settle(accelerator, gives_name)

    def _settle(self, accelerator, gives_name: bool) -> None:
        """Wait for every process, and raise the first failure of any of them in all, once nobody writes any more."""
        from accelerate.utils import gather_object  # who asks for the newest checkpoint need not wait for torch

        message = None
        if self.failure is not None:
            message = describe_failed_write(self.final, self.output_dir, self.failure)
            if accelerator.num_processes > 1:
                message = f"In process {accelerator.process_index}, {message}"
        messages = [found for found in gather_object([message]) if found is not None]
        if not messages:
            return
        if gives_name:
            shutil.rmtree(self.folder, ignore_errors=True)
        error = CheckpointError(messages[0])
        error.said_elsewhere = not accelerator.is_main_process  # one line is enough
        raise error from self.failure


def name_checkpoint(aside: Path, final: Path, step: int, resumable: bool) -> None:
    """
    Give a checkpoint, written aside on the same file system, its name.

    One that is there already is replaced. A folder that no run wrote is renamed.

    Args:
        aside (`Path`): The folder that was written.
        final (`Path`): Its name from now on.
        step (`int`): Optimizer steps done.
        resumable (`bool`): Whether optimizer, schedule and random states are in it.
    """
    files = {}
    for path in sorted(aside.rglob("*")):
        if path.is_file():
            files[str(path.relative_to(aside))] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    manifest = {"layout": LAYOUT, "step": step, "resumable": resumable, "files": files}
    (aside / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n")
    for path in [*aside.rglob("*"), aside]:
        sync(path)
    old = None
    if final.exists():
        if is_written(final):
            old = rename_to_remove(final)
        else:
            now = rename_abandoned(final)
            logger.warning("%s was written by no run. It was renamed to %s.", final, now.name)
    aside.rename(final)  # a kill before it leaves `aside`, which is complete: `adopt_unnamed` names it
    sync(final.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_failed_write(error: Exception) -> bool:
    """
    Return whether an error means that a write failed, on a full disk for instance, in the words of whichever library.
    """
    # tokenizers raises no class of its own.
    return isinstance(error, (OSError, RuntimeError, SafetensorError)) or type(error) is Exception


def describe_failed_write(target: Path, output_dir: Path, error: Exception) -> str:
    """Write the message about a checkpoint or a model that could not be written: what is kept, and how to go on."""
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
    Find the checkpoint that `resume_from_checkpoint` means: the newest complete one for `True` and `"auto"`, else the
    named one.

    Returns:
        `Path`: The checkpoint.
        `dict[str, str]`: Newer ones that were skipped, with the reasons.

    Raises:
        `ValueError`: There is none, or it cannot be resumed from.
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
    reason = why_unusable(path, content)
    if reason is not None:
        raise ValueError(
            f"resume_from_checkpoint={str(resume_from)!r} cannot be resumed from: {reason}. Choose another "
            "checkpoint, or set resume_from_checkpoint: true for the newest complete one."
        )
    return path, {}


def means_newest(resume_from: str | os.PathLike | bool) -> bool:
    """Return whether `resume_from_checkpoint` means the newest complete checkpoint: `True` or `"auto"`, as a text."""
    return str(resume_from).lower() in ("true", AUTO_RESUME)


def begins_again(resume_from: str | os.PathLike | bool, folder: RunFolder) -> bool:
    """
    Return whether a resume begins the run again, because it has no checkpoint. What has begun is then set aside.

    Raises:
        `ValueError`: The run is finished, or what lies in the folder is of no run.
    """
    if not means_newest(resume_from):
        return False
    newest, unusable = find_newest_checkpoint(folder.path, content=False)
    if newest is not None:
        return False
    if saved_run_id(folder.path) is not None:  # a run writes it last
        raise FinishedError(
            f"{folder.given} contains a finished run without a complete checkpoint, so there is nothing to resume. "
            "Choose another output_dir. To continue a run later, set save_strategy: steps."
        )
    if unusable and recorded_run_id(folder.path) is None:
        return False  # no run of ours wrote them
    return True


class FinishedError(ValueError):
    """A run that is to be resumed is finished, and has no checkpoint."""


def find_newest_checkpoint(output_dir: str | os.PathLike, content: bool = True) -> tuple[Path | None, dict[str, str]]:
    """
    Find the newest checkpoint that a run can be resumed from, by [`why_unusable`].

    Returns:
        `Path` or `None`: The checkpoint.
        `dict[str, str]`: The newer ones that were skipped, with the reasons.
    """
    folder = Path(output_dir)
    if not folder.is_dir():
        return None, {}
    unnamed = find_unnamed(folder)
    complete = {path.parent for path in unnamed}
    skipped = {}
    for path in find_named(folder, UNNAMED):
        if path not in complete:
            skipped[path.name] = "the run ended while it was being written"
    steps = {**unnamed, **steps_of(folder)}
    for path in sorted(steps, key=steps.get, reverse=True):
        reason = why_unusable(path, content)
        if reason is None:
            return path, skipped
        skipped[path.name] = reason
    return None, skipped


def find_unnamed(output_dir: Path) -> dict[Path, int]:
    """
    Find the complete checkpoints that a kill left where they were written, before they got their names, with their
    steps. One whose name is taken is not among them: the run was killed before it removed the older one of this step.
    """
    found = {}
    for folder in find_named(output_dir, UNNAMED):
        for aside, step in steps_of(folder).items():
            is_free = not os.path.lexists(output_dir / aside.name)
            if is_free and why_incomplete(aside, content=False) is None:
                found[aside] = step
    return found


def adopt_unnamed(output_dir: Path) -> None:
    """Give their names to the checkpoints of [`find_unnamed`]. Only for who holds the folder's lock."""
    for aside in find_unnamed(output_dir):
        name_staged(aside, output_dir)
        logger.warning("The run was killed before %s had its name; it is complete, and has it now.", aside.name)


def name_staged(aside: Path, output_dir: Path) -> Path:
    """Give a checkpoint that is there completely its name, which is free."""
    named = aside.rename(output_dir / aside.name)
    sync(output_dir)
    aside.parent.rmdir()
    return named


def why_unusable(checkpoint: Path, content: bool = True) -> str | None:
    """
    Return the reason why a run cannot be resumed from a folder; `None` if it can.

    Args:
        checkpoint (`Path`): The folder.
        content (`bool`): Whether all hashes are compared; else those of small files, and the sizes of the others.
    """
    reason = why_incomplete(checkpoint, content=False)
    if reason is None and not read_json(checkpoint / MANIFEST_FILE)["resumable"]:
        reason = "it was saved with save_only_model, without optimizer and random states"
    if reason is None and content:
        reason = why_incomplete(checkpoint)
    return reason


def why_incomplete(checkpoint: Path, content: bool = True) -> str | None:
    """Return which file of a checkpoint does not fit its manifest, as [`why_unusable`]; `None` if all of them fit."""
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
    """Name the file of a process's buffer of samples."""
    return f"buffer-{process}.safetensors"
