"""The names of checkpoints: whose they are, of which step, and what becomes of those that are not needed."""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from ..files import STAGED, free_name
from .run_files import saved_run_id


MANIFEST_FILE = "manifest.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
ABANDONED = "abandoned-"
INCOMPLETE = "_incomplete-"  # the Hub's uploads leave out what begins with an underscore
# Folders that saves, removals and uploads leave behind when they are cut short.
LEFT_BEHIND = (rf"{INCOMPLETE}(old-)?checkpoint-\d+", rf"{STAGED}\d+")


def find_named(folder: Path, patterns: Collection[str]) -> list[Path]:
    """Find what lies in a folder under a name that matches one of the patterns, in order."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if any(re.fullmatch(each, path.name) for each in patterns)]


def steps_of(output_dir: Path) -> dict[Path, int]:
    """Map every checkpoint of a folder to the optimizer steps done."""
    steps = {}
    for path in output_dir.iterdir():
        match = CHECKPOINT.fullmatch(path.name)
        if match is not None:
            steps[path] = int(match[1])
    return steps


def is_of_run(checkpoint: Path, run_id: str | None) -> bool:
    """Return whether a folder is a checkpoint that the run of this id has written."""
    found = saved_run_id(checkpoint)
    if found is not None and run_id is not None:
        return found == run_id
    # TRL's own trainer writes no id, and a power loss may have taken ours.
    return any((checkpoint / name).is_file() for name in (MANIFEST_FILE, "trainer_state.json"))


def rename_abandoned(checkpoint: Path) -> Path:
    """Rename a checkpoint that is no longer part of its run, to a name that is free."""
    target = checkpoint.with_name(f"{ABANDONED}{checkpoint.name}")
    if target.exists():
        target = free_name(target)
    return checkpoint.rename(target)


def name_while_removed(checkpoint: Path) -> Path:
    """Name the folder that a checkpoint is called while it is replaced or removed."""
    return checkpoint.with_name(f"{INCOMPLETE}old-{checkpoint.name}")


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint; a kill in its middle leaves a folder that does not count as one."""
    old = name_while_removed(checkpoint)
    checkpoint.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def leftovers(folder: Path) -> list[Path]:
    """Find the folders left behind by saves and removals that were cut short."""
    return [path for path in find_named(folder, LEFT_BEHIND) if path.name.startswith(INCOMPLETE) and path.is_dir()]
