"""Whole checkpoints only: written aside, listed with sizes and hashes, synchronised to disk, and then renamed."""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ..errors import CheckpointError, InputError, RunError
from ..files import free_name
from ..record.folders import LEFT_BEHIND, find_named
from ..record.run_files import read_json
from ..record.run_id import saved_run_id
from ..record.shapes import flag, integer, table, text


logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
MANIFEST = table({"resumable": flag, "files": table(rest=table({"bytes": integer(0), "sha256": text}))})
ABANDONED = "abandoned-"
INCOMPLETE = "_incomplete-"  # the Hub's uploads leave out what begins with an underscore
SMALL = 1 << 20  # bytes; the files that say whose a checkpoint is, and of which step, are smaller
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_failed_write(error: Exception) -> bool:
    """Whether an error means that a write failed, on a full disk for instance, in the words of whichever library."""
    # tokenizers raises no class of its own.
    return isinstance(error, (OSError, RuntimeError, SafetensorError)) or type(error) is Exception


def name_checkpoint(aside: Path, final: Path, step: int, resumable: bool) -> None:
    """
    Give a checkpoint of an optimizer step, written aside on the same file system, its name. One that is there already
    is replaced if it is of the same run, and else renamed. `resumable`: whether optimizer, schedule and random states
    are in it.
    """
    paths = [path for path in sorted(aside.rglob("*")) if path.is_file()]
    files = {str(path.relative_to(aside)): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in paths}
    manifest = {"step": step, "resumable": resumable, "files": files}
    (aside / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n")
    for path in [*aside.rglob("*"), aside]:
        sync(path)
    old = aside.with_name(f"{INCOMPLETE}old-{final.name}")
    if final.exists():
        if is_of_run(final, saved_run_id(aside)):
            final.rename(old)
        else:
            now = _rename_abandoned(final)
            logger.warning("%s was there already, and not of this run. It is now called %s.", final, now.name)
    aside.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    sync(final.parent)


def is_of_run(checkpoint: Path, run_id: str | None) -> bool:
    """Whether a folder is a checkpoint that the run of this id has written."""
    found = saved_run_id(checkpoint)
    if found is not None and run_id is not None:
        return found == run_id
    # An earlier version wrote no id, and a power loss may have taken it.
    return any((checkpoint / name).is_file() for name in (MANIFEST_FILE, "trainer_state.json"))


def is_fork(checkpoint: Path, output_dir: str | os.PathLike) -> bool:
    """Whether a run that goes on from a checkpoint is another one than the checkpoint's, in another folder."""
    return checkpoint.resolve().parent != Path(output_dir).resolve()


def _rename_abandoned(checkpoint: Path) -> Path:
    target = checkpoint.with_name(f"{ABANDONED}{checkpoint.name}")
    return checkpoint.rename(free_name(target) if target.exists() else target)


class WholeCheckpoint:
    """
    A checkpoint under construction in the folder of all checkpoints, after so many optimizer steps: written aside, and
    given its name when it is whole. `resumable`: whether optimizer, schedule and random states will be in it.
    `sharded`: whether processes gather its tensors from one another while they write, as FSDP and DeepSpeed do.
    """

    def __init__(self, run_dir: Path, step: int, resumable: bool, sharded: bool = False):
        name = f"checkpoint-{step}"
        self.run_dir = run_dir
        self.step = step
        self.resumable = resumable
        self.sharded = sharded
        self.folder = run_dir / f"{INCOMPLETE}{name}"  # where the trainer believes its checkpoints to be
        self.aside, self.final = self.folder / name, run_dir / name
        self.failure: Exception | None = None  # the first write of this process that failed

    @contextmanager
    def failure_noted(self) -> Iterator[None]:
        """
        A part of the writing. A write that fails in it is noted, and this process goes on to where it meets the
        others: one that ended here would leave them waiting. Where tensors are sharded it ends here, because it could
        not take part in what the others gather next; the launcher ends them.
        """
        try:
            yield
        except Exception as error:
            if not is_failed_write(error) or isinstance(error, RunError):
                raise
            if self.sharded:
                raise CheckpointError(save_failed(self.final, self.run_dir, error)) from error
            if self.failure is None:
                self.failure = error

    @contextmanager
    def written_aside(self, accelerator, names: bool, record: Iterable[Path]) -> Iterator[None]:
        """
        The time in which all processes write it; at the end one of them `names` it, with the files of the record on
        disk. Raises [`~trl_prorl.errors.CheckpointError`], in every process: one of them could not write its part;
        nothing of the checkpoint is left.
        """
        with self.failure_noted():
            yield
        self._settle(accelerator, names)
        if names:
            with self.failure_noted():
                for path in record:
                    sync(path)
                name_checkpoint(self.aside, self.final, self.step, self.resumable)
                self.folder.rmdir()
        self._settle(accelerator, names)

    def _settle(self, accelerator, names: bool) -> None:
        """Wait for every process, and raise the first failure of any of them in all, once nobody writes any more."""
        from accelerate.utils import gather_object  # who asks for the newest checkpoint need not wait for torch

        message = None
        if self.failure is not None:
            message = save_failed(self.final, self.run_dir, self.failure)
            if accelerator.num_processes > 1:
                message = f"In process {accelerator.process_index}, {message}"
        messages = [found for found in gather_object([message]) if found is not None]
        if not messages:
            return
        if names:
            shutil.rmtree(self.folder, ignore_errors=True)
        error = CheckpointError(messages[0])
        error.said_elsewhere = not accelerator.is_main_process  # one line is enough
        raise error from self.failure


def steps_of(output_dir: Path) -> dict[Path, int]:
    """Optimizer steps done, by checkpoint."""
    return {path: int(match[1]) for path in output_dir.iterdir() if (match := CHECKPOINT.fullmatch(path.name))}


def save_failed(target: Path, run_dir: Path, error: Exception) -> str:
    """The message about a checkpoint or a model that could not be written: what is kept, and how to go on."""
    steps = steps_of(run_dir)
    newest = f"The newest checkpoint is {max(steps, key=steps.get).name}" if steps else "There is no older checkpoint"
    free = shutil.disk_usage(run_dir).free / 2**30
    return (
        f"{target} could not be written: {type(error).__name__}: {error} ({free:.2f} GiB are free there). "
        f"{newest}. Make room, lower save_total_limit or set another output_dir, and go on with "
        "resume_from_checkpoint: true."
    )


def why_unusable(checkpoint: Path, content: bool = True) -> str | None:
    """
    Why a run cannot be resumed from a folder, or `None` if it can. Without `content` only the hashes of small files
    are compared, and the sizes of the others.
    """
    try:
        if not (checkpoint / MANIFEST_FILE).exists():
            return (
                f"it has no {MANIFEST_FILE}: it is not complete, or was written by TRL's own trainer; its weights can "
                'begin a new run (docs/howto-model.md, "From a TRL run")'
            )
        manifest = read_json(checkpoint / MANIFEST_FILE, MANIFEST)
    except InputError as error:
        return f"its {MANIFEST_FILE} cannot be read ({error})"
    files = manifest["files"]
    for name, expected in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}"
    if not manifest["resumable"]:
        return "it was saved with save_only_model, without optimizer and random states"
    for name, expected in files.items():
        if (content or expected["bytes"] <= SMALL) and sha256(checkpoint / name) != expected["sha256"]:
            return f"{name} is damaged: its content is not what was written"
    return None


