"""pass@k: over checkpoints, against k, per task, on other tasks; and the tables of one evaluation on a terminal."""

from functools import partial
from pathlib import Path

import numpy as np

from trl_prorl.eval.analysis.fitted_rate import ConstantRate, rates
from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.sampled_scores import (
    checkpoint_curve,
    checkpoint_ks,
    ends,
    gain,
    k_curve,
    pass_k_values,
    summary_score,
)
from trl_prorl.eval.analysis.statistics import Estimate, mcnemar_p_value, pass_at_k_bound
from trl_prorl.eval.pages.page import Section
from trl_prorl.eval.pages.plotting import (
    CAPTION,
    TRAINED_COLOUR,
    Panel,
    draw_points,
    label_axes,
    label_steps,
    sheets,
    steps_panel,
    style_of,
    write_png,
)
from trl_prorl.eval.pages.table import Column, Table, interval_cell, table_of
from trl_prorl.eval.run_folder.run import UNKNOWN_COLOUR
from trl_prorl.run.log_files import SIDES, training_note


BASE_STYLE = {"marker": "s", "color": UNKNOWN_COLOUR, "linestyle": ":"}
TRAINED_STYLE = {"color": TRAINED_COLOUR}
RATE_NOTE = (
    "Fit: pass@k = 1 - (1 - p0) e^(-alpha t), t in optimizer steps, p0 measured on the starting model. 95 % intervals "
    "and p come from resampled prompts. The curve holds if p > 0.05: no significant deviation."
)


def draw_checkpoints(axes, groups: list[RunGroup], k: int) -> None:
    """Draw pass@k over the checkpoints of each variant that has some."""
    for group in groups:
        curves = [checkpoint_curve(run.passk, k) for run in group.runs]
        curves = [curve for curve in curves if curve is not None]
        if curves:
            draw_points(axes, curves, group.legend, style_of(group))


RATE_COLUMNS = [
    Column("run", lambda row: row[0]),
    Column("k", lambda row: str(row[1].k)),
    Column("base → last", lambda row: f"{row[1].p0:.3f} → {row[1].last:.3f}"),
    Column("1000 alpha", lambda row: interval_cell(Estimate(*(1000 * part for part in row[1].alpha)), ".2f")),
    Column("p", lambda row: f"{row[1].p_value:.2g}"),
]


def rate_table(rows: list[tuple[str, ConstantRate]]) -> Table:
    """Return a row per run, by its name, and k: first and last value, the rate, and whether the curve fits."""
    return table_of("Does 1 - pass@k shrink at a constant rate?", RATE_COLUMNS, rows, [RATE_NOTE])


def checkpoints(frame: Frame) -> Section | None:
    """Return pass@k over checkpoints with the fitted rate; `None` without checkpoints."""
    ks = checkpoint_ks(frame.runs)
    if not ks:
        return None
    panels = [steps_panel(f"Held-out pass@{k}", frame.groups, partial(draw_checkpoints, k=k), f"pass@{k}") for k in ks]
    rated = [(run.name, rate) for run in frame.runs if run.passk for rate in rates(run.passk)]
    text = (
        "Starting model at step 0. Bands of a single run: 95 % over prompts. A checkpoint that is chosen on these "
        f"prompts has a score that is biased upwards. {CAPTION}"
    )
    return Section("Held-out pass@k over checkpoints", panels, text, [rate_table(rated)] if rated else [])


def draw_against_k(axes, groups: list[RunGroup], title: str) -> None:
    """Draw pass@k over k: the starting model (all runs), and the trained models by variant."""
    runs = [run for group in groups for run in group.evaluated]
    draw_points(axes, [k_curve(run.passk, "base") for run in runs], "starting model", BASE_STYLE)
    for group in groups:
        curves = [k_curve(run.passk, "trained") for run in group.evaluated]
        draw_points(axes, curves, group.legend, style_of(group))
    label_k(axes, max(run.passk["n"] for run in runs), title)


