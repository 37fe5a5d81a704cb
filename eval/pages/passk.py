"""The result of an evaluation on a terminal: pass@k of one run, base against trained."""

from collections.abc import Sequence
from pathlib import Path

from trl_prorl.eval.analysis.passk import SIDES, gain, summary_score
from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.eval.pages.cells import interval_cell
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.shown import visible


def _row(name: str, result: dict, k: int, digits: int = 3) -> list[str]:
    """Name, base, trained and gain at one k."""
    sides = [interval_cell(summary_score(result[side], k), f".{digits}f") for side in SIDES]
    return [name, *sides, interval_cell(gain(result, k), f"+.{digits}f")]


def _greedy_row(greedy: dict) -> list[str]:
    sides = [interval_cell(Estimate(greedy[side]["accuracy"], *greedy[side]["interval"]), ".3f") for side in SIDES]
    return ["greedy", *sides, interval_cell(Estimate(*greedy["gain"]), "+.3f")]


def _side_by_side(what: str, title: str, rows: Sequence[list[str]]) -> Table:
    return Table(title, [what, *SIDES, "gain"], list(rows))


def result_table(run_dir: Path, result: dict) -> Table:
    """Base against trained, a row per k, with 95 % bootstrap intervals over prompts."""
    title = (
        f"pass@k of {run_dir}: {result['task']}, {result['split']} split, {result['prompts']} prompts, n = "
        f"{result['n']}, temperature {result['temperature']:g}"
    )
    rows = [_row(str(k), result, k) for k in result["k"]]
    return _side_by_side("k", title, [*rows, _greedy_row(result["greedy"])] if "greedy" in result else rows)


def parts_table(result: dict) -> Table | None:
    """
    The smallest k of every task and level among the prompts, and of the tasks that were not trained; `None` if
    neither.
    """
    k = result["k"][0]
    rows = [
        _row(visible(f"{part['task']}@{part['level']}"), {**part, "n": result["n"]}, k, digits=2)
        for part in result.get("by", [])
    ]
    for name, other in result.get("others", {}).items():
        rows.append(_row(f"{visible(name)},\nnot trained", other, k, digits=2))
    return _side_by_side("task", f"pass@{k} by task", rows) if rows else None


def checkpoint_table(result: dict) -> Table:
    """pass@k of base and every checkpoint, a row each."""
    columns = [
        Column("step", lambda point: str(point["step"])),
        *(Column(f"pass@{k}", lambda point, k=k: interval_cell(summary_score(point, k), ".3f")) for k in result["k"]),
        Column("tokens", lambda point: f"{point['mean_tokens']:.0f}"),
    ]
    return table_of("pass@k over training steps", columns, [{"step": 0, **result["base"]}, *result["checkpoints"]])
