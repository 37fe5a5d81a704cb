"""
A run's folders, looked at by the main process for all.

One run at a time writes to them, by a lock that ends with its process, however that ends. A run overwrites and deletes
nothing that it did not write, whichever way it is started: files that belong to no run are refused, and an earlier run
is refused by a recipe and set aside by a script.
"""

import errno
import fcntl
import itertools
import json
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import InputError
from .run_files import CONFIG_FILE, METRICS_FILE, read_yaml
from .run_id import recorded_run_id, saved_run_id


logger = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
SECONDS = 0.5  # a look at the lock takes it for a moment, see `holder`
TOKEN = ".shared-"  # begins the name of a file for which all processes look
SHARED_SECONDS = 60  # NFS remembers for as long what a folder held
NO_LOCKS_HERE = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # some network file systems


class FolderInUseError(ValueError):
    """Another process trains into a folder."""


class FolderLock:
    """
    Keeps every other `FolderLock`, in this process or in any other, out of some folders, which are made if they do not
    exist. Readers need none.

    The lock is the kernel's (`flock` on the file `run.lock`, which also says who holds it), so a killed process leaves
    a file behind and no lock. Forked children do not inherit it: one that outlives its parent holds nothing.
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
        Take the folders, or count once more. Raises [`FolderInUseError`]: naming the folder and the process that holds
        it; `OSError`: the folder cannot be written.
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


def check_free(*folders: str | os.PathLike) -> None:
    """
    Refuse folders that another process trains into. Takes nothing and makes nothing. Raises [`FolderInUseError`]:
    naming the folder and the process.
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


# Names of what a run writes into `run_dir` and into `output_dir`, and of what evaluations add to `run_dir`.
RECORD = (r"config\.yaml", r"env\.json", r"(metrics|events|evaluations)(\.\d+)?\.jsonl")
SAVED = (
    r"README\.md",
    r"(adapter_|generation_|processor_|preprocessor_|video_preprocessor_)?config\.json",
    r"(model|adapter_model|pytorch_model).*\.(safetensors|bin)(\.index\.json)?",
    r"training_args\.bin",
    r"trainer_state\.json",
    r"prorl_run\.json",
    r"(tokenizer|special_tokens_map|added_tokens|vocab).*\.(json|model|txt)",
    r"merges\.txt",
    r"chat_template\.(jinja|json)",
    r"ref",
    r"completions",
    r"(abandoned-)?checkpoint-\d+(\.\d+)?",
)
EVALUATED = (r"passk\.json", r"drift\.(json|png)")
# Names of the folders in `output_dir` that saves, removals and uploads leave behind when they are cut short.
LEFT_BEHIND = (r"_incomplete-(old-)?checkpoint-\d+", r"_push-\d+")