def newest_complete(output_dir: str | os.PathLike, content: bool = True) -> tuple[Path | None, dict[str, str]]:
    """
    The newest checkpoint of a run that can be resumed from, by [`why_unusable`], and the newer ones that were skipped,
    with the reasons.
    """
    folder = Path(output_dir)
    if not folder.is_dir():
        return None, {}
    skipped = {path.name: "the run ended while it was being written" for path in leftovers(folder)}
    steps = steps_of(folder)
    for path in sorted(steps, key=steps.get, reverse=True):
        reason = why_unusable(path, content)
        if reason is None:
            return path, skipped
        skipped[path.name] = reason
    return None, skipped


def abandon_newer(checkpoint: Path, output_dir: Path, unusable: Collection[str] = ()) -> dict[str, str]:
    """
    Rename the checkpoints of a folder that are newer than the one in it from which a run goes on, and return the new
    names by the old. The run has gone back behind their steps, and the next resume would take the newest of them for
    its own. The `unusable` ones, which no resume takes, stay.
    """
    steps = {path.resolve(): step for path, step in sorted(steps_of(output_dir).items())}
    here, renamed = steps.get(checkpoint.resolve()), {}
    for path, step in steps.items() if here is not None else ():
        if step > here and path.name not in unusable:
            renamed[path.name] = _rename_abandoned(path).name
    return renamed


def rotate(
    output_dir: Path, step: int, limit: int | None, best: str | os.PathLike | None, run_id: str | None = None
) -> None:
    """
    Remove the oldest checkpoints of a run beyond a limit (`None` or 0: none), but neither the newest, of optimizer
    step `step`, nor the best. A folder that the run of this id did not write stays, and does not count. Later ones
    are not of this run: no resume could take them, or they would be abandoned. Their steps give the order, not the
    times at which folders were changed: the removal changes a folder as well, and a kill may come in its middle.
    """
    steps = steps_of(output_dir)
    own = [path for path in steps if steps[path] <= step and is_of_run(path, run_id)]
    checkpoints = sorted(own, key=steps.get)
    kept = {Path(path).resolve() for path in (output_dir / f"checkpoint-{step}", best) if path}
    surplus = len(checkpoints) - max(limit, len(kept)) if limit else 0
    for path in [path for path in checkpoints if path.resolve() not in kept][: max(0, surplus)]:
        # Half a checkpoint would count as one; a folder that a kill leaves under this name is removed later.
        old = path.with_name(f"{INCOMPLETE}old-{path.name}")
        path.rename(old)
        shutil.rmtree(old, ignore_errors=True)


def leftovers(folder: Path) -> list[Path]:
    """The folders left behind by saves and removals that were cut short."""
    return [path for path in find_named(folder, LEFT_BEHIND) if path.name.startswith(INCOMPLETE) and path.is_dir()]


def find_checkpoint(
    asked: str | os.PathLike | bool, output_dir: str, content: bool = True
) -> tuple[Path, dict[str, str]]:
    """
    What `resume_from_checkpoint` means: the newest complete checkpoint for `True`, else the one that is named. Raises
    `ValueError`: there is none, or it cannot be resumed from.
    """
    if asked is True or str(asked).lower() == "true":
        found, skipped = newest_complete(output_dir, content)
        if found is None:
            listed = "".join(f" {name}: {reason}." for name, reason in skipped.items())
            cure = "Start the run again in another output_dir" if skipped else "Leave it out to begin a run there"
            raise ValueError(
                f"resume_from_checkpoint=True, but output_dir={str(output_dir)!r} holds no checkpoint that is "
                f"complete.{listed} {cure}, or name a checkpoint of another folder."
            )
        return found, skipped
    path = Path(asked)
    if not path.is_dir():
        raise ValueError(f"resume_from_checkpoint={str(asked)!r} is not a checkpoint: there is no such folder.")
    if reason := why_unusable(path, content):
        raise ValueError(
            f"resume_from_checkpoint={str(asked)!r} cannot be resumed from: {reason}. Name another one, or use "
            "resume_from_checkpoint: true for the newest that is complete."
        )
    return path, {}
