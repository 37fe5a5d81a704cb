"""A row for each run of a demo, in 80 columns: reward, held-out scores, and KL to the starting model."""

from collections.abc import Callable
from pathlib import Path

from trl_prorl.eval.analysis.frame import Frame, Row
from trl_prorl.eval.analysis.passk import SIDES, largest_k, score
from trl_prorl.eval.analysis.stability import last_mean
from trl_prorl.eval.pages.drift import drift_series
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, Table, arrow_cell, cell, table_of
from trl_prorl.eval.run_folder.reading import load_run


def _measured(heading: str | Callable, text: Callable[[Row], str]) -> Column:
    """Return a column that appears if any run has its number."""
    return Column(heading, text, applies=lambda rows: any(text(row) != NOT_MEASURED for row in rows))


def _reward(row: Row) -> str:
    return cell(last_mean(row.run.measured("reward")), ".2f")


def _pass_at_1(row: Row) -> str:
    scores = [score(row.run, side, 1) for side in SIDES]
    return arrow_cell([one and one.value for one in scores], ".2f")


def _largest_k_heading(rows: list[Row]) -> str:
    sizes = {largest_k(row.run) for row in rows} - {None}
    return f"pass@{sizes.pop()}" if len(sizes) == 1 else "largest k"


def _at_largest_k(row: Row) -> str:
    k = largest_k(row.run)
    estimate = None if k is None else score(row.run, "trained", k)
    return cell(estimate and estimate.value, ".2f")


def _greedy(row: Row) -> str:
    trained = ((row.run.passk or {}).get("greedy") or {}).get("trained") or {}
    return cell(trained.get("accuracy"), ".2f")


def _drift(row: Row) -> str:
    distances = drift_series(row.run, "kl_to_base")
    return NOT_MEASURED if distances is None else cell(float(distances.iloc[-1]), ".3f")


COLUMNS = [
    Column("run", lambda row: row.run.name),
    Column("reward", _reward),
    _measured("pass@1", _pass_at_1),
    _measured(_largest_k_heading, _at_largest_k),
    _measured("greedy", _greedy),
    _measured("KL to base", _drift),
]
NOTE = (
    "reward: training reward, mean over the last 10 % of the steps. pass@k, greedy: held-out prompts; pass@1 as "
    "starting model → trained. KL to base: KL to the starting model on the policy's own samples, nats per token."
)


def summary_table(folders: list[Path]) -> Table:
    """
    Return a row for each run.

    Args:
        folders (`list[Path]`): The run folders.
    """
    rows = Frame([load_run(folder, name=folder.name) for folder in folders]).rows
    return table_of("Runs", COLUMNS, rows, [NOTE])
