"""
The lock of a folder: one run at a time writes to it. And that of a file which evaluations complete.

The lock is the kernel's, on the file `run.lock`, which also says who holds it, so it ends with its process, however
that ends: a killed process leaves a file behind and no lock. Forked children do not inherit it: one that outlives its
parent holds nothing. Readers need no lock. Where the kernel has none, filelock takes the file itself for a lock.
"""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


LOCK_FILE = "run.lock"
SECONDS = 0.5  # a look at the lock takes it for a moment, see `holder`
HOLDER = b"process "  # begins what the file says
BEGINS = (HOLDER, b'{"pid"', b"\0")  # what else it began with: in earlier releases, after a power loss
OF_FILELOCK = re.compile(rb"\d+\n")  # of its own file


class FolderInUseError(ValueError):
    """Another process trains into a folder."""


class FolderLock:
    """
    Keeps every other `FolderLock`, in this process or in any other, out of some folders.

    Args:
        folders (`str` or `os.PathLike`): They are made if they do not exist.
    """

    def __init__(self, *folders: str | os.PathLike):
        files = [folder / LOCK_FILE for folder in sorted({Path(folder).resolve() for folder in folders})]
        self._locks = {file: FileLock(file, timeout=SECONDS, thread_local=False) for file in files}

    @property
    def held(self) -> bool:
        """Return whether it is held now."""
        return any(lock.is_locked for lock in self._locks.values())

    def hold(self) -> None:
        """
        Take the folders, or count once more.

        Raises:
            [`FolderInUseError`]: Another process holds a folder; the message names both.
            `OSError`: A folder cannot be written.
        """
        with ExitStack() as stack:
            for file, lock in self._locks.items():
                _take(file, lock)
                stack.callback(_leave, file, lock)
            stack.pop_all()

    def release(self) -> None:
        """Count back; the folders are free once it has been called as often as `hold`."""
        for file, lock in self._locks.items():
            _leave(file, lock)


def _take(file: Path, lock: FileLock) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUseError(_refusal(file.parent, _holder_named_in(file))) from None
    except OSError as error:
        if error.filename is None:  # of the lock, not of the file: on some network disks
            raise OSError(f"'{file.parent}' cannot be locked ({error}). Choose a folder on another disk.") from error
        raise
    if _is_ours(file):
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}")


def _leave(file: Path, lock: FileLock) -> None:
    if lock.is_locked and lock.lock_counter == 1 and _is_ours(file):  # not in a forked child
        file.unlink(missing_ok=True)  # before it is released: it is nobody else's yet
    lock.release()


@contextmanager
def exclusive(path: Path, busy: str) -> Iterator[None]:
    """
    Keep other processes out of what is to be read, completed and written, in this context; wait for one that is there.
    Where the file system has no locks, or the folder cannot be written, nothing is kept out.

    Args:
        path (`Path`): What is locked, by the file `.NAME.lock` in the same folder.
        busy (`str`): Is printed if another process holds the lock.
    """
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        print(busy, flush=True)
        lock.acquire()
    except OSError:
        pass
    try:
        yield
    finally:
        lock.release()


def check_free(*folders: str | os.PathLike) -> None:
    """
    Raise an error for folders that another process trains into. Makes nothing.

    Raises:
        [`FolderInUseError`]: The message names the folder and the process.
    """
    for folder in folders:
        who = holder(Path(folder))
        if who is not None:
            raise FolderInUseError(_refusal(folder, who))


def holder(folder: Path) -> str | None:
    """Return who trains into a folder: `"process 7 on host, since ..."`; `None` if nobody does."""
    file = folder / LOCK_FILE
    if not file.is_file():
        return None
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return _holder_named_in(file)
    except OSError:  # of somebody else, and not locked
        return None
    lock.release()
    return None


def _holder_named_in(file: Path) -> str:
    content = file.read_bytes()
    return content.decode(errors="replace") if content.startswith(HOLDER) else "another process"


def _refusal(folder: str | os.PathLike, who: str) -> str:
    return (
        f"output_dir or run_dir {str(folder)!r} is in use by another run: {who}. Wait until it ends, stop it, or "
        "choose another folder."
    )


def is_foreign_lock(file: Path) -> bool:
    """Return whether a file of the lock's name was written by something else, and would be lost."""
    if not file.is_file():
        return os.path.lexists(file)
    return not _is_ours(file) and OF_FILELOCK.match(file.read_bytes()) is None


def _is_ours(file: Path) -> bool:
    """Return whether a file is one that [`_take`] writes, not filelock's own or something else."""
    content = file.read_bytes() if file.is_file() else b""
    return content == b"" or content.startswith(BEGINS)