def find_named(folder: Path, patterns: Collection[str]) -> list[Path]:
    """What lies in a folder under a name that matches one of the patterns, in order."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if any(re.fullmatch(each, path.name) for each in patterns)]


def has_begun(run_dir: Path) -> bool:
    """Whether a folder holds the record of a run that did a step."""
    record = run_dir / METRICS_FILE
    return record.exists() and record.stat().st_size > 0


def holds_record(run_dir: Path) -> bool:
    """Whether a folder holds the record of a run, which may have done nothing yet."""
    return has_begun(run_dir) or recorded_run_id(run_dir) is not None


def holds_run(output_dir: Path, run_dir: Path) -> bool:
    """
    Whether a run, ours or one of TRL's trainer, has left its traces in `output_dir`, or its record in `run_dir`. A
    record in another folder counts where it names this `output_dir`: else it is that of a run elsewhere.
    """
    if saved_run_id(output_dir) is not None:
        return True
    if holds_record(run_dir) and (output_dir.resolve() == run_dir.resolve() or _names(run_dir, output_dir)):
        return True
    traces = ("training_args.bin", "checkpoint-*/trainer_state.json", "completions/completions_*.parquet")
    return any(next(output_dir.glob(trace), None) is not None for trace in traces)


def _names(run_dir: Path, output_dir: Path) -> bool:
    """Whether the record in `run_dir` is that of a run with this `output_dir`."""
    try:
        named = read_yaml(run_dir / CONFIG_FILE).get("output_dir")
    except InputError:
        return False
    return named is not None and Path(named).resolve() == output_dir.resolve()


def find_earlier_run(output_dir: Path, run_dir: Path) -> Path | None:
    """A file or folder of the run that two folders hold; `None` if they hold none, or one that did nothing yet."""
    if has_begun(run_dir):
        return run_dir / METRICS_FILE
    saved = [path for path in find_named(output_dir, SAVED) if not _is_empty(path)]
    if not saved or not holds_run(output_dir, run_dir):
        return None
    checkpoints = [path for path in saved if path.name.startswith("checkpoint-")]
    return (checkpoints or saved)[0]


def folders_of(args: Any) -> dict[str, Path]:
    """The folders that a run writes to, by the keys that name them."""
    folders = {"output_dir": Path(args.output_dir)}
    if args.run_dir:
        folders["run_dir"] = Path(args.run_dir)
    return folders


def check_are_folders(folders: Mapping[str, Path]) -> None:
    """Refuse what is there and is no folder. Raises `ValueError`: naming the key, its value and the cure."""
    for key, folder in folders.items():
        there = _nearest(folder)
        if there.is_dir():
            continue
        if there != folder.absolute():
            raise ValueError(f"{key}={str(folder)!r} cannot be made: {there} is no folder. Choose another.")
        what = "a file" if there.exists() else "a link to nothing"
        raise ValueError(f"{key}={str(folder)!r} is {what}: name a folder, or one that does not exist yet.")


def check_usable(folders: Mapping[str, Path]) -> None:
    """
    Refuse folders that a run cannot write to, or whose lock it cannot take. Raises `ValueError`: naming the key, its
    value and the cure.
    """
    check_are_folders(folders)
    for key, folder in folders.items():
        there = _nearest(folder)
        if not os.access(there, os.W_OK | os.X_OK):
            raise ValueError(
                f"{key}={str(folder)!r} cannot be written: {there} is read-only for this user. Choose another."
            )
        if _is_foreign_lock(folder / LOCK_FILE):
            raise ValueError(_foreign_line(key, folder, [LOCK_FILE]))


def _nearest(folder: Path) -> Path:
    """A folder, or the nearest one above it that is there."""
    whole = folder.absolute()
    return next(path for path in (whole, *whole.parents) if os.path.lexists(path))


def check_nothing_foreign(output_dir: Path, run_dir: Path) -> None:
    """
    Refuse folders in which a new run would overwrite or delete what belongs to no run. Raises `ValueError`: naming the
    key, the folder and the files.
    """
    places = []
    one_folder = output_dir.resolve() == run_dir.resolve()
    if not holds_run(output_dir, run_dir):
        record = RECORD if one_folder else ()
        places.append(("output_dir", output_dir, (*record, *SAVED, *LEFT_BEHIND)))
    if not one_folder and not holds_record(run_dir):
        places.append(("run_dir", run_dir, RECORD))
    for key, folder, patterns in places:
        found = [path.name for path in find_named(folder, patterns) if not _is_empty(path)]
        if found:
            raise ValueError(_foreign_line(key, folder, found))


def check_record_stays(checkpoint: Path, run_dir: Path) -> None:
    """
    Refuse a resume that would cut or overwrite a record that is not its run's. Raises `ValueError`: naming `run_dir`
    and what it holds.
    """
    written = saved_run_id(checkpoint)
    recorded = recorded_run_id(run_dir)
    if written is None or written == recorded:  # an earlier version wrote no id
        return
    if recorded is not None:
        raise ValueError(
            f"run_dir={str(run_dir)!r} holds the record of another run than {checkpoint}, which would be lost. Choose "
            "another run_dir, or move what is there."
        )
    if checkpoint.resolve().parent == run_dir.resolve():  # the run's own folder, whose env.json is damaged
        return
    found = [path.name for path in find_named(run_dir, RECORD) if not _is_empty(path)]
    if found:
        raise ValueError(_foreign_line("run_dir", run_dir, found))


def check_model_stays(base: str | None, output_dir: Path) -> None:
    """
    Refuse a resume whose end would replace the model that the run began from. `base`: its Hub name or folder. Raises
    `ValueError`: `output_dir` is its folder.
    """
    if not base or not Path(base).is_dir() or Path(base).resolve() != output_dir.resolve():
        return
    if saved_run_id(output_dir) is None:  # else it is a run's own model
        raise ValueError(
            f"output_dir={str(output_dir)!r} is the folder of the model itself, which the trained one would replace. "
            "Choose another output_dir, and give resume_from_checkpoint the path of the checkpoint."
        )


def _is_empty(path: Path) -> bool:
    if path.is_symlink():
        return False
    return next(path.iterdir(), None) is None if path.is_dir() else path.stat().st_size == 0


def _is_foreign_lock(file: Path) -> bool:
    """Whether a file of the lock's name was written by something else, and would be lost."""
    if not os.path.lexists(file):
        return False
    if not file.is_file():
        return True
    with open(file, "rb") as opened:
        content = opened.read(16)
    return not (content.strip() == b"" or content.startswith(b'{"pid"'))


