"""
The folders of a run: whose they are, what is set aside, and what is cleared when the run no longer needs it.

A run overwrites and deletes nothing that it did not write, whichever way it is started: files that belong to no run
are refused, and an earlier run is refused by a recipe and set aside by a script. The main process looks, for all.

In reading order: `RunFolders`; checkpoints among other files of a folder; `by_main_process`; the locks `FolderLock`,
`check_free` and `exclusive`; `check_links` for a folder that is read, `check_plain` for one that is written to.
"""

import itertools
import logging
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import InputError
from .files import STAGED, free_name, open_own
from .run_files import BASE_ADAPTER, METRICS_FILE, RUN_ID_FILE, recorded_run_id, saved_run_id
from .tasks.plugin import check_not_loading


logger = logging.getLogger(__name__)

LOCK_FILE = "run.lock"
SECONDS = 0.5  # a look at the lock takes it for a moment, see `check_free`
HOLDER = "process "  # begins what the file says
# What may be in the file: that, after a power loss zeros, and filelock's own where the kernel has no locks.
LOCK_CONTENT = re.compile(rb"process |\0*$|\d+\n")
WANDB = "wandb"  # its client fills the folder with links to its own cache, and no command reads or writes there
MANIFEST_FILE = "manifest.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
ABANDONED = "abandoned-"
INCOMPLETE = "_incomplete-"  # the Hub's uploads leave out what begins with an underscore
# Folders that saves and removals, and uploads, leave behind when they are cut short.
HALF_SAVED = rf"{INCOMPLETE}(old-)?checkpoint-\d+"
LEFT_BEHIND = (HALF_SAVED, rf"{STAGED}\d+")
COMPLETIONS = "completions"  # TRL's folder of what was sampled, for `log_completions`
# Names of what a run writes: its record, with what evaluations add to it, and what it saves.
RECORD = (
    r"config\.yaml",
    r"env\.json",
    r"(metrics|events|evaluations)(\.\d+)?\.jsonl",
    BASE_ADAPTER,
    r"passk\.json",
    r"drift\.(json|png)",
)
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
    COMPLETIONS,
    r"(abandoned-)?checkpoint-\d+(\.\d+)?",
)
# What only a run leaves in its `output_dir`, ours or one of TRL's trainer.
TRACES = (
    RUN_ID_FILE,
    "training_args.bin",
    "checkpoint-*/trainer_state.json",
    f"{INCOMPLETE}checkpoint-*/checkpoint-*",
    f"{COMPLETIONS}/completions_*.parquet",
)


