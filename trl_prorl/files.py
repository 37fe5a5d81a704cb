"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: str | os.PathLike) -> Iterator[Path]:
    """
    A path to write to in the place of `path`, which is replaced when that is done. A reader never sees half a file; where
    writing fails, what was there stays.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.part")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def free_name(path: Path) -> Path:
    """`metrics.jsonl` → `metrics.1.jsonl`, or the next number that is free."""
    number = 1
    while (candidate := path.with_suffix(f".{number}{path.suffix}")).exists():
        number += 1
    return candidate
