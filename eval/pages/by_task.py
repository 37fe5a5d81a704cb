"""pass@k of every task and level, and on tasks that were not trained."""

import math

from trl_prorl.eval.analysis.passk import gain, largest_k, per_prompt, summary_score
from trl_prorl.eval.pages.cells import NOT_MEASURED, interval_cell, sides_cell
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.objective import objective_notes
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run


PART_COLUMNS = [
    Column("arm", lambda row: row[0].name),
    Column("task", lambda row: str(row[1]["task"])),
    Column("level", lambda row: str(row[1]["level"])),
    Column("prompts", lambda row: str(row[1]["prompts"])),
]


def _part_cell(part: dict, k: int) -> str:
    return sides_cell(*(summary_score(part[side], k) for side in ("base", "trained")), ".3f")


def tasks_table(runs: list[Run]) -> Table | None:
    """Held-out pass@1 and pass@k per task and level, a row each per run; `None` where prompts are of one kind."""
    rows = [(run, part) for run in runs for part in (run.passk or {}).get("by") or []]
    if not rows:
        return None
    columns = [
        *PART_COLUMNS,
        Column("pass@1, base → trained [95 %]", lambda row: _part_cell(row[1], 1)),
        Column(
            "pass at the largest k, base → trained [95 %]",
            lambda row: _part_cell(row[1], largest_k(row[0])) if largest_k(row[0]) > 1 else NOT_MEASURED,
            shown=lambda rows: any(largest_k(run) > 1 for run, _ in rows),
        ),
    ]
    notes = ["The prompts of each task and level alone; intervals over prompts."]
    return table_of("Per task and level", columns, rows, notes + objective_notes(runs))


def _finding(row) -> str:
    change = gain(row[1], 1)
    if math.isnan(change.low):
        return NOT_MEASURED
    return "worse" if change.high < 0 else "better" if change.low > 0 else "no change found"


FORGETTING_COLUMNS = [
    *PART_COLUMNS,
    Column(
        "pass@1, base → trained",
        lambda row: " → ".join(f"{per_prompt(row[1], side).mean():.3f}" for side in ("base", "trained")),
    ),
    Column("change [95 %]", lambda row: interval_cell(gain(row[1], 1), "+.3f")),
    Column("so", _finding),
]


def forgetting_table(runs: list[Run]) -> Table | None:
    """Tasks that were not trained: base against trained, paired over prompts; `None` if none was evaluated."""
    rows = [(run, other) for run in runs for other in ((run.passk or {}).get("others") or {}).values()]
    if not rows:
        return None
    notes = ["The change is paired over prompts; better or worse where its interval leaves 0 out."]
    return table_of("Tasks that were not trained", FORGETTING_COLUMNS, rows, notes + objective_notes(runs))


def sections(runs: list[Run]) -> list[Section]:
    return [Section(table.title, [table]) for table in (tasks_table(runs), forgetting_table(runs)) if table]
