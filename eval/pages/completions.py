"""Completions of the starting model and of the best variant, side by side."""

import logging

import numpy as np
import pandas as pd

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.pairs import verdicts
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.eval.samples.store import SAMPLES_FOLDER, SETTINGS_FILE, SampleStore
from trl_prorl.run.log_files import SIDES, read_json
from trl_prorl.text import code_span, cut, visible


logger = logging.getLogger(__name__)
PROMPTS = 6
MAX_CHARACTERS = 400  # of a text in a cell


def first_samples(run: RecordedRun, side: str) -> pd.DataFrame | None:
    """
    Return the first sample of each prompt by `base` or `trained`, by prompt; `None` if the samples behind
    `passk.json`, which add up to its counts, are not on disk, or cannot be read, which is said.
    """
    try:
        return _find_first_samples(run, side)
    except (ValueError, TypeError, KeyError) as error:  # files of anybody, of any columns
        logger.warning("%s: its samples cannot be shown: %s", visible(str(run.path)), visible(cut(str(error))))
        return None


def _find_first_samples(run: RecordedRun, side: str) -> pd.DataFrame | None:
    names = run.passk["prompt_ids"]
    n = run.passk["n"]
    for file in sorted((run.path / SAMPLES_FOLDER).glob(f"{side}-*/{SETTINGS_FILE}")):
        settings = read_json(file)
        samples = SampleStore(file.parents[1], side, settings).frame()
        samples = samples[samples["sample"] < n]
        counts = samples.groupby("prompt_id")["correct"].sum().reindex(names)
        same_temperature = settings.get("temperature") == run.passk["temperature"]
        if same_temperature and list(counts) == run.passk[side]["correct"]:
            return samples[samples["sample"] == 0].set_index("prompt_id").loc[names]
    return None


def _text(text: str) -> str:
    """Return text as inline code, which shows it unchanged; long text is truncated."""
    text = visible(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …").strip()
    return code_span(text) if text else "(empty)"


def _verdict_cell(sample: pd.Series) -> str:
    return f"{'✓' if sample['correct'] else '✗'} {_text(sample['completion'])}"


COLUMNS = [
    Column("prompt", lambda row: _text(row[0]["prompt"])),
    Column("base", lambda row: _verdict_cell(row[0])),
    Column("trained", lambda row: _verdict_cell(row[1])),
]


def completions_table(run: RecordedRun) -> Table | None:
    """Return six prompts, evenly spaced over the evaluation, with the first sample of each side."""
    sides = [first_samples(run, side) for side in SIDES]
    if any(side is None for side in sides):
        return None
    places = np.unique(np.linspace(0, len(sides[0]) - 1, PROMPTS).astype(int))
    rows = [tuple(side.iloc[place] for side in sides) for place in places]
    notes = [
        f"First samples of `{run.name}` for {len(rows)} prompts, evenly spaced over the evaluation (not picked by "
        f"hand). ✓ correct, ✗ wrong. All samples are in `{SAMPLES_FOLDER}/`, as parquet."
    ]
    return table_of("Completions, base and trained", COLUMNS, rows, notes)


def section(frame: Frame) -> Section | None:
    for verdict in verdicts(frame):
        table = completions_table(verdict.best.evaluated[0])
        if table is not None:
            return Section(table.title, [table], open=True)
    return None
