"""Symbolic links in the folder of a run or a model: one that leads out of the folder is refused."""

import os
import re
from pathlib import Path

from ..errors import InputError


WANDB = "wandb"  # its client fills the folder with links to its own cache, and no command reads or writes there


def check_links(folder: str | os.PathLike, given: str | None = None) -> None:
    """
    Raise an error for a folder with a link that leads out of it: whoever made the link would choose which files of
    this machine are read, overwritten, deleted or uploaded. The folder itself may be a link. A folder of the Hub's
    cache keeps its links to the blobs of the same repository. Hidden folders are passed over, and so is the Python of
    a virtual environment: `output_dir` may be the folder of a project.

    Args:
        folder (`str` or `os.PathLike`): The folder, which need not exist.
        given (`str`, *optional*): What the message calls it: a key and its value. By default its path.

    Raises:
        `InputError`: The message names the link.
    """
    root = os.path.realpath(folder)
    blobs = _find_blobs(Path(root))
    for parent, folders, files in os.walk(root):
        for name in sorted([*folders, *files]):
            link = os.path.join(parent, name)
            if not os.path.islink(link) or _is_interpreter(link):
                continue
            target = os.path.realpath(link)
            if not Path(target).is_relative_to(root) and os.path.dirname(target) != blobs:
                what = given or repr(str(folder))
                raise InputError(
                    f"{what} contains the link {os.path.relpath(link, root)!r}, which points outside the folder, to "
                    f"{target!r}: remove the link, or replace it with a copy"
                )
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != WANDB)


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
