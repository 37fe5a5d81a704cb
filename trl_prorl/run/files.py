"""Reading of files and folders from others, and safe writing."""

import hashlib
import itertools
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import InputError


STAGED = "_push-"  # prefix of a background push's folder; never pushed itself
WANDB = "wandb"  # its client links to its own cache; no command uses the folder
# Maximum bytes of a text, by the end of its name. Weights and tables, not read as a whole, have no limit.
LIMITS = {
    "run.lock": 2**12,
    "trainer_state.json": 2**29,  # the log of all steps
    "prorl_state.json": 2**29,  # the prompts of a pool, 60 bytes each
    ".jsonl": 2**29,  # about 300,000 rows
    ".json": 2**26,
    ".jinja": 2**20,
    ".yaml": 2**20,
    ".yml": 2**20,
}
MAX_BYTES = 2**26  # of a text with another name


# ------------------------------------------------------------------------------------------------------------ reading


def check_contents(folder: str | os.PathLike, given: str | None = None) -> None:
    """
    Raise `InputError` for a link out of a folder, an irregular file, or a text that is too large, at any depth.

    A link would let its author choose which files are read, overwritten or uploaded; a pipe may never end. Links to
    blobs of the same repository in the Hub's cache are followed; `wandb` is skipped. `given`: the folder's name in the
    message.
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
            if not os.path.exists(path) or os.path.isdir(path):  # a link within the folder may be broken
                continue
            if not os.path.isfile(path):
                raise InputError(
                    f"{what} contains {shown!r}, which is no regular file (a pipe, a socket or a device): remove it"
                )
            if name.endswith(tuple(LIMITS)):
                _check_size(path)
        folders[:] = sorted(name for name in folders if name != WANDB or parent != root)


def read_text(path: str | os.PathLike) -> str:
    """Read UTF-8 text. Raises `InputError`: unreadable, irregular, too large, or not text."""
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
    for folder in (root, *root.parents):
        repo = folder.parent.parent
        if folder.parent.name == "snapshots" and repo.name.startswith("models--"):
            return str(repo / "blobs")
    return None


# ------------------------------------------------------------------------------------------------------------ writing


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


def open_own(path: str | os.PathLike, mode: str) -> IO[str]:
    """Open a text file for writing. Raises `OSError` for a link: its author would choose the written file."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))


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
