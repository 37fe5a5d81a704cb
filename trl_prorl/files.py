"""Files: written whole or not at all, named so that none is replaced, and hashed."""

import hashlib
import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


STAGED = "_push-"  # begins the name of a folder that a push in the background reads; never pushed itself


@contextmanager
def replaced(path: str | os.PathLike) -> Iterator[Path]:
    """
    Yield a path to write to instead of `path`, which is replaced when the block ends. A reader never sees half a
    file; if writing fails, the old file stays. Two processes write to paths of their own, and the last one stays.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def open_own(path: str | os.PathLike, mode: str) -> IO[str]:
    """
    Open a text file to write to, as `open` does. A link in its place is an `OSError`: whoever made it would choose
    which file of this machine is written.
    """
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))


def free_name(path: Path) -> Path:
    """Return `NAME.1` for a folder or a file `NAME`, or the next number that is free."""
    path = path.absolute()
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    return next(candidate for candidate in numbered if not os.path.lexists(candidate))


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file, which is read in blocks: 1 GB takes about two seconds."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
