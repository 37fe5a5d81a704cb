"""What one process finds out for all processes of a run."""

from collections.abc import Callable
from typing import Any

from accelerate.utils import broadcast_object_list


def by_main_process(is_main: bool, find: Callable[[], Any]) -> Any:
    """
    Call a function in the main process. Its result, or the `ValueError` or `OSError` that it raised, becomes every
    process's.

    Args:
        is_main (`bool`): Whether this is the main process.
        find (`Callable`): Without arguments; the result must be picklable.
    """
    found = [None]
    if is_main:
        try:
            found = [find()]
        except (ValueError, OSError) as error:
            found = [error]
    broadcast_object_list(found)
    if isinstance(found[0], Exception):
        found[0].told_elsewhere = not is_main  # one line is enough
        raise found[0]
    return found[0]
