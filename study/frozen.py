"""The commit at which the study's code is frozen, a git worktree of it, and commits of the tables."""

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from study.tables import COLUMNS, FOLDER
from trl_prorl.errors import InputError, RunError
from trl_prorl.files import replaced


FROZEN = "frozen_at"  # in the folder of the tables: the commit whose code makes the runs


def git(root: Path, *arguments: str) -> str:
    """Return what a git command prints; a `RunError` if it fails."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"git {arguments[0]} in {root}: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout.strip()


def frozen_commit(root: Path, wanted: str | None = None) -> str:
    """
    Return the commit whose code makes the runs, and write it down beside the tables, so that a fresh clone goes on
    with the same code.

    Args:
        root (`Path`): The checkout.
        wanted (`str`, *optional*): A commit to freeze; else it is the one that is written down, else `HEAD`.

    Raises:
        InputError: The repository has no such commit.
    """
    note = root / FOLDER / FROZEN
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


def commit_tables(root: Path, message: str) -> bool:
    """Commit the tables, and nothing else that may be changed or staged; return whether there was a change."""
    paths = [str(FOLDER / name) for name in (*COLUMNS, FROZEN) if (root / FOLDER / name).exists()]
    git(root, "add", "--", *paths)
    if not git(root, "status", "--porcelain", "--", *paths):
        return False
    git(root, "commit", "--quiet", "--no-verify", "-m", message, "--", *paths)
    return True
