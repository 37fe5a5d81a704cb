"""pass@k against k, base and trained, and what decoding was like."""

from trl_prorl.eval.analysis.passk import draw_sizes, k_curve
from trl_prorl.eval.pages.cells import NOT_MEASURED, arrow_cell
from trl_prorl.eval.pages.curves import MOST_CURVES, Curve, curves, draw_band, over_runs
from trl_prorl.eval.pages.document import Picture, Section
from trl_prorl.eval.pages.objective import objective_notes, with_objective
from trl_prorl.eval.pages.panels import Panel
from trl_prorl.eval.pages.sheets import sheets
from trl_prorl.eval.pages.table import Column, Table, table_of
from trl_prorl.eval.run_folder.run import Run


BASE_STYLE = {"marker": "s", "color": "#7F7F7F", "linestyle": ":"}


def k_panels(runs: list[Run]) -> list[Panel]:
    """A panel per curve, base against trained over k, or of more than 10 the trained ones as they share axes."""
    evaluated = [
        Curve([run for run in curve.runs if run.passk], curve.label, curve.style)
        for curve in curves(runs)
        if any(run.passk for run in curve.runs)
    ]

    def panel(curve):
        def draw(axes):
            for side, style in (("base", BASE_STYLE), ("trained", curve.style)):
                frames = [k_curve(run, side, interval=len(curve.runs) == 1) for run in curve.runs]
                draw_band(axes, over_runs(frames), side, style)
            ks = draw_sizes(max(run.passk["n"] for run in curve.runs))
            axes.set_xscale("log", base=2)
            axes.set_xticks(ks, list(map(str, ks)))
            axes.set(title=curve.label, xlabel="k (samples drawn)", ylabel="held-out pass@k", ylim=(0, 1.02))
            axes.grid(alpha=0.2)

        return Panel(f"Held-out pass@k against k of {curve.label}, base and trained", draw)

    def together(sheet):
        """Of many curves the trained ones alone."""

        def draw(axes):
            for curve in sheet.curves:
                draw_band(axes, over_runs([k_curve(run, "trained") for run in curve.runs]), curve.label, curve.style)
            ks = draw_sizes(max(run.passk["n"] for curve in sheet.curves for run in curve.runs))
            axes.set_xscale("log", base=2)
            axes.set_xticks(ks, list(map(str, ks)))
            axes.set(
                title=sheet.titled("trained"), xlabel="k (samples drawn)", ylabel="held-out pass@k", ylim=(0, 1.02)
            )
            axes.grid(alpha=0.2)

        return Panel(sheet.titled("held-out pass@k against k, trained"), draw)

    if len(evaluated) > MOST_CURVES:
        return [together(sheet) for sheet in sheets(evaluated)]
    return [panel(curve) for curve in evaluated]


def _greedy(run: Run) -> list[float | None]:
    greedy = (run.passk or {}).get("greedy") or {}
    return [(greedy.get(side) or {}).get("accuracy") for side in ("base", "trained")]


def _sides(run: Run, key: str) -> list[float | None]:
    return [(run.passk or {}).get(side, {}).get(key) for side in ("base", "trained")]


DECODING_COLUMNS = [
    Column("arm", lambda run: run.name),
    Column("greedy accuracy", lambda run: arrow_cell(_greedy(run), ".3f")),
    Column("mean tokens of a sample", lambda run: arrow_cell(_sides(run, "mean_tokens"), ".1f")),
    Column("samples cut off", lambda run: arrow_cell(_sides(run, "truncated"), ".3f")),
]


def decoding_table(runs: list[Run]) -> Table | None:
    """Greedy accuracy, length and truncation, base against trained; `None` if none was recorded."""
    recorded = [run for run in runs if any(column.cell(run) != NOT_MEASURED for column in DECODING_COLUMNS[1:])]
    if not recorded:
        return None
    notes = ["Base → trained, on the held-out prompts; cut off means that a sample reached the length limit."]
    return table_of("Greedy decoding and length", DECODING_COLUMNS, recorded, notes + objective_notes(runs))


def sections(runs: list[Run]) -> list[Section]:
    panels, decoding = k_panels(runs), decoding_table(runs)
    if not panels:
        return []
    text = (
        "Dotted: base, where curves are few; strong: trained. From the counts of correct samples, k on a base-2 axis. "
        "Bands: 95 % over prompts for a single run, lowest to highest seed where there are several."
    )
    picture = Picture("passk.png", "Held-out pass@k against k", with_objective(runs, text), panels, 3)
    found = [Section("pass@k against k", [picture])]
    return [*found, Section(decoding.title, [decoding])] if decoding else found
