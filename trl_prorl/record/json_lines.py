"""A file with one JSON object on each line, written line by line."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..files import free_name, replaced
from .run_files import read_jsonl


class JsonLines:
    """
    Writes a file with one JSON object on each line, line by line.

    Args:
        path (`str` or `os.PathLike`): The file.
        keep (`Callable`, *optional*): Continues a file: the lines for which this is true stay, those that a run cut
            short left behind are dropped. `None` begins a new file; one that is there is kept under a numbered name.
        needed (`Iterable[str]`): Keys of every line of a file that is continued.

    Raises:
        `InputError`: A line of a file that is continued cannot be read.
    """

    def __init__(
        self, path: str | os.PathLike, keep: Callable[[dict], bool] | None = None, needed: Iterable[str] = ()
    ):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if keep is None:
            if self.path.exists() and self.path.stat().st_size:
                self.path.rename(free_name(self.path))
            self.path.touch()
        else:
            rows = [json.dumps(row) + "\n" for row in read_jsonl(self.path, needed) if keep(row)]
            with replaced(self.path) as aside:
                aside.write_text("".join(rows))

    def write(self, row: dict[str, Any]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")

    def change_last(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> bool:
        """
        Replace the last row by what `change` makes of it, unless that is `None`.

        The new line is written over the old one in one go, so that a process killed in between leaves one of the two.

        Returns:
            `bool`: Whether the row was replaced.
        """
        text = self.path.read_bytes()
        start = text.rfind(b"\n", 0, -1) + 1
        row = change(json.loads(text[start:])) if text else None
        if row is None:
            return False
        line = (json.dumps(row) + "\n").encode()
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(start)
            file.write(line)
            file.truncate()
        return True
