"""The commit at which the study's code is frozen, a git worktree of it, and commits of the tables."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from study.tables import COLUMNS
from trl_prorl.errors import InputError, RunError
from trl_prorl.files import replaced


FROZEN = "frozen_at"  # in the folder of the tables: the commit whose code makes the runs


def git(root: Path, *arguments: str) -> str:
    """Return what a git command prints; a `RunError` if it fails."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"git {arguments[0]} in {root}: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout.strip()


def frozen_commit(root: Path, tables: Path, wanted: str | None = None) -> str:
    """
    Return the commit whose code makes the runs, and write it down beside the tables, so that a fresh clone goes on
    with the same code.

    Args:
        root (`Path`): The checkout.
        tables (`Path`): The folder of the tables.
        wanted (`str`, *optional*): A commit to freeze; else it is the one that is written down, else `HEAD`.

    Raises:
        InputError: The repository has no such commit.
    """
    note = tables / FROZEN
    noted = note.read_text().strip() if note.is_file() else None
    name = wanted or noted or "HEAD"
    try:
        commit = git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except RunError:
        source = f"COMMIT={name}" if wanted else f"{note}: {name}"
        raise InputError(f"{source}: this repository has no such commit; fetch it (git fetch --unshallow)") from None
    if commit != noted:
        note.parent.mkdir(parents=True, exist_ok=True)
        with replaced(note) as aside:
            aside.write_text(commit + "\n")
    return commit


def worktree(root: Path, commit: str, place: Path) -> Path:
    """Make a worktree of a commit; one that is there, whole and unchanged, is used again."""
    with suppress(RunError):  # there is none, or it was cut short
        if git(place, "rev-parse", "HEAD") == commit and not git(place, "status", "--porcelain"):
            return place
    shutil.rmtree(place, ignore_errors=True)
    git(root, "worktree", "prune")
    git(root, "worktree", "add", "--detach", "--force", str(place), commit)
    return place


def check_at_frozen_commit(root: Path, tables: Path) -> None:
    """Refuse, as an `InputError`, a checkout whose code is not that which makes the runs of these tables."""
    note = tables / FROZEN
    here = git(root, "rev-parse", "HEAD")
    noted = note.read_text().strip() if note.is_file() else "nothing"
    if noted != here:
        raise InputError(
            f"{note}: {noted[:12]}, and {root} is at {here[:12]}. Work from a worktree of the noted commit, or freeze "
            "this one: --commit HEAD"
        )


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep other processes of the study from changing the tables of a folder meanwhile; wait until none does."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def commit_tables(tables: Path, message: str, files: Iterable[str] = (*COLUMNS, FROZEN)) -> bool:
    """
    Commit these files of a folder of tables to the repository in which it lies, and nothing else that may be changed
    or staged there; return whether there was a change.
    """
    paths = [name for name in files if (tables / name).exists()]
    git(tables, "add", "--", *paths)
    if not git(tables, "status", "--porcelain", "--", *paths):
        return False
    git(tables, "commit", "--quiet", "--no-verify", "-m", message, "--", *paths)
    return True
