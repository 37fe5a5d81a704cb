"""
Samples on disk, so that nothing is sampled twice: `RUN/samples/<model>-<settings>/`, parquet beside `_settings.json`.

A sample is written with the batch it was drawn in: an evaluation that is stopped goes on where it was, and one that
asks for more samples or more prompts draws what is missing. Only one evaluation at a time draws samples of a model
under a setting; another that wants them waits, and then reuses what was drawn.
"""

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from trl_prorl.errors import RunError
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.files import replaced
from trl_prorl.record.folder_lock import NO_LOCKS_HERE
from trl_prorl.text import visible


SAMPLES_FOLDER = "samples"  # of a run
SETTINGS_FILE = "_settings.json"  # readers of a folder of parquet leave out what begins with an underscore
WHOLE = "samples.parquet"
COLUMNS = (
    "prompt_id",
    "sample",
    "prompt",
    "task",
    "level",
    "completion",
    "ids",
    "truncated",
    "correct",
    "answer",
    "grader",
)


def content_ids(rows: list[dict]) -> list[str]:
    """
    Return a name for every row, made from its content alone: equal in every run that asks the same.

    Rows with equal content, should there be any, are numbered.
    """
    seen: dict[str, int] = {}
    names = []
    for row in rows:
        digest = hashlib.sha256(json.dumps(row, sort_keys=True, default=str).encode()).hexdigest()[:16]
        seen[digest] = place = seen.get(digest, -1) + 1
        names.append(f"{digest}.{place}" if place else digest)
    return names


class SampleStore:
    """
    The samples of one model under one setting, in a folder below that of a run's samples.

    Args:
        label (`str`): What the model is called, for people.
        settings (`dict`): Everything that decides the samples, but for the prompts: JSON values.
    """

    def __init__(self, folder: Path, label: str, settings: dict):
        text = json.dumps(settings, sort_keys=True)
        self.settings = settings
        self.folder = folder / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """
        Keep other evaluations from these samples in this context; wait for one that is drawing them. Where the file
        system has no locks, or the folder cannot be written, nothing is kept out.
        """
        lock = FileLock(self.folder.with_name(f".{self.folder.name}.lock"), fallback_to_soft=False)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout:
            folder = visible(str(self.folder))
            print(f"{folder}: another evaluation is drawing these samples; waiting for it to finish.", flush=True)
            lock.acquire()
        except OSError as error:
            if error.errno not in (*NO_LOCKS_HERE, errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        try:
            yield
        finally:
            lock.release()

    def frame(self) -> pd.DataFrame:
        """
        Every sample, a row each, with the columns `COLUMNS`, by prompt and number.

        Raises:
            `RunError`: a file cannot be read.
        """
        frames = []
        for path in self._files():
            try:
                frames.append(pd.read_parquet(path))
            except (OSError, ValueError) as error:
                raise RunError(
                    f"{path} cannot be read ({error}): remove it, and its samples are drawn again"
                ) from error
        if not frames:
            return pd.DataFrame({name: [] for name in COLUMNS})
        whole = pd.concat(frames, ignore_index=True).reindex(columns=list(COLUMNS))
        # A stop between writing the whole and removing its parts leaves both.
        return whole.drop_duplicates(["prompt_id", "sample"]).sort_values(["prompt_id", "sample"], ignore_index=True)

    def add(self, rows: list[dict]) -> None:
        """Keep a batch of samples, `COLUMNS` each."""
        self._begin()
        first = rows[0]
        self._write(pd.DataFrame(rows, columns=COLUMNS), f"part-{first['prompt_id']}-{first['sample']:04d}.parquet")

    def merge(self) -> None:
        """One file instead of many."""
        parts = self._files()
        if parts == [self.folder / WHOLE] or not parts:
            return
        self.replace(self.frame())

    def replace(self, frame: pd.DataFrame) -> None:
        """Keep these samples in the place of all that there are."""
        parts = self._files()
        self._write(frame, WHOLE)
        for path in parts:
            if path.name != WHOLE:
                path.unlink()

    def adopt(self, neighbours: list[Path]) -> None:
        """Copy the samples that a neighbouring run has of the same model under the same setting, if there are any."""
        if self.folder.exists():
            return
        for neighbour in neighbours:
            theirs = neighbour / self.folder.name
            if (theirs / SETTINGS_FILE).is_file():
                aside = self.folder.with_name(f"_incomplete-{self.folder.name}")
                shutil.rmtree(aside, ignore_errors=True)
                shutil.copytree(theirs, aside, ignore=shutil.ignore_patterns("*.part"))
                aside.rename(self.folder)
                return

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / SETTINGS_FILE).exists():
            write_json(self.folder / SETTINGS_FILE, self.settings)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"), key=lambda path: (path.name != WHOLE, path.name))

    def _write(self, frame: pd.DataFrame, name: str) -> None:
        with replaced(self.folder / name) as aside:
            frame.to_parquet(aside, index=False)
