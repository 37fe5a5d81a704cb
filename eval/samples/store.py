"""
Samples on disk, so that nothing is sampled twice: `RUN/samples/<model>-<settings>.parquet`, a row each.

Samples are written batch by batch: a stopped evaluation continues, and one with more samples or prompts draws only the
missing ones.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from trl_prorl.run.files import json_sha256, replaced
from trl_prorl.text import visible


SAMPLES_FOLDER = "samples"  # in a run folder
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


class SampleStore:
    """
    The samples of one model with one setting, in a file of a run's samples.

    Args:
        run_dir (`Path`): The run folder.
        label (`str`): A readable name of the model.
        settings (`dict`): Everything that determines the samples except the prompts, as JSON values.
    """

    def __init__(self, run_dir: Path, label: str, settings: dict):
        self.file = run_dir / SAMPLES_FOLDER / f"{label}-{json_sha256(settings)[:12]}.parquet"

    def read(self) -> pd.DataFrame:
        """Return all samples, with the columns `COLUMNS`."""
        return pd.read_parquet(self.file) if self.file.is_file() else pd.DataFrame(columns=COLUMNS)

    def read_beside(self) -> pd.DataFrame:
        """
        Copy the samples of the same model with the same settings from a neighbouring run folder; return them. Anyone
        may have written them, so their verdicts do not count.
        """
        run_dir = self.file.parents[1].resolve()
        for file in sorted(run_dir.parent.glob(f"*/{SAMPLES_FOLDER}/{self.file.name}")):
            if file.parents[1] != run_dir:
                print(visible(f"{self.file}: the samples of {file.parents[1].name} are used."))
                self.write(pd.read_parquet(file).assign(grader=None))
                break
        return self.read()

    def write(self, frame: pd.DataFrame) -> None:
        """Replace all samples by these."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(self.file) as staging:
            frame.to_parquet(staging, index=False)
