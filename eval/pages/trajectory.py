"""pass@k over training with a fitted curve of constant rate: a table, sentences, and a plot."""

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.eval.analysis.trajectory import SaturationCheck
from trl_prorl.eval.pages.plotting import (
    DPI,
    OTHER_COLOUR,
    WIDE_TITLE_LETTERS,
    colour_of,
    run_label,
    save_figure,
    wrap,
)
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, Table, cell, interval_cell, table_of
from trl_prorl.eval.run_folder.run import RecordedRun


def _ends_cell(check: SaturationCheck) -> str:
    first, last = check.points["value"].iloc[[0, -1]]
    return f"{first:.3f} → {last:.3f}"


def _halving_cell(check: SaturationCheck) -> str:
    halving = check.fit.halving_steps
    return cell(halving, ".0f") if math.isfinite(halving) else NOT_MEASURED


COLUMNS = [
    Column("run", lambda row: run_label(row[0])),
    Column("k", lambda row: str(row[1].k)),
    Column("base → last", lambda row: _ends_cell(row[1])),
    Column("1000 alpha", lambda row: interval_cell(Estimate(*(1000 * part for part in row[1].alpha)), ".2f")),
    Column("halves in", lambda row: _halving_cell(row[1])),
    Column("chi²/df", lambda row: f"{row[1].fit.reduced_chi2:.2f}, p {row[1].p_value:.2g}"),
    Column("holds?", lambda row: "yes" if row[1].holds else "no"),
]


def trajectory_table(checks: list[tuple[RecordedRun, SaturationCheck]]) -> Table:
    """Return a row per run and k: first and last value, the rate, and whether the curve fits."""
    notes = [
        "Fit: pass@k = 1 - (1 - p0) e^(-alpha t), t in optimizer steps, p0 measured on the starting model. halves in: "
        "steps in which 1 - pass@k halves. 95 % intervals and p come from resampled prompts; p is at least "
        "1/(resamples + 1). holds: no significant deviation from the curve (p > 0.05)."
    ]
    return table_of("pass@k over training", COLUMNS, checks, notes)


def trajectory_statements(run: RecordedRun, check: SaturationCheck) -> list[str]:
    """Return whether the curve fits this run and k, and the precision of a checkpoint."""
    steps = check.fit.steps
    residuals = check.fit.residuals
    errors = check.fit.errors
    worst = int(np.argmax(np.abs(residuals / errors)))
    clearest = f"most significant residual {residuals[worst]:+.3f} at step {steps[worst]:.0f}"
    heading = f"`{run.name}`, pass@{check.k}: "
    if check.holds:
        body = (
            f"no significant deviation from a constant rate (p = {check.p_value:.2g}, {clearest}). The score of a "
            f"checkpoint has a 95 % margin of ±{1.96 * float(np.median(errors)):.3f}."
        )
    else:
        body = f"significant deviation from a constant rate (p = {check.p_value:.2g}, {clearest})."
    if check.alpha.low <= 0 <= check.alpha.high:
        body += " The rate is not significantly different from 0."
    return [heading + body]


def plot_trajectory(run: RecordedRun, checks: list[SaturationCheck], path: Path) -> None:
    """Write pass@k over steps with the fitted curve as a PNG; a column per k."""
    colour = colour_of(run)
    figure = Figure(figsize=(7 * len(checks), 5), dpi=DPI, layout="constrained")
    for axes, check in zip(figure.subplots(1, len(checks), squeeze=False).flat, checks, strict=True):
        points = check.points
        fit = check.fit
        spread = np.abs(points[["low", "high"]].to_numpy().T - points["value"].to_numpy())
        label = "measured, 95 % over prompts"
        axes.errorbar(points["step"], points["value"], spread, fmt="o", color=colour, capsize=3, label=label)
        dense = np.linspace(0, points["step"].iloc[-1], 200)
        label = f"1 − (1 − {fit.p0:.3f}) exp(−{fit.alpha:.2e} t)"
        axes.plot(dense, fit.curve(dense), color="#000000", linewidth=1.4, linestyle="--", label=label)
        axes.set(ylabel=f"held-out pass@{check.k}", xlabel="optimizer step", ylim=(0, 1.02))
        verdict = "no significant deviation" if check.holds else "significant deviation"
        axes.set_title(f"pass@{check.k}: {verdict} (p = {check.p_value:.2g})", fontsize=11)
        steps = run.reset_steps()
        if steps:
            across = axes.get_xaxis_transform()
            axes.vlines(steps, 0, 1, OTHER_COLOUR, linestyles=":", label="resets", transform=across, linewidth=0.9)
        axes.grid(alpha=0.2)
        axes.legend(loc="lower right", framealpha=0.9)
    title = f"{run_label(run)}: held-out pass@k over training (step 0: starting model)"
    figure.suptitle(wrap(title, WIDE_TITLE_LETTERS), fontsize=13)
    save_figure(figure, path)