def label_k(axes, n: int, title: str) -> None:
    """Set up axes of pass@k over k, up to n."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(pass_k_values(n), pass_k_values(n))
    label_axes(axes, title, "k (samples per prompt)", "held-out pass@k", ylim=(0, 1.02))


def against_k(frame: Frame) -> Section | None:
    """Return pass@k over k, a panel for variants that share axes; `None` if no run was evaluated."""
    panels = []
    for beginning, groups in sheets(frame):
        evaluated = [group for group in groups if group.evaluated]
        if evaluated:
            title = f"{beginning}Held-out pass@k"
            draw = partial(draw_against_k, groups=evaluated, title=title)
            panels.append(Panel(f"{title} against k: starting model and trained", draw))
    text = (
        "Dotted: starting model, over all runs. Bands: 95 % intervals over prompts for a single run, lowest to "
        "highest run if there are several. Log-2 axis for k."
    )
    return Section("pass@k against k", panels, text) if panels else None


def side_by_side(title: str, what: str, rows: list[tuple[str, list[Estimate], Estimate]]) -> Table:
    """Return a table of base, trained and gain, each with its interval."""
    cells = [
        [name, *(interval_cell(side, ".3f") for side in sides), interval_cell(change, "+.3f")]
        for name, sides, change in rows
    ]
    return Table(title, [what, *SIDES, "gain"], cells)


def row_of(name: str, result: dict, k: int = 1) -> tuple[str, list[Estimate], Estimate]:
    return name, [summary_score(result[side], k) for side in SIDES], gain(result, k)


def part_rows(result: dict) -> list[tuple]:
    """Return pass@1 for every task and level of the prompts, and on tasks that were not trained."""
    rows = []
    for part in result.get("by", []):
        level = "" if part["level"] is None else f"@{part['level']}"
        rows.append(row_of(f"{part['task']}{level}", {**part, "n": result["n"]}))
    return rows + [row_of(f"{name}, not trained", other) for name, other in result.get("others", {}).items()]


def by_task(frame: Frame) -> Section | None:
    """Return scores per task and level, and on tasks that were not trained: forgetting. `None` without either."""
    rows = []
    for run in frame.runs:
        rows += [(f"{run.name}: {name}", *scores) for name, *scores in (part_rows(run.passk) if run.passk else [])]
    title = "Per task, and forgetting"
    return Section(title, tables=[side_by_side(f"{title}: pass@1", "run: task", rows)]) if rows else None


def result_tables(run_dir: Path, result: dict, fitted: list[ConstantRate]) -> list[Table]:
    """Return the tables of one evaluation: a row per k and one for greedy decoding; tasks; checkpoints; the fit."""
    title = (
        f"{run_dir}: {result['task']}, {result['split']} split{training_note(result)}, {result['prompts']} prompts × "
        f"{result['n']} samples, temperature {result['temperature']:g}"
    )
    rows = [row_of(f"pass@{k}", result, k) for k in result["k"]]
    greedy = result.get("greedy")
    if greedy:
        sides = [Estimate(greedy[side]["accuracy"], *greedy[side]["interval"]) for side in SIDES]
        rows.append(("greedy", sides, Estimate(*greedy["gain"])))
    tables = [side_by_side(title, "outcome", rows)]
    if part_rows(result):
        tables.append(side_by_side("pass@1 by task", "task", part_rows(result)))
    if "checkpoints" in result:
        columns = [Column("step", lambda point: str(point["step"]))]
        for k in result["k"]:
            columns.append(Column(f"pass@{k}", lambda point, k=k: interval_cell(summary_score(point, k), ".3f")))
        points = [{"step": 0, **result["base"]}, *result["checkpoints"]]
        tables.append(table_of("pass@k over training (step 0: starting model)", columns, points))
    if fitted:
        tables.append(rate_table([(run_dir.name, rate) for rate in fitted]))
    return tables


def result_notes(result: dict) -> list[str]:
    """Return how many prompts are newly solved or lost, and the estimated bound of pass@k at the largest k above 2."""
    base, trained = (np.array(result[side]["correct"]) for side in SIDES)
    newly, lost = ((base == 0) & (trained > 0)).sum(), ((base > 0) & (trained == 0)).sum()
    p_value = mcnemar_p_value(trained > 0, base > 0)
    lines = [
        f"{newly} prompts newly solved (no correct base sample, some trained ones), {lost} lost (the reverse); "
        f"p = {p_value:.2g} (exact McNemar test; sampling noise changes prompts in both directions)."
    ]
    k = max(result["k"])
    if k > 2:  # there it is pass@k itself
        bounds = [f"{side} {pass_at_k_bound(result[side]['correct'], result['n'], k):.3f}" for side in SIDES]
        lines.append(
            f"Bound of pass@{k} by mean and variance of pass@1 (Jensen), estimated: {', '.join(bounds)}. The measured "
            "value can be higher."
        )
    return lines


def draw_boundary(axes, result: dict) -> None:
    """Draw pass@k of both sides of one evaluation over k, with their estimated bounds."""
    for side, name, style in (("base", "starting model", BASE_STYLE), ("trained", "trained", TRAINED_STYLE)):
        draw_points(axes, [k_curve(result, side)], name, style)
        bounds = [pass_at_k_bound(result[side]["correct"], result["n"], k) for k in result["k"]]
        axes.plot(result["k"], bounds, "--", color=style["color"], linewidth=1, label=f"{side}: estimated bound")
    label_k(axes, result["n"], "Bands: 95 % over prompts")


def draw_trajectory(axes, result: dict, k: int, fitted: list[ConstantRate]) -> None:
    """Draw pass@k of one evaluation over training, with its fit if there is one for this k."""
    points = checkpoint_curve(result, k)
    draw_points(axes, [points], "measured, 95 % over prompts", TRAINED_STYLE)
    for rate in fitted:
        if rate.k == k:
            steps = np.linspace(0, points.index[-1], 200)
            label = f"1 − (1 − {rate.p0:.3f}) exp(−{rate.alpha.value:.2e} t)"
            axes.plot(steps, rate.curve(steps), "--", color=UNKNOWN_COLOUR, label=label)
    label_steps(axes, f"Held-out pass@{k}", f"pass@{k}", ylim=(0, 1.02))


def write_picture(run_dir: Path, result: dict, fitted: list[ConstantRate]) -> Path:
    """Write pass@k against k, and over the checkpoints if there are some; return the file."""
    panels = [Panel("Held-out pass@k against k", partial(draw_boundary, result=result))]
    for k in ends(result["k"]) if "checkpoints" in result else []:
        draw = partial(draw_trajectory, result=result, k=k, fitted=fitted)
        panels.append(Panel(f"Held-out pass@{k} over steps", draw))
    return write_png(panels, run_dir / "passk.png")
