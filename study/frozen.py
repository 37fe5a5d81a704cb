"""The commit at which the study's code is frozen, a git worktree of it, and commits of the tables."""

import shutil
import subprocess
from pathlib import Path

from study.tables import FILES, FOLDER
from trl_prorl.embedded.shipped import weights_sha256
from trl_prorl.errors import InputError, RunError
from trl_prorl.files import replaced


FROZEN = "frozen_at"  # in the folder of the tables: the commit whose code makes the runs
MODELS = Path("trl_prorl", "embedded", "models")


def git(root: Path, *arguments: str) -> str:
    """
    What a git command prints.

    Raises:
        RunError: It failed.
    """
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"git {arguments[0]} in {root}: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout.strip()


def frozen_commit(root: Path, asked: str | None = None) -> str:
    """
    The commit whose code makes the runs: what is asked for, else what the tables' folder says, else `HEAD`. It is
    written down beside the tables, so that a fresh clone goes on with the same code.

    Args:
        root (`Path`): The checkout.
        asked (`str`, *optional*): A commit; the runs from now on are made by it, and their rows say so.

    Returns:
        `str`: 40 hexadecimal digits.

    Raises:
        InputError: There is no such commit here.
    """
    note = root / FOLDER / FROZEN
    noted = note.read_text().strip() if note.is_file() else None
    name = asked or noted or "HEAD"
    try:
        commit = git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except RunError:
        source = f"COMMIT={name}" if asked else f"{note}: {name}"
        raise InputError(f"{source}: this repository has no such commit; fetch it (git fetch --unshallow)") from None
    if commit != noted:
        note.parent.mkdir(parents=True, exist_ok=True)
        with replaced(note) as aside:
            aside.write_text(commit + "\n")
    return commit


def worktree(root: Path, commit: str, place: Path) -> Path:
    """
    A worktree of a commit, unchanged; one that is there, whole and unchanged, is used again.

    Raises:
        RunError: git cannot make it.
    """
    if place.exists():
        try:
            if git(place, "rev-parse", "HEAD") == commit and not git(place, "status", "--porcelain"):
                return place
        except RunError:
            pass  # one that was cut short
        shutil.rmtree(place)
    git(root, "worktree", "prune")
    git(root, "worktree", "add", "--detach", "--force", str(place), commit)
    return place


def base_hash(code: Path, task: str, base_seed: int) -> str:
    """
    SHA-256 of the weights of a base that comes with the frozen code.

    Raises:
        InputError: It has none.
    """
    sha256 = weights_sha256(str(code / MODELS / f"{task}-{base_seed}"))
    if sha256 is None:
        there = ", ".join(sorted(path.name for path in (code / MODELS).glob("*-*"))) or "none"
        commit = git(code, "rev-parse", "--short=12", "HEAD")
        raise InputError(
            f"embedded:{task}:{base_seed} does not come with commit {commit}; its bases: {there}. Choose other pairs "
            "in matrix.yaml, or freeze a commit that has it: make study COMMIT=…"
        )
    return sha256


def commit_tables(root: Path, message: str) -> bool:
    """
    Commit the tables, and nothing else that may be changed or staged in the checkout.

    Returns:
        `bool`: Whether there was anything to commit.

    Raises:
        RunError: git refuses.
    """
    paths = [str(FOLDER / name) for name in (*FILES, FROZEN) if (root / FOLDER / name).exists()]
    git(root, "add", "--", *paths)
    if not git(root, "status", "--porcelain", "--", *paths):
        return False
    git(root, "commit", "--quiet", "--no-verify", "-m", message, "--", *paths)
    return True
