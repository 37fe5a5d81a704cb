"""What one process does for all of a run, and what all of them have to see."""

import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .checkpoint_names import find_named


TOKEN = ".shared-"  # begins the name of a file for which all processes look
SHARED_SECONDS = 60  # NFS remembers for as long what a folder held


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


def check_shared(folders: Iterable[str | os.PathLike], process: int) -> None:
    """
    Refuse folders that are not the same for every process of a run, as on several nodes without a shared disk.

    A resume would look for its checkpoint on each of them. The main process writes a file, and all look for it.

    Args:
        folders (`Iterable`): `output_dir`, and `run_dir` where it is another.
        process (`int`): The number of this process among all of the run.

    Raises:
        `ValueError`: In every process; the message names the first folder and process.
        `OSError`: A folder cannot be written.
    """
    from accelerate.utils import gather_object  # as above

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
        for path in find_named(Path(folder), (rf"{re.escape(TOKEN)}[0-9a-f]{{32}}",)):
            path.unlink(missing_ok=True)


def _appears(path: Path) -> bool:
    """Whether a file is there, or comes within the time for which a network file system may hide a new one."""
    end = time.monotonic() + SHARED_SECONDS
    while not os.path.exists(path):
        if time.monotonic() >= end:
            return False
        time.sleep(0.2)
    return True
