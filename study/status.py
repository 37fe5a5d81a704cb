"""How far the study is, `make study-status`, and how long the rest takes, by the runs that are finished."""

from collections.abc import Iterable

import pandas as pd

from study.matrix import Matrix, RunKey
from study.tables import FOLDER, Tables


def seconds_left(waiting: Iterable[RunKey], finished: pd.DataFrame, jobs: int) -> float | None:
    """
    Seconds until these runs are finished, `jobs` at a time; `None` before the first one is. A run takes as long as
    those of its family and steps; else of its family, by the step; else of all, by the step.
    """
    rates = finished["seconds"] / finished.index.get_level_values("steps")
    alike, kin = (rates.groupby(level=names).mean() for names in (["family", "steps"], "family"))
    times = [key.steps * alike.get((key.family, key.steps), kin.get(key.family, rates.mean())) for key in waiting]
    return None if times and rates.empty else sum(times) / jobs


def clock(seconds: float | None) -> str:
    """`2 h 05 min`, `7 min`, `under a minute`, or that nothing is known."""
    if seconds is None:
        return "unknown before the first run is finished"
    minutes = round(seconds / 60)
    if minutes < 1:
        return "under a minute"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def progress(matrix: Matrix, tables: Tables, jobs: int) -> str:
    """How many runs are finished, and what is left; a run of two blocks counts once."""
    total, missing = len(matrix.runs), [run.key for run in matrix.runs if run.key not in tables.runs.index]
    left = clock(seconds_left(missing, tables.runs, jobs)) if missing else "nothing"
    return f"{total - len(missing)} of {total} runs are in {FOLDER}; {jobs} at a time, left: {left}"


def status(matrix: Matrix, tables: Tables) -> str:
    """A row for each arm of a block: finished of all runs, by family, and how many collapsed."""
    runs = pd.DataFrame([{**run.key._asdict(), "block": block.name} for block in matrix.blocks for run in block.runs])
    collapsed = tables.runs["collapsed"].reindex(pd.MultiIndex.from_frame(runs[list(RunKey._fields)])).to_numpy()
    cells = runs.assign(done=pd.notna(collapsed), collapsed=collapsed).groupby(["block", "arm", "family"], sort=False)
    counts = cells["done"].sum().astype(str) + "/" + cells.size().astype(str)
    table = counts.unstack("family", fill_value="")[list(dict.fromkeys(runs["family"]))]
    table["collapsed"] = cells["collapsed"].sum().groupby(level=["block", "arm"]).sum().astype(int)
    order = dict.fromkeys(zip(runs["block"], runs["arm"], strict=True))
    return table.reindex(list(order)).to_string()
