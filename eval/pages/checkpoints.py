"""Held-out pass@k over checkpoints."""

from trl_prorl.eval.analysis.passk import checkpoint_curve, checkpoint_ks
from trl_prorl.eval.pages.cells import cell, interval_cell
from trl_prorl.eval.pages.curves import curves, draw_band, mark_events, marks_note, over_runs, with_band_note
from trl_prorl.eval.pages.document import Picture, Section
from trl_prorl.eval.pages.objective import objective_notes, with_objective
from trl_prorl.eval.pages.panels import Panel
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run


def checkpoint_panels(runs: list[Run]) -> list[Panel]:
    """pass@k over checkpoints, a panel per k."""
    shown = curves(runs)

    def panel(k):
        def draw(axes):
            for curve in shown:
                frames = [frame for run in curve.runs if (frame := checkpoint_curve(run, k)) is not None]
                if frames:
                    draw_band(axes, over_runs(frames), curve.label, curve.style)
            mark_events(axes, shown)
            axes.set(title=f"Held-out pass@{k}", xlabel="optimizer step (0: base)", ylabel=f"pass@{k}")
            axes.grid(alpha=0.2)

        return Panel(f"Held-out pass@{k} over optimizer steps, base at step 0", draw)

    return [panel(k) for k in checkpoint_ks(runs)]


def checkpoint_table(runs: list[Run]) -> Table | None:
    """The best and the last checkpoint of each run, per k; `None` without checkpoints."""

    def at(place):
        """The cell of one checkpoint, chosen among the trained ones."""

        def text(row):
            _, _, curve = row
            trained = curve.drop(index=0)
            step = place(trained)
            return f"at {step}: {interval_cell(trained.loc[step], '.3f')}"

        return text

    columns = [
        Column("arm", lambda row: row[0].name),
        Column("k", lambda row: str(row[1])),
        Column("base", lambda row: cell(row[2]["mean"][0], ".3f")),
        Column("best, at step …", at(lambda trained: trained["mean"].idxmax())),
        Column("last, at step …", at(lambda trained: trained.index[-1])),
    ]
    measured = [(run, k, checkpoint_curve(run, k)) for run in runs for k in checkpoint_ks(runs)]
    rows = [row for row in measured if row[2] is not None]
    if not rows:
        return None
    notes = [
        "Intervals are 95 % over prompts. The best of many checkpoints is chosen on the same prompts it is reported "
        "on, and so too high by chance."
    ]
    return table_of("Held-out pass@k over checkpoints", columns, rows, notes + objective_notes(runs))


def sections(runs: list[Run]) -> list[Section]:
    table = checkpoint_table(runs)
    if table is None:
        return []
    text = with_band_note(runs, f"Base at step 0. Bands of a single run: 95 % over prompts. {marks_note(runs)}")
    picture = Picture(
        "checkpoints.png", "Held-out pass@k over checkpoints", with_objective(runs, text), checkpoint_panels(runs)
    )
    return [Section(table.title, [picture, table])]