def _foreign_line(key: str, folder: Path, names: list[str]) -> str:
    listed = ", ".join(names[:5])
    if len(names) > 5:
        listed += f" and {len(names) - 5} more"
    return (
        f"{key}={str(folder)!r} holds {listed}: a run would overwrite that, and no run is on record there. Choose "
        f"another {key}, or move what is there."
    )


def set_earlier_run_aside(output_dir: Path, run_dir: Path, base: str | None) -> None:
    """
    Move what an earlier run has left into `earlier-1` of the same folder, or the next number that is free, and say so.
    Other files stay. `base`: Hub name or folder of the model of the run that begins. Raises `ValueError`: the model is
    a part of the earlier run, and would move with it.
    """
    if find_earlier_run(output_dir, run_dir) is None:
        return
    found = {*find_named(run_dir, (*RECORD, *EVALUATED)), *find_named(output_dir, SAVED)}
    if base and Path(base).is_dir():
        model = Path(base).resolve()
        moving = [path.resolve() for path in found]
        if model == output_dir.resolve() or any(model.is_relative_to(path) for path in moving):
            raise ValueError(
                f"output_dir={str(output_dir)!r} holds an earlier run, and the model {base!r} is a part of it. Choose "
                "another output_dir."
            )
    names = (f"earlier-{number}" for number in itertools.count(1))
    name = next(name for name in names if not ((output_dir / name).exists() or (run_dir / name).exists()))
    for path in sorted(found):
        path.with_name(name).mkdir(exist_ok=True)
        path.rename(path.with_name(name) / path.name)
    logger.warning(
        "output_dir=%r held an earlier run, which is now in %s. Remove it if you like, or give each run a folder.",
        *(str(output_dir), output_dir / name),
    )


def check_shared(folders: Iterable[str | os.PathLike], process: int) -> None:
    """
    Refuse folders that are not the same for every process of a run, as on several nodes without a shared disk: a
    resume would look for its checkpoint on each of them. The main process writes a file, and all look for it.

    Args:
        folders (`Iterable`): `output_dir`, and `run_dir` where it is another.
        process (`int`): The number of this process among all of the run.

    Raises `ValueError`: in every process, naming the first folder and process; `OSError`: a folder cannot be written.
    """
    from accelerate.utils import gather_object  # as below

    name = by_main_process(process == 0, lambda: _write_tokens(folders))
    try:
        missing = None
        for folder in folders:
            if missing is None and not _appears(Path(folder, name)):
                missing = f"{Path(folder).absolute()} of process {process} on {socket.gethostname()}"
        found = gather_object([missing])
    finally:
        if process == 0:
            _remove_tokens(folders)
    lacking = [one for one in found if one is not None]
    if not lacking:
        return
    error = ValueError(
        f"{lacking[0]} is not the folder that the main process writes to. All processes of a run need one output_dir "
        "and run_dir, on a disk that the nodes share; save_on_each_node does not replace it."
    )
    error.said_elsewhere = process != 0
    raise error


def _write_tokens(folders: Iterable[str | os.PathLike]) -> str:
    """Write an empty file into each folder, and return its name, which no file had before."""
    _remove_tokens(folders)  # of a run that was killed meanwhile
    name = f"{TOKEN}{uuid.uuid4().hex}"
    for folder in folders:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, name).touch()
    return name


def _remove_tokens(folders: Iterable[str | os.PathLike]) -> None:
    for folder in folders:
        for path in find_named(Path(folder), (re.escape(TOKEN) + "[0-9a-f]{32}",)):
            path.unlink(missing_ok=True)


def _appears(path: Path) -> bool:
    """Whether a file is there, or comes within the time for which a network file system may hide a new one."""
    end = time.monotonic() + SHARED_SECONDS
    while not os.path.exists(path):
        if time.monotonic() >= end:
            return False
        time.sleep(0.2)
    return True


def by_main_process(is_main: bool, find: Callable[[], Any]) -> Any:
    """
    Call a function in the main process. Its result, or the `ValueError` or `OSError` that it raised, becomes every
    process's. The result must be picklable.
    """
    from accelerate.utils import broadcast_object_list  # a look at a lock need not wait for torch

    found = [None]
    if is_main:
        try:
            found = [find()]
        except (ValueError, OSError) as error:
            found = [error]
    broadcast_object_list(found)
    if isinstance(found[0], Exception):
        found[0].said_elsewhere = not is_main  # one line is enough
        raise found[0]
    return found[0]
