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


logger = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
# A look at the lock takes it for a moment, see `holder`.
TRIES, PAUSE_SECONDS = 10, 0.05
NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # some network file systems


class FolderInUseError(ValueError):
    """Another process trains into a folder."""


class FolderLock:
    """
    Keeps every other `FolderLock`, in this process or in any other, out of some folders. Readers need none.

    The lock is the kernel's (`flock` on the file `run.lock`, which also says who holds it), so a killed process leaves
    a file behind and no lock. Forked children do not inherit it: one that outlives its parent holds nothing.

    Args:
        folders (`str` or `os.PathLike`):
            Made if they do not exist.
    """

    def __init__(self, *folders: str | os.PathLike):
        self.folders = sorted({Path(folder).resolve() for folder in folders})
        self._depth = 0
        self._files: dict[Path, int] = {}
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
            _HELD.add(self)
            try:
                for folder in self.folders:
                    if not folder.exists():
                        folder.mkdir(parents=True)
                        self._made.append(folder)
                    self._files[folder] = _take(folder)
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
        _HELD.discard(self)
        for folder, descriptor in self._files.items():
            with suppress(OSError):
                (folder / LOCK_FILE).unlink()  # before it is let go: it is nobody else's yet
            os.close(descriptor)
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()  # if nothing was written into it
        self._files.clear(), self._made.clear()

    def _forget(self) -> None:
        """In a forked child: the parent's lock stays the parent's."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear(), self._made.clear()


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


def _take(folder: Path) -> int:
    path = folder / LOCK_FILE
    who = "another process"
    for _ in range(TRIES):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, descriptor):  # and not one that its holder has removed in between
                who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, (json.dumps(who) + "\n").encode(), 0)
                return descriptor
        except BlockingIOError:
            who = _name(descriptor)
            time.sleep(PAUSE_SECONDS)
        except OSError as error:
            if error.errno not in NO_LOCKS_HERE:
                os.close(descriptor)
                raise
            logger.warning("%s is on a file system without locks: nothing keeps a second run from it.", folder)
            return descriptor
        os.close(descriptor)
    raise FolderInUseError(_refusal(folder, who))


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


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


def _forget_all() -> None:
    for lock in _HELD:
        lock._forget()
    _HELD.clear()


_HELD: set[FolderLock] = set()
os.register_at_fork(after_in_child=_forget_all)
