"""One run at a time writes to a folder: a lock that ends with its process, however that ends."""

import errno
import fcntl
import json
import logging
import os
import socket
import time
from contextlib import suppress
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
    Keeps every other `FolderLock`, in this process or in any other, out of some folders. Readers need none.

    The lock is the kernel's (`flock` on the file `run.lock`, which also says who holds it), so a killed process leaves
    a file behind and no lock. Forked children do not inherit it: one that outlives its parent holds nothing.

    Args:
        folders (`str` or `os.PathLike`): Made if they do not exist.
    """

    def __init__(self, *folders: str | os.PathLike):
        self.folders = sorted({Path(folder).resolve() for folder in folders})
        self._depth = 0
        self._locks: dict[Path, FileLock] = {}
        self._made: list[Path] = []

    @property
    def held(self) -> bool:
        """Whether it is held now."""
        return self._depth > 0

    def hold(self) -> None:
        """
        Take the folders, or count once more.

        Raises:
            [`FolderInUseError`]: naming the folder and the process that holds it.
            `OSError`: the folder cannot be written.
        """
        if self._depth == 0:
            try:
                for folder in self.folders:
                    if not folder.exists():
                        folder.mkdir(parents=True)
                        self._made.append(folder)
                    self._locks[folder] = _taken(folder)
            except BaseException:
                self._leave()
                raise
        self._depth += 1

    def let_go(self) -> None:
        """Count back; the folders are free once it has been called as often as `hold`."""
        self._depth -= 1
        if self._depth == 0:
            self._leave()

    def _leave(self) -> None:
        for folder, lock in self._locks.items():
            if lock.is_locked:  # not in a forked child
                (folder / LOCK_FILE).unlink(missing_ok=True)  # before it is let go: it is nobody else's yet
            lock.release()
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()  # if nothing was written into it
        self._locks.clear(), self._made.clear()


def check_free(*folders: str | os.PathLike) -> None:
    """
    Refuse folders that another process trains into. Takes nothing and makes nothing.

    Raises:
        [`FolderInUseError`]: naming the folder and the process.
    """
    for folder in folders:
        if (who := holder(Path(folder))) is not None:
            raise FolderInUseError(_refusal(folder, who))


def holder(folder: Path) -> str | None:
    """Who trains into a folder: `"process 7 of host, since ..."`; `None` if nobody does."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _name(descriptor)
    except OSError:
        return None  # no locks there
    finally:
        os.close(descriptor)


def _taken(folder: Path) -> FileLock:
    path = folder / LOCK_FILE
    lock = FileLock(path, timeout=SECONDS, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        path.write_text(json.dumps(who) + "\n")
    except Timeout:
        raise FolderInUseError(_refusal(folder, holder(folder) or "another process")) from None
    except OSError as error:
        if error.errno not in NO_LOCKS_HERE:
            raise
        logger.warning("%s is on a file system without locks: nothing keeps a second run from it.", folder)
        path.unlink(missing_ok=True)
    return lock


def _name(descriptor: int) -> str:
    try:
        who = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {who['pid']} on {who['host']}, since {who['since']}"
    except (ValueError, KeyError, TypeError):  # it has just taken the lock
        return "another process"


def _refusal(folder: str | os.PathLike, who: str) -> str:
    return (
        f"output_dir or run_dir {str(folder)!r} is in use: {who}, trains into it. Wait until it has ended, stop it, "
        "or choose another folder."
    )
