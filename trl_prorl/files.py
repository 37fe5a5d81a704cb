"""
Files and folders that this process did not write, and those that it writes.

In reading order: `check_contents`, before anything in a folder is read; `read_text`; `replaced`, `open_own` and
`link_or_copy`, which write; `free_name` and `file_sha256`.
"""

import hashlib
import itertools
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import InputError


STAGED = "_push-"  # begins the name of a folder that a push in the background reads; never pushed itself
WANDB = "wandb"  # its client fills the folder with links to its own cache, and no command reads or writes there
# Bytes that are read of a text, by the end of its name. Weights and tables, which are not read whole, have no limit.
LIMITS = {
    "run.lock": 2**12,
    "trainer_state.json": 2**29,  # the log of all steps
    ".jsonl": 2**29,  # some 300,000 rows
    ".json": 2**26,
    ".jinja": 2**20,
    ".yaml": 2**20,
    ".yml": 2**20,
}
MAX_BYTES = 2**26  # of a text with another name


# ------------------------------------------------------------------------------------------------------------ reading


def check_contents(folder: str | os.PathLike, given: str | None = None) -> None:
    """
    Raise an error for a folder with a link out of it, a file that is not regular, or a text that is too large, at any
    depth, hidden folders included.

    A link would let its author choose which files of this machine are read, overwritten or uploaded. A pipe or a
    device may never end. The folder itself may be a link. Links to the blobs of the same repository in the Hub's cache
    are followed. Its folder `wandb` is skipped.

    Args:
        folder (`str` or `os.PathLike`): The folder, which need not exist.
        given (`str`, *optional*): Its name in the message: a key and its value. By default its path.

    Raises:
        `InputError`: The message names the file and the reason.
    """
    root = os.path.realpath(folder)
    what = given or repr(str(folder))
    blobs = _find_blobs(Path(root))
    for parent, folders, files in os.walk(root):
        for name in sorted([*folders, *files]):
            path = os.path.join(parent, name)
            shown = os.path.relpath(path, root)
            if os.path.islink(path):
                target = os.path.realpath(path)
                if not Path(target).is_relative_to(root) and os.path.dirname(target) != blobs:
                    raise InputError(
                        f"{what} contains the link {shown!r}, which points outside the folder, to {target!r}: remove "
                        "the link, or replace it with a copy"
                    )
            if not os.path.exists(path) or os.path.isdir(path):  # a link within the folder may lead nowhere
                continue
            if not os.path.isfile(path):
                raise InputError(
                    f"{what} contains {shown!r}, which is no regular file (a pipe, a socket or a device): remove it"
                )
            if name.endswith(tuple(LIMITS)):
                _check_size(path)
        folders[:] = sorted(name for name in folders if name != WANDB or parent != root)


def read_text(path: str | os.PathLike) -> str:
    """
    Read a text in UTF-8, without the byte order mark that some editors begin it with.

    Raises:
        `InputError`: The file cannot be read, is no regular file, is larger than its limit, or is not text.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe may never end
            raise InputError(f"'{path}' is not a regular file; remove it")
        _check_size(path)
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"'{path}' is not a text file ({error.reason} at byte {error.start}); create it again"
        ) from error
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror or error})") from error


def _check_size(path: str | os.PathLike) -> None:
    size = os.path.getsize(path)
    most = next((most for end, most in LIMITS.items() if str(path).endswith(end)), MAX_BYTES)
    if size > most:
        raise InputError(f"'{path}' has {size:,} bytes, more than the {most:,} that are read; create it again")


def _find_blobs(root: Path) -> str | None:
    """Return the folder of the blobs, if a folder is in a snapshot of the Hub's cache: `REPO/snapshots/COMMIT`."""
    for folder in (root, *root.parents):
        repo = folder.parent.parent
        if folder.parent.name == "snapshots" and repo.name.startswith("models--"):
            return str(repo / "blobs")
    return None


# ------------------------------------------------------------------------------------------------------------ writing


@contextmanager
def replaced(path: str | os.PathLike) -> Iterator[Path]:
    """
    Yield a path to write to instead of `path`, which is replaced when the block ends. A reader never sees half a
    file; if writing fails, the old file stays. Two processes write to paths of their own, and the last one stays. A
    link is replaced, not followed.
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


def link_or_copy(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Make a hard link to a file that is never written to again; copy it to another file system."""
    source = os.path.realpath(source)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def free_name(path: Path) -> Path:
    """Return `NAME.1` for a folder or a file `NAME`, or the next number that is free."""
    path = path.absolute()
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    return next(candidate for candidate in numbered if not os.path.lexists(candidate))


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file, which is read in blocks: 1 GB takes about two seconds."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
