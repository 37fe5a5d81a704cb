"""Resume on another machine: `resume_from_checkpoint: hub:USER/RUN`."""

import math
import shutil
from pathlib import Path

from ..errors import InputError
from ..run.checkpoint_files import (
    adopt_unnamed,
    find_newest_checkpoint,
    incomplete_reason,
    name_staged,
    unusable_reason,
)
from ..run.files import check_contents, replaced
from ..run.folder import MANIFEST_FILE, WRITING, FolderLock, RunFolder, step_of
from ..run.log_files import (
    BASE_ADAPTER,
    ENV_FILE,
    METRICS_FILE,
    RUN_ID_FILE,
    TRAINER_STATE,
    read_json,
    read_log,
    recorded_run_id,
    saved_run_id,
)
from ..text import one_line
from .publish import RECORD_FILES, make_api


PREFIX = "hub:"
RECORD = (*RECORD_FILES, f"{BASE_ADAPTER}/*")


def fetch_run(
    resume_from: str,
    folder: RunFolder,
    lock: FolderLock,
    overwrite: bool,
    token: str | None = None,
    revision: str | None = None,
) -> Path:
    """
    Download log files, the newest complete checkpoint and, if pushed, the best one into a locked folder; return the
    newest. Checkpoints beyond the last step of the log belong to an attempt that a roll-back or a resume has left.

    A checkpoint in the folder is used if it is as new. An older copy of the run is set aside, with `overwrite` also
    another run. The folder changes only after all downloads. Raises `ValueError`: the repository cannot be read, or
    has no complete checkpoint; or the folder is another run's.
    """
    repo = resume_from.removeprefix(PREFIX)
    given = f"resume_from_checkpoint={resume_from!r}"
    api = make_api(token)
    try:
        commit = api.model_info(repo, revision=revision).sha  # all files are from this commit
        patterns = [*RECORD, *(f"*checkpoint*/{name}" for name in (MANIFEST_FILE, RUN_ID_FILE))]
        down = Path(api.snapshot_download(repo, revision=commit, allow_patterns=patterns))
        last_step = max((row["step"] for row in read_log(down, METRICS_FILE)), default=math.inf)
        steps = {}
        for path in down.glob(f"*checkpoint*/{MANIFEST_FILE}"):
            step = read_json(path).get("step")
            is_own = saved_run_id(path.parent) in (None, recorded_run_id(down))  # else an earlier run's
            if type(step) is int and step <= last_step and is_own:
                steps[path.parent.name] = step
        checkpoint = None
        for name in sorted(steps, key=steps.get, reverse=True):
            down = Path(api.snapshot_download(repo, revision=commit, allow_patterns=[f"{name}/*", *RECORD]))
            check_contents(down)
            if unusable_reason(down / name) is None:
                checkpoint = down / name
                best = Path(read_json(checkpoint / TRAINER_STATE)["best_model_checkpoint"] or "").name
                if best in steps:
                    api.snapshot_download(repo, revision=commit, allow_patterns=f"{best}/*")
                    check_contents(down)
                break
    except Exception as error:  # the client's errors have no common class
        if isinstance(error, InputError):
            raise
        raise InputError(f"{given} cannot be read ({one_line(error)[:300]}).") from error
    if checkpoint is None or recorded_run_id(down) is None:
        raise InputError(
            f"{given} has no complete checkpoint of a run. Push them with push_to_hub: true, save_strategy: steps and "
            "hub_strategy: checkpoint."
        )
    step = steps[checkpoint.name]
    is_same = recorded_run_id(folder.path) == recorded_run_id(down)
    if is_same:
        adopt_unnamed(folder.path)
        newest, _ = find_newest_checkpoint(folder.path)
        if newest is not None and step_of(newest) >= step:
            return newest
    if is_same or overwrite:
        folder.set_aside(None, lock)
    else:
        folder.check_new()
    _copy_record(down, folder.path)
    if best in steps and steps[best] < step and incomplete_reason(down / best) is None:
        _copy_checkpoint(down / best, folder.path, steps[best])
    return _copy_checkpoint(checkpoint, folder.path, step)


def _copy_record(down: Path, folder: Path) -> None:
    found = [path for pattern in RECORD for path in down.glob(pattern)]
    found.sort(key=lambda path: path.name != ENV_FILE)  # first: it identifies the run of the other files
    for path in found:
        target = folder / path.relative_to(down)
        target.parent.mkdir(exist_ok=True)
        with replaced(target) as staging:  # a kill leaves no half of it
            shutil.copyfile(path, staging)


def _copy_checkpoint(checkpoint: Path, folder: Path, step: int) -> Path:
    staging = folder / f"{WRITING}{step}" / f"checkpoint-{step}"
    shutil.copytree(checkpoint, staging)
    return name_staged(staging, folder)