class RunFolders:
    """
    The folders that a run writes to.

    Args:
        output_dir (`str` or `os.PathLike`): The folder of the model and its checkpoints.
        run_dir (`str` or `os.PathLike`, *optional*): Folder of the log files; `output_dir` by default.
    """

    def __init__(self, output_dir: str | os.PathLike, run_dir: str | os.PathLike | None = None):
        self.output_dir = Path(output_dir)
        self.run_dir = Path(run_dir or output_dir)
        self.is_one = self.output_dir.resolve() == self.run_dir.resolve()
        # Each by the key that names it.
        self.paths = {"output_dir": self.output_dir}
        # Patterns of the names of what a run writes there: refused where they belong to no run, set aside with one.
        self.names = {"output_dir": (*SAVED, *LEFT_BEHIND)}
        if self.is_one:
            self.names["output_dir"] += RECORD
        else:
            self.paths["run_dir"] = self.run_dir
            self.names["run_dir"] = RECORD

    @classmethod
    def from_args(cls, args: Any, output_dir: str | os.PathLike | None = None) -> "RunFolders":
        """Take the folders from a trainer's arguments; a search for hyperparameters has an `output_dir` a trial."""
        return cls(output_dir or args.output_dir, args.run_dir or args.output_dir)

    # ------------------------------------------------------------------------------- before a run begins

    def check_usable(self) -> None:
        """
        Raise an error for what is there and is no folder that can be written, and links that lead out of one.

        Raises:
            `ValueError`: The message names the key, its value and the cure.
        """
        check_not_loading()
        for key, folder in self.paths.items():
            given = f"{key}={str(folder)!r}"
            whole = folder.absolute()
            there = next(path for path in (whole, *whole.parents) if os.path.lexists(path))
            if not there.is_dir() or not os.access(there, os.W_OK):
                raise ValueError(f"{given} cannot be used: {there} is not a writable folder. Choose another folder.")
            check_links(folder, given, only_links=True)  # a project's folder may hold a pipe
            lock = folder / LOCK_FILE
            if lock.is_file() and LOCK_CONTENT.match(lock.read_bytes()) is None:
                self._refuse_foreign(key, [LOCK_FILE])

    def check_new(self) -> None:
        """
        Raise an error for folders in which a recipe may not begin a run.

        Raises:
            `ValueError`: The message names the folder, what it holds, and the cure.
        """
        self.check_nothing_foreign()
        key = self.find_earlier_run()
        if key is not None:
            raise ValueError(
                f"{key}={str(self.paths[key])!r} already contains a run. Choose another {key}, delete it, or resume "
                "the run with --resume_from_checkpoint True."
            )

    def check_nothing_foreign(self) -> None:
        """
        Raise an error for folders in which a new run would overwrite or delete what belongs to no run.

        Raises:
            `ValueError`: The message names the key, the folder and the files.
        """
        for key, folder in self.paths.items():
            is_known = self.holds_record() if key == "run_dir" else self.has_traces()
            names = find_filled(folder, self.names[key])
            if names and not is_known:
                self._refuse_foreign(key, names)

    def check_record_stays(self, checkpoint: Path) -> None:
        """
        Raise an error for a resume that would cut or overwrite a record that is not its run's.

        Args:
            checkpoint (`Path`): The run continues from here.

        Raises:
            `ValueError`: The message names `run_dir` and what it holds.
        """
        saved = saved_run_id(checkpoint)
        recorded = recorded_run_id(self.run_dir)
        if saved is None or saved == recorded:  # TRL's own trainer writes no id
            return
        if recorded is not None:
            raise ValueError(
                f"run_dir={str(self.run_dir)!r} contains the log files of a different run than {checkpoint}, which "
                "would be lost. Choose another run_dir, or move these files."
            )
        if checkpoint.resolve().parent == self.run_dir.resolve():  # the run's own folder, whose env.json is damaged
            return
        names = find_filled(self.run_dir, RECORD)
        if names:
            self._refuse_foreign("run_dir", names)

    def check_model_stays(self, base: str | None) -> None:
        """
        Raise an error for a resume whose end would replace the model that the run started from.

        Args:
            base (`str`, *optional*): The model's Hub name or folder.

        Raises:
            `ValueError`: `output_dir` is its folder.
        """
        is_here = base is not None and Path(base).is_dir() and Path(base).resolve() == self.output_dir.resolve()
        if is_here and saved_run_id(self.output_dir) is None:  # else it is a run's own model
            raise ValueError(
                f"output_dir={str(self.output_dir)!r} is the folder of the starting model, which the trained model "
                "would overwrite. Choose another output_dir, and set resume_from_checkpoint to the path of the "
                "checkpoint."
            )

    # ------------------------------------------------------------------------------------ an earlier run

    def holds_record(self) -> bool:
        """Return whether `run_dir` contains the log files of a run, which may have done no step yet."""
        return has_begun(self.run_dir) or recorded_run_id(self.run_dir) is not None

    def has_traces(self) -> bool:
        """Return whether a run, ours or one of TRL's trainer, has left its traces in `output_dir`."""
        if self.is_one and self.holds_record():
            return True
        return any(any(self.output_dir.glob(trace)) for trace in TRACES)

    def find_earlier_run(self) -> str | None:
        """Return the key of a folder with a run that did anything; `None` if there is none."""
        if find_filled(self.output_dir, SAVED) and self.has_traces():
            return "output_dir"
        if has_begun(self.run_dir):
            return next(reversed(self.paths))
        return None

    def set_earlier_run_aside(self, base: str | None) -> None:
        """
        Move what an earlier run has left into `earlier-1` of the same folder, or the next free number, and log it.

        Other files stay.

        Args:
            base (`str`, *optional*): Hub name or folder of the model of the run that begins.

        Raises:
            `ValueError`: The model is a part of the earlier run, and would move with it.
        """
        found = self.find_earlier_run()
        if found is None:
            return
        moving = []
        for key, folder in self.paths.items():
            moving += find_named(folder, self.names[key])
        if base and Path(base).is_dir():
            model = Path(base).resolve()
            if model == self.output_dir.resolve() or any(model.is_relative_to(path.resolve()) for path in moving):
                raise ValueError(
                    f"{found}={str(self.paths[found])!r} contains an earlier run, and the model {base!r} belongs to "
                    f"it. Choose another {found}."
                )
        names = (f"earlier-{number}" for number in itertools.count(1))
        name = next(name for name in names if not any(os.path.lexists(path / name) for path in self.paths.values()))
        for path in moving:
            earlier = path.with_name(name)
            earlier.mkdir(exist_ok=True)
            path.rename(earlier / path.name)
        logger.warning(
            "%s=%r contained an earlier run, which was moved to %s. Delete it if you do not need it, or give each run "
            "its own folder.",
            found,
            str(self.paths[found]),
            " and ".join(sorted({str(path.with_name(name)) for path in moving})),
        )

    # --------------------------------------------------------------------------------------- checkpoints

    def has_checkpoint(self, checkpoint: Path) -> bool:
        """Return whether a checkpoint lies in a folder of this run, so that a resume continues with the same run."""
        folder = checkpoint.resolve().parent
        if folder.name == f"{INCOMPLETE}{checkpoint.name}":  # it is complete, and gets its name when the run goes on
            folder = folder.parent
        return folder == self.output_dir.resolve()

    def id_of_run(self, checkpoint: Path | None) -> str:
        """Return the id of the run that a checkpoint of these folders continues, else a new one."""
        found = None
        if checkpoint is not None and self.has_checkpoint(checkpoint):
            found = saved_run_id(checkpoint) or recorded_run_id(self.run_dir)
        return found or uuid.uuid4().hex  # which draws from none of the generators of random numbers that a run uses

    def clear_leftovers(self) -> None:
        """Remove the folders that saves, removals and uploads of the run left behind when they were cut short."""
        for path in find_named(self.output_dir, LEFT_BEHIND):
            if path.is_symlink():
                path.unlink()  # a checkpoint that was moved elsewhere, and linked; its content is not ours
            elif path.is_dir():
                shutil.rmtree(path)

    def abandon_newer(self, checkpoint: Path, unusable: Collection[str] = ()) -> dict[str, str]:
        """
        Rename the checkpoints that are newer than the one from which the run goes on, and log it.

        The run has gone back behind their steps, and the next resume would take the newest of them for its own.

        Args:
            checkpoint (`Path`): The run continues from here; if it lies elsewhere, nothing is renamed.
            unusable (`Collection[str]`): Names of checkpoints that no resume takes; they stay.

        Returns:
            `dict[str, str]`: The new names by the old.
        """
        steps = steps_of(self.output_dir)
        here = [step for path, step in steps.items() if path.resolve() == checkpoint.resolve()]
        newer = [path for path, step in steps.items() if here and step > here[0] and path.name not in unusable]
        renamed = {path.name: rename_abandoned(path).name for path in newer}
        for name, now in renamed.items():
            logger.warning(
                f"{name} is newer than {checkpoint.name}, from which the run resumes, so it was renamed to {now}. "
                "Delete it if you do not need it."
            )
        return renamed

    def remove_oldest(
        self, step: int, limit: int | None, best: str | os.PathLike | None, run_id: str | None = None
    ) -> None:
        """
        Remove the oldest checkpoints of a run beyond a limit, but neither the newest nor the best.

        A folder that the run did not write stays, and does not count. Later ones are not of this run: no resume could
        take them, or they would be abandoned. Their steps give the order, not the times at which folders were changed:
        the removal changes a folder as well, and a kill may come in its middle.

        Args:
            step (`int`): The optimizer step of the newest.
            limit (`int`, *optional*): `None`, 0 or less means no limit, as in transformers.
            best (`str` or `os.PathLike`, *optional*): The best checkpoint.
            run_id (`str`, *optional*): The id of the run.
        """
        if limit is None or limit <= 0:
            return
        steps = steps_of(self.output_dir)
        own = [path for path in sorted(steps, key=steps.get) if steps[path] <= step and is_of_run(path, run_id)]
        kept = {Path(path).resolve() for path in (self.output_dir / f"checkpoint-{step}", best) if path}
        surplus = len(own) - max(limit, len(kept))
        removable = [path for path in own if path.resolve() not in kept]
        for path in removable[: max(0, surplus)]:
            old = name_while_removed(path)  # does not count as a checkpoint, if a kill comes in the middle
            path.rename(old)
            shutil.rmtree(old, ignore_errors=True)

    def _refuse_foreign(self, key: str, names: list[str]) -> None:
        raise ValueError(
            f"{key}={str(self.paths[key])!r} contains {', '.join(names)}: a new run would overwrite this, and no "
            f"earlier run wrote it. Choose another {key}, or move these files."
        )


