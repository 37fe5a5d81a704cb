"""Leave out a warning of a library that is not true of what was done."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_warning(logger: str, part: str) -> Iterator[None]:
    """Without the messages of a logger that contain `part`."""
    theirs = logging.getLogger(logger)

    def keep(record: logging.LogRecord) -> bool:
        return part not in record.getMessage()

    theirs.addFilter(keep)
    try:
        yield
    finally:
        theirs.removeFilter(keep)
