"""
Samples on disk, so that nothing is sampled twice: `RUN/samples/<model>-<settings>/`, with parquet files and
`_settings.json`.

Samples are written batch by batch: a stopped evaluation continues, and one with more samples or prompts draws only the
missing ones. Only one evaluation at a time draws samples of a model with given settings; a second one waits, and then
reuses them.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import write_json
from trl_prorl.run.files import json_sha256, replaced
from trl_prorl.run.folder import exclusive
from trl_prorl.run.log_files import read_json
from trl_prorl.text import visible


SAMPLES_FOLDER = "samples"  # in a run folder
SETTINGS_FILE = "_settings.json"  # parquet readers skip files whose names begin with an underscore
ENDS = "ends"
MODEL_CONFIG = "model_config"
TOKENIZATION = "tokenization"
# In the settings, but not in the folder's name: older samples, which lack them, are kept.
NOTED = {
    ENDS: "the end tokens have",
    MODEL_CONFIG: "the model's configuration has",
    TOKENIZATION: "the tokenizer has",
}
WHOLE = "samples.parquet"
BATCH = 1024  # rows
MAX_BYTES = 2**32  # of the samples in a file, unpacked
MAX_RATIO = 64  # of a larger one, unpacked to packed; with GSM8K and 64 samples of 4,000 tokens it has 4 GB, and 2
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


def content_ids(rows: Iterable[dict]) -> list[str]:
    """Return an id for every row, made from its content only, so that it is equal in all runs."""
    return [json_sha256(row)[:16] for row in rows]


def distinct(rows: Sequence[dict], name: str) -> list[int]:
    """Return the places of rows that equal no earlier one in all columns; a line says how many others there are."""
    first = {}
    for place, content in enumerate(content_ids(rows)):
        first.setdefault(content, place)
    repeated = len(rows) - len(first)
    if repeated:
        print(visible(f"{name}: {repeated} of {len(rows)} rows equal an earlier one and are left out."), flush=True)
    return list(first.values())


def _end_tokens(ends: list) -> set[int]:
    """Return the tokens of all: the start of training writes the tokenizer's among those that a model declares."""
    given = [each if isinstance(each, list) else [each] for each in ends]
    return {token for tokens in given for token in tokens if token is not None}


def _name(settings: dict) -> str:
    return json_sha256({name: value for name, value in settings.items() if name not in NOTED})[:12]


class SampleStore:
    """
    The samples of one model with one setting, in a subfolder of a run's samples.

    Args:
        folder (`Path`): The folder of a run's samples.
        label (`str`): A readable name of the model.
        settings (`dict`): Everything that determines the samples except the prompts, as JSON values.
    """

    def __init__(self, folder: Path, label: str, settings: dict):
        self.settings = settings
        self.folder = folder / f"{label}-{_name(settings)}"

    def exclusive(self) -> AbstractContextManager[None]:
        """Lock these samples against other evaluations inside a context; wait for one that is drawing them."""
        folder = visible(str(self.folder))
        return exclusive(
            self.folder, f"{folder}: another evaluation is drawing these samples; waiting for it to finish."
        )

    def frame(self) -> pd.DataFrame:
        """
        Return all samples, a row each, with the columns `COLUMNS`, sorted by prompt and number.

        Raises:
            `InputError`: If a file cannot be read.
        """
        frames = []
        for path in self._files():
            try:
                frames.append(_checked(_read(path).reindex(columns=list(COLUMNS))))
            except Exception as error:  # a file of anybody, of which pandas and pyarrow raise what they like
                raise InputError(
                    f"'{path}' cannot be read ({error}): remove it, and its samples will be drawn again"
                ) from error
        if not frames:
            return pd.DataFrame(columns=COLUMNS)
        whole = pd.concat(frames, ignore_index=True)
        # A stop between writing the merged file and removing its parts leaves both.
        return whole.drop_duplicates(["prompt_id", "sample"]).sort_values(["prompt_id", "sample"], ignore_index=True)

    def drop_outdated(self) -> None:
        """Remove samples that are known to be of other end tokens, another configuration or tokenizer."""
        path = self.folder / SETTINGS_FILE
        changed = self._changed_since(read_json(path)) if path.is_file() else None
        if changed:
            print(f"{visible(str(self.folder))}: {changed} changed, so its samples are drawn again.")
            for file in (*self._files(), path):
                file.unlink()

    def _changed_since(self, noted: dict) -> str | None:
        """Return what is known to differ from the settings that samples were drawn with."""
        for name, changed in NOTED.items():
            read = _end_tokens if name == ENDS else str
            if name in noted and name in self.settings and read(noted[name]) != read(self.settings[name]):
                return changed
        return None

    def add(self, rows: list[dict] | pd.DataFrame) -> None:
        """Save a batch of samples, with the columns `COLUMNS`."""
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / SETTINGS_FILE).exists():
            write_json(self.folder / SETTINGS_FILE, self.settings)
        first = frame.iloc[0]
        self._write(frame, f"part-{first['prompt_id']}-{first['sample']:04d}.parquet")

    def merge(self) -> bool:
        """Merge all files into one; return whether there were others."""
        has_parts = any(path.name != WHOLE for path in self._files())
        if has_parts:
            self.replace(self.frame())
        return has_parts

    def replace(self, frame: pd.DataFrame) -> None:
        """Replace all samples by these."""
        parts = self._files()
        self._write(frame, WHOLE)
        for path in parts:
            if path.name != WHOLE:
                path.unlink()

    def stores_beside(self, run_dir: Path) -> "Iterator[SampleStore]":
        """Yield the samples of the same model with the same settings in neighbouring run folders."""
        for folder in sorted(run_dir.resolve().parent.glob(f"*/{SAMPLES_FOLDER}/{self.folder.name}")):
            store = copy.copy(self)
            store.folder = folder
            try:
                noted = read_json(folder / SETTINGS_FILE)
            except InputError:
                continue
            same = _name(noted) == _name(self.settings) and not self._changed_since(noted)
            if same and folder.resolve() != self.folder.resolve():
                yield store

    def _files(self) -> list[Path]:
        files = filter(Path.is_file, self.folder.glob("*.parquet"))
        return sorted(files, key=lambda path: (path.name != WHOLE, path.name))

    def _write(self, frame: pd.DataFrame, name: str) -> None:
        with replaced(self.folder / name) as staging:
            frame.to_parquet(staging, index=False)


def in_line(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of each prompt up to the first gap, left by a damaged file that was removed."""
    return frame[frame["sample"] == frame.groupby("prompt_id").cumcount()]


def _read(path: Path) -> pd.DataFrame:
    """
    Return a parquet file; a `ValueError` if it unpacks to more than `MAX_BYTES`, and more than `MAX_RATIO` times its
    size: a kilobyte may hold terabytes.
    """
    most = max(MAX_BYTES, MAX_RATIO * path.stat().st_size)
    batches = []
    size = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH, columns=list(COLUMNS)):
            batches.append(batch)
            size += batch.nbytes
            if size > most:
                raise ValueError(f"it unpacks to more than {most:,} bytes")
        whole = pa.Table.from_batches(batches) if batches else file.read(columns=list(COLUMNS))
    return whole.to_pandas()


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    """Return samples as they were read; a `ValueError` for columns that are missing or of another type."""
    is_text = frame[["prompt_id", "completion"]].map(lambda value: isinstance(value, str)).all(axis=None)
    if not is_text or not pd.api.types.is_integer_dtype(frame["sample"]):
        raise ValueError("prompt_id and completion are texts in a file of samples, and sample is a whole number")
    return frame