def has_begun(run_dir: Path) -> bool:
    """Return whether a folder contains the log files of a run that did a step."""
    record = run_dir / METRICS_FILE
    return record.exists() and record.stat().st_size > 0


def find_named(folder: Path, patterns: Collection[str | re.Pattern]) -> list[Path]:
    """Find what lies in a folder under a name that matches one of the patterns, in order."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if any(re.fullmatch(each, path.name) for each in patterns)]


def find_filled(folder: Path, patterns: Collection[str]) -> list[str]:
    """Return the names of what [`find_named`] finds, without empty files and folders."""
    return [path.name for path in find_named(folder, patterns) if not _is_empty(path)]


def _is_empty(path: Path) -> bool:
    if path.is_symlink():
        return False
    if path.is_dir():
        return not any(path.iterdir())
    return path.stat().st_size == 0


def steps_of(output_dir: Path) -> dict[Path, int]:
    """Map every checkpoint of a folder to the optimizer steps done."""
    return {path: int(CHECKPOINT.fullmatch(path.name)[1]) for path in find_named(output_dir, [CHECKPOINT])}


def is_of_run(checkpoint: Path, run_id: str | None) -> bool:
    """Return whether a folder is a checkpoint that the run of this id has written."""
    found = saved_run_id(checkpoint)
    if found is not None and run_id is not None:
        return found == run_id
    # TRL's own trainer writes no id, and a power loss may have taken ours.
    return any((checkpoint / name).is_file() for name in (MANIFEST_FILE, "trainer_state.json"))


def rename_abandoned(checkpoint: Path) -> Path:
    """Rename a checkpoint that is no longer part of its run, to a name that is free."""
    target = checkpoint.with_name(f"{ABANDONED}{checkpoint.name}")
    if target.exists():
        target = free_name(target)
    return checkpoint.rename(target)


def name_while_removed(checkpoint: Path) -> Path:
    """Name the folder that a checkpoint is called while it is replaced or removed."""
    return checkpoint.with_name(f"{INCOMPLETE}old-{checkpoint.name}")


def by_main_process(is_main: bool, find: Callable[[], Any]) -> Any:
    """
    Call a function in the main process, and give its result to all.

    Args:
        is_main (`bool`): Whether this process is the main one.
        find (`Callable`): Returns something that can be pickled.

    Returns:
        `Any`: What `find` returned, in every process.

    Raises:
        `ValueError` or `OSError`: In every process, where `find` raised it.
    """
    from accelerate.utils import broadcast_object_list  # the demo's command line need not wait for torch

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


class FolderInUseError(ValueError):
    """Another process trains into a folder."""


class FolderLock:
    """
    Keeps every other `FolderLock`, in this process or in any other, out of some folders.

    The lock is the kernel's, on the file `run.lock`, which also says who holds it. It ends with its process, however
    that ends: a killed process leaves a file behind and no lock. Forked children do not inherit it. Where the kernel
    has no locks, filelock takes the file itself for one.

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
            `OSError`: A folder cannot be written or locked.
        """
        with ExitStack() as stack:
            for file, lock in self._locks.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                _acquire(file, lock)
                stack.callback(_leave, file, lock)
                if not file.read_bytes()[:1].isdigit():  # else it is filelock's own
                    since = time.strftime("%Y-%m-%d %H:%M:%S")
                    with open_own(file, "w") as opened:
                        opened.write(f"{HOLDER}{os.getpid()} on {socket.gethostname()}, since {since}")
            stack.pop_all()

    def release(self) -> None:
        """Count back; the folders are free once it has been called as often as `hold`."""
        for file, lock in self._locks.items():
            _leave(file, lock)


def _acquire(file: Path, lock: FileLock) -> None:
    try:
        lock.acquire()
    except Timeout:
        content = file.read_text(errors="replace")
        who = content if content.startswith(HOLDER) else "another process"
        raise FolderInUseError(
            f"output_dir or run_dir '{file.parent}' is in use by another run: {who}. Wait until it ends, stop it, or "
            "choose another folder."
        ) from None
    except OSError as error:
        raise OSError(f"'{file.parent}' cannot be locked ({error}). Choose a folder on another disk.") from error


def _leave(file: Path, lock: FileLock) -> None:
    if lock.is_locked and lock.lock_counter == 1:  # not in a forked child
        file.unlink(missing_ok=True)  # before it is released: it is nobody else's yet
    lock.release()


def check_free(*folders: str | os.PathLike) -> None:
    """
    Raise an error for folders that another process trains into. Makes nothing.

    Raises:
        [`FolderInUseError`]: The message names the folder and the process.
    """
    for folder in folders:
        file = Path(folder, LOCK_FILE)
        if file.is_file():
            lock = FileLock(file, blocking=False)
            _acquire(file, lock)
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


def check_links(folder: str | os.PathLike, given: str | None = None, only_links: bool = False) -> None:
    """
    Raise an error for a folder with a link that leads out of it: whoever made the link would choose which files of
    this machine are read, overwritten, deleted or uploaded. So would a pipe, a socket or a device, from which a reader
    waits for ever. The folder itself may be a link. A folder of the Hub's cache keeps its links to the blobs of the
    same repository. Hidden folders are passed over, and so is the Python of a virtual environment: `output_dir` may be
    the folder of a project.

    Args:
        folder (`str` or `os.PathLike`): The folder, which need not exist.
        given (`str`, *optional*): What the message calls it: a key and its value. By default its path.
        only_links (`bool`): Whether files that are neither regular nor links may be there.

    Raises:
        `InputError`: The message names the link or the file.
    """
    root = os.path.realpath(folder)
    what = given or repr(str(folder))
    blobs = _find_blobs(Path(root))
    for parent, folders, files in os.walk(root):
        for name in sorted([*folders, *files]):
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                if not (only_links or os.path.isfile(path) or os.path.isdir(path)):
                    raise InputError(
                        f"{what} contains {os.path.relpath(path, root)!r}, which is no regular file (a pipe, a socket "
                        "or a device): remove it"
                    )
                continue
            target = os.path.realpath(path)
            is_inside = Path(target).is_relative_to(root) or os.path.dirname(target) == blobs
            if not is_inside and not _is_interpreter(path):
                raise InputError(
                    f"{what} contains the link {os.path.relpath(path, root)!r}, which points outside the folder, to "
                    f"{target!r}: remove the link, or replace it with a copy"
                )
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != WANDB)


def check_plain(folder: str | os.PathLike, given: str | None = None) -> None:
    """
    Raise an error for a folder in which anything is a link, a pipe, a socket or a device, hidden folders included:
    what is written below a folder that this call did not make would be written elsewhere. So is the folder itself.

    Args:
        folder (`str` or `os.PathLike`): The folder, which need not exist.
        given (`str`, *optional*): What the message calls it. By default its path.

    Raises:
        `InputError`: The message names the file.
    """
    what = given or repr(str(folder))
    if os.path.islink(folder):
        raise InputError(
            f"{what} is a link, to {os.path.realpath(folder)!r}: give the folder itself, or remove the link"
        )
    for parent, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            path = os.path.join(parent, name)
            if os.path.islink(path) or not (os.path.isfile(path) or os.path.isdir(path)):
                raise InputError(
                    f"{what} contains {os.path.relpath(path, folder)!r}, which is no regular file (a link, a pipe, a "
                    "socket or a device): remove it, or give another folder"
                )


def _is_interpreter(link: str) -> bool:
    """Return whether a link is the Python of a virtual environment, which a project has in its folder."""
    path = Path(link)
    is_python = path.parent.name == "bin" and re.fullmatch(r"python[\d.]*", path.name)
    return bool(is_python) and (path.parent.parent / "pyvenv.cfg").is_file()


def _find_blobs(root: Path) -> str | None:
    """Return the folder of the blobs, if a folder is in a snapshot of the Hub's cache: `REPO/snapshots/COMMIT`."""
    for folder in (root, *root.parents):
        repo = folder.parent.parent
        if folder.parent.name == "snapshots" and repo.name.startswith("models--"):
            return str(repo / "blobs")
    return None
