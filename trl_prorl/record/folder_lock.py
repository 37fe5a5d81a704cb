"""
The lock of a folder: one run at a time writes to it. And that of a file which evaluations complete.

The lock is the kernel's (`flock` on the file `run.lock`, which also says who holds it), so it ends with its process,
however that ends: a killed process leaves a file behind and no lock. Forked children do not inherit it: one that
outlives its parent holds nothing. Readers need no lock.
"""

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


logger = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
SECONDS = 0.5  # a look at the lock takes it for a moment, see `holder`
NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # some network file systems


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
        settings = {"timeout": SECONDS, "thread_local": False, "fallback_to_soft": False}
        self._locks = {file: FileLock(file, **settings) for file in files}

    @property
    def held(self) -> bool:
        """Whether it is held now."""
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

    def let_go(self) -> None:
        """Count back; the folders are free once it has been called as often as `hold`."""
        for file, lock in self._locks.items():
            _leave(file, lock)


def _take(file: Path, lock: FileLock) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire()
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        file.write_text(json.dumps(who) + "\n")
    except Timeout:
        raise FolderInUseError(_refusal(file.parent, holder(file.parent) or "another process")) from None
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise
        logger.warning("%s is on a file system without locks: nothing keeps a second run from it.", file.parent)
        file.unlink(missing_ok=True)


def _leave(file: Path, lock: FileLock) -> None:
    if lock.is_locked and lock.lock_counter == 1:  # not in a forked child
        file.unlink(missing_ok=True)  # before it is let go: it is nobody else's yet
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
    lock = FileLock(path.with_name(f".{path.name}.lock"), fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        print(busy, flush=True)
        lock.acquire()
    except OSError as error:
        if error.errno not in (*NO_LOCKS_HERE, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    try:
        yield
    finally:
        lock.release()


def check_free(*folders: str | os.PathLike) -> None:
    """
    Refuse folders that another process trains into. Takes nothing and makes nothing.

    Raises:
        [`FolderInUseError`]: The message names the folder and the process.
    """
    for folder in folders:
        who = holder(Path(folder))
        if who is not None:
            raise FolderInUseError(_refusal(folder, who))


def holder(folder: Path) -> str | None:
    """Say who trains into a folder: `"process 7 on host, since ..."`; `None` if nobody does."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(ValueError, KeyError, TypeError):  # it has just taken the lock
            who = json.loads(os.pread(descriptor, 4096, 0))
            return f"process {who['pid']} on {who['host']}, since {who['since']}"
        return "another process"
    except OSError:  # no locks there
        pass
    finally:
        os.close(descriptor)
    return None


def _refusal(folder: str | os.PathLike, who: str) -> str:
    return (
        f"output_dir or run_dir {str(folder)!r} is in use: {who}, trains into it. Wait until it has ended, stop it, "
        "or choose another folder."
    )


def is_foreign_lock(file: Path) -> bool:
    """Whether a file of the lock's name was written by something else, and would be lost."""
    if not os.path.lexists(file):
        return False
    if not file.is_file():
        return True
    with open(file, "rb") as opened:
        content = opened.read(16)
    return content.strip() != b"" and not content.startswith(b'{"pid"')
