"""Safe writing of files, hashes, and the links in a folder that is not ours."""

import hashlib
import itertools
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import InputError


STAGED = "_push-"  # prefix of a background push's folder; never pushed itself


def check_contents(folder: str | os.PathLike, label: str | None = None) -> None:
    """Raise `InputError` for a link out of a folder: its author would choose which files are read or uploaded."""
    root = Path(folder).resolve()
    # A snapshot in the Hub's cache has links to the blobs of its repository.
    blobs = root.parents[1] / "blobs" if root.parent.name == "snapshots" else None
    for parent, folders, files in os.walk(root):
        folders[:] = [name for name in folders if (Path(parent), name) != (root, "wandb")]  # links to its own cache
        for path in (Path(parent, name) for name in (*folders, *files)):
            target = path.resolve()
            if path.is_symlink() and not target.is_relative_to(root) and target.parent != blobs:
                raise InputError(f"{label or repr(str(folder))} contains {path.name!r}, a link to {target}")


@contextmanager
def replaced(path: str | os.PathLike) -> Iterator[Path]:
    """
    Yield a temporary path that replaces `path` at the end: readers never see a partial file, and after a failure the
    old one stays. Of two processes the last one wins. A link is replaced, not followed.
    """
    path = Path(path)
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield staging
        os.replace(staging, path)
    finally:
        staging.unlink(missing_ok=True)


def replace_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file as [`replaced`] does."""
    with replaced(path) as staging:
        staging.write_text(text, encoding="utf-8")


def link_or_copy(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Hard-link a file that never changes again, or copy it."""
    source = os.path.realpath(source)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def free_name(path: Path) -> Path:
    """Return `NAME.1` for a path `NAME`, or the next free number."""
    path = path.absolute()
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    return next(candidate for candidate in numbered if not os.path.lexists(candidate))


def json_sha256(value: Any) -> str:
    """Return the SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_sha256(file: Path) -> str:
    """Return a file's SHA-256, two seconds per GB."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
