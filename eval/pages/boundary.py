"""Newly solved and lost prompts: one run with its plot, and all runs in a table."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from trl_prorl.eval.analysis.boundary import Boundary, PromptChange, boundary
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS, NO_INTERVAL_NOTE
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.plotting import DPI, OTHER_COLOUR, WIDE_TITLE_LETTERS, save_figure, wrap
from trl_prorl.eval.pages.table import Column, Table, interval_cell, table_of


MAX_LISTED = 12  # prompts in one line


K_COLUMNS = [
    Column("k", lambda row: str(row.k)),
    Column("base", lambda row: interval_cell(row.base, ".3f")),
    Column("trained", lambda row: interval_cell(row.trained, ".3f")),
    Column("gain", lambda row: interval_cell(row.gain, "+.3f")),
]


def boundary_table(result: Boundary, title: str = "pass@k") -> Table:
    """Return pass@k of both sides, a row per k."""
    notes = ["Brackets: 95 % bootstrap intervals over prompts."]
    if result.prompts < MIN_PROMPTS:
        notes.append(NO_INTERVAL_NOTE)
    return table_of(title, K_COLUMNS, result.rows, notes)


def boundary_statements(result: Boundary) -> list[str]:
    """Return the counts of newly solved and lost prompts with their tests, and the smallest detectable change."""
    test = result.solved_at_all
    lines = [
        f"{result.prompts} prompts × {result.n} samples: {_count(result.newly_solved, 'newly solved')}, "
        f"{_count(result.lost, 'lost')}, {result.both} solved by both models, {result.neither} by neither. Newly "
        f"solved against lost: p = {test.p_value:.2g} (exact McNemar test; sampling noise changes prompts in both "
        "directions)."
    ]
    for name, changes in (("Newly solved", result.newly_solved), ("Lost", result.lost)):
        if changes:
            lines.append(f"{name} (prompt number: correct of {result.n}, base → trained): {_listed(changes)}.")
    if result.newly_solved or result.lost:
        lines.append(
            f"* significant: Fisher's exact test per prompt, Holm-corrected over {result.prompts} prompts, p ≤ 0.05."
        )
    limit = f"0 of {result.n} correct rules out only success rates above {result.rate_limit:.3f} (95 %)."
    if result.separable_from:
        limit += f" A change from 0 needs up to {result.separable_from} of {result.n} correct to be significant."
    else:
        limit += f" Not even a change from 0 to {result.n} of {result.n} is significant: draw more samples per prompt."
    return [*lines, limit]


def _count(changes: list[PromptChange], what: str) -> str:
    """Return the number of changes, and how many are significant: `14 newly solved (0 significantly)`."""
    significantly = f" ({sum(change.separated for change in changes)} significantly)" if changes else ""
    return f"{len(changes)} {what}{significantly}"


def _listed(changes: list[PromptChange]) -> str:
    """Return the clearest changes first, with a star at significant ones."""
    ranked = sorted(changes, key=lambda change: (change.p_value, -abs(change.trained - change.base), change.prompt))
    listed = []
    for change in ranked[:MAX_LISTED]:
        star = "*" if change.separated else ""
        listed.append(f"#{change.prompt}: {change.base} → {change.trained}{star}")
    if len(changes) > MAX_LISTED:
        listed.append(f"and {len(changes) - MAX_LISTED} more")
    return ", ".join(listed)


def plot_boundary(result: Boundary, path: Path, title: str = "", trained_colour: str = OTHER_COLOUR) -> None:
    """Write pass@k of both sides against k, with bands over prompts, as a PNG."""
    figure = Figure(figsize=(8, 6.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    ks = [row.k for row in result.rows]
    base_colour = "#000000" if trained_colour != "#000000" else OTHER_COLOUR
    for name, colour, marker, line in (
        ("starting model", base_colour, "o", "--"),
        ("trained", trained_colour, "s", "-"),
    ):
        points = [row.trained if name == "trained" else row.base for row in result.rows]
        lows = [point.low for point in points]
        highs = [point.high for point in points]
        values = [point.value for point in points]
        axes.fill_between(ks, lows, highs, color=colour, alpha=0.15, lw=0)
        axes.plot(ks, values, line, color=colour, marker=marker, linewidth=1.8, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, list(map(str, ks)), minor=False)
    axes.xaxis.set_minor_locator(NullLocator())
    labels = {"title": "bands: 95 % over prompts", "xlabel": "k (samples per prompt)", "ylabel": "held-out pass@k"}
    axes.set(**labels, ylim=(0, 1.02))
    axes.grid(alpha=0.2)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(wrap(title, WIDE_TITLE_LETTERS), fontsize=13)
    save_figure(figure, path)


def _changes_cell(changes: list[PromptChange]) -> str:
    return f"{len(changes)} ({sum(change.separated for change in changes)})"


RUN_COLUMNS = [
    Column("run", lambda row: row[0].name),
    Column("prompts × samples", lambda row: f"{row[1].prompts} × {row[1].n}"),
    Column("newly solved", lambda row: _changes_cell(row[1].newly_solved)),
    Column("lost", lambda row: _changes_cell(row[1].lost)),
    Column("both", lambda row: str(row[1].both)),
    Column("neither", lambda row: str(row[1].neither)),
    Column("p", lambda row: f"{row[1].solved_at_all.p_value:.2g}"),
    Column("rate not excluded", lambda row: f"{row[1].rate_limit:.3f}"),
]


def runs_table(frame: Frame) -> Table | None:
    """Return the prompts newly solved and lost by each run against its base; `None` if no run was evaluated."""
    rows = [(run, boundary(run.passk)) for run in frame.runs if run.passk]
    if not rows:
        return None
    notes = [
        "Newly solved: no correct base sample, some correct trained samples. Lost: the reverse. In parentheses: "
        "significant changes (Fisher's exact test per prompt, Holm-corrected over the prompts of the run, 5 %). p: "
        "exact McNemar test of newly solved against lost. Rate not excluded: no correct sample rules out only higher "
        "success rates (95 %). List the prompts with `trl-prorl boundary --run …`."
    ]
    return table_of("Newly solved and lost prompts", RUN_COLUMNS, rows, notes)


def sections(frame: Frame) -> list[Section]:
    table = runs_table(frame)
    return [Section(table.title, [table])] if table else []
