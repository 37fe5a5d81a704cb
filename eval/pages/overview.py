"""The few numbers that fit a terminal of 80 columns."""

from trl_prorl.eval.analysis.cost import mean_step_seconds, reference_share, step_time_over_control
from trl_prorl.eval.analysis.passk import score
from trl_prorl.eval.pages.cells import cell, percent_cell, resets_cell, sides_cell
from trl_prorl.eval.pages.objective import objective_notes
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run


def overview_table(runs: list[Run]) -> Table:
    """Held-out pass@1 and cost, a row per run."""
    columns = [
        Column("arm", lambda run: f"{run.name} ({run.variant})" if run.variant not in run.name else run.name),
        Column(
            "pass@1, base → trained", lambda run: sides_cell(score(run, "base", 1), score(run, "trained", 1), ".2f")
        ),
        Column("resets", resets_cell),
        Column("ref calls", lambda run: cell(run.total("ref_forward_calls"), ",.0f")),
        Column("ref %", lambda run: percent_cell(reference_share(run), ".0f")),
        Column("s/step", lambda run: cell(mean_step_seconds(run), ".2f")),
        Column("/control", lambda run: cell(step_time_over_control(run, runs), ".2f")),
    ]
    return table_of("Held-out pass@1 [95 % over prompts] and cost", columns, runs, objective_notes(runs))
