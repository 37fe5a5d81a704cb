"""What one process does for all of a run."""

from collections.abc import Callable
from typing import Any


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
