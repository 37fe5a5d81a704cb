"""
Samples on disk, so that nothing is sampled twice: `RUN/samples/<model>-<settings>/`, parquet beside `_settings.json`.

A sample is written with the batch it was drawn in: an evaluation that is stopped goes on where it was, and one that
asks for more samples or more prompts draws what is missing. Only one evaluation at a time draws samples of a model
under a setting; another that wants them waits, and then reuses what was drawn.
"""

import copy
import hashlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pandas as pd

from trl_prorl.errors import InputError, RunError
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.files import replaced
from trl_prorl.record.folder_lock import exclusive
from trl_prorl.record.run_files import read_json
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

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other evaluations from these samples in a context; wait for one that is drawing them."""
        folder = visible(str(self.folder))
        return exclusive(
            self.folder, f"{folder}: another evaluation is drawing these samples; waiting for it to finish."
        )

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
            return self.empty()
        whole = pd.concat(frames, ignore_index=True).reindex(columns=list(COLUMNS))
        # A stop between writing the whole and removing its parts leaves both.
        return whole.drop_duplicates(["prompt_id", "sample"]).sort_values(["prompt_id", "sample"], ignore_index=True)

    @staticmethod
    def empty() -> pd.DataFrame:
        """Return no sample."""
        return pd.DataFrame({name: [] for name in COLUMNS})

    def frame_in_line(self) -> pd.DataFrame:
        """Return the samples of each prompt up to the first gap, which a damaged file leaves when it is removed."""
        frame = self.frame()
        return frame[frame["sample"] == frame.groupby("prompt_id").cumcount()]

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

    def stores_beside(self, run_dir: Path) -> "Iterator[SampleStore]":
        """Yield the samples that runs in the same folder as a run have of the same model under the same setting."""
        for folder in sorted(run_dir.resolve().parent.glob(f"*/{SAMPLES_FOLDER}/{self.folder.name}")):
            store = copy.copy(self)
            store.folder = folder
            try:
                if folder.resolve() != self.folder.resolve() and read_json(folder / SETTINGS_FILE) == self.settings:
                    yield store
            except InputError:
                continue

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / SETTINGS_FILE).exists():
            write_json(self.folder / SETTINGS_FILE, self.settings)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.parquet"), key=lambda path: (path.name != WHOLE, path.name))

    def _write(self, frame: pd.DataFrame, name: str) -> None:
        with replaced(self.folder / name) as aside:
            frame.to_parquet(aside, index=False)
