"""pass@k: over checkpoints, against k, per task, on other tasks; and the tables of one evaluation on a terminal."""

import math
from collections.abc import Sequence
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
    per_prompt,
    summary_score,
)
from trl_prorl.eval.analysis.statistics import Estimate, pass_at_k_bound
from trl_prorl.eval.pages.document import Section, table_section
from trl_prorl.eval.pages.plotting import (
    TRAINED_COLOUR,
    Panel,
    Picture,
    caption,
    draw_points,
    label_axes,
    label_steps,
    sheets,
    steps_panel,
    style_of,
)
from trl_prorl.eval.pages.table import Column, Table, cell, interval_cell, sides_cell, table_of
from trl_prorl.eval.run_folder.run import UNKNOWN_COLOUR
from trl_prorl.run.log_files import SIDES, training_note
from trl_prorl.text import visible


BASE_STYLE = {"marker": "s", "color": UNKNOWN_COLOUR, "linestyle": ":"}
TRAINED_STYLE = {"color": TRAINED_COLOUR}
LABEL_SHARE = 0.09  # of the width of the axes, for a label


def draw_checkpoints(axes, groups: list[RunGroup], k: int) -> None:
    """Draw pass@k over the checkpoints of each variant that has some."""
    for group in groups:
        curves = [checkpoint_curve(run.passk, k) for run in group.runs]
        curves = [curve for curve in curves if curve is not None]
        if curves:
            draw_points(axes, curves, group.legend, style_of(group))


def _at(place):
    """Return a function that makes the cell of one checkpoint, chosen by `place`."""

    def text(row):
        trained = row[2].drop(index=0)
        step = place(trained)
        return f"at {step}: {interval_cell(trained.loc[step], '.3f')}"

    return text


CHECKPOINT_COLUMNS = [
    Column("run", lambda row: row[0].name),
    Column("k", lambda row: str(row[1])),
    Column("base", lambda row: cell(row[2]["mean"][0], ".3f")),
    Column("best, at step …", _at(lambda trained: trained["mean"].idxmax())),
    Column("last, at step …", _at(lambda trained: trained.index[-1])),
]


RATE_COLUMNS = [
    Column("run", lambda row: row[0]),
    Column("k", lambda row: str(row[1].k)),
    Column("base → last", lambda row: f"{row[1].p0:.3f} → {row[1].last:.3f}"),
    Column("1000 alpha", lambda row: interval_cell(Estimate(*(1000 * part for part in row[1].alpha)), ".2f")),
    Column("p", lambda row: f"{row[1].p_value:.2g}"),
    Column("holds?", lambda row: "yes" if row[1].holds else "no"),
]


def rate_table(rows: list[tuple[str, ConstantRate]]) -> Table:
    """Return a row per run, by its name, and k: first and last value, the rate, and whether the curve fits."""
    notes = [
        "Fit: pass@k = 1 - (1 - p0) e^(-alpha t), t in optimizer steps, p0 measured on the starting model. 95 % "
        "intervals and p come from resampled prompts. holds: no significant deviation from the curve (p > 0.05)."
    ]
    return table_of("Does 1 - pass@k shrink at a constant rate?", RATE_COLUMNS, rows, notes)


def draw_against_k(axes, groups: list[RunGroup], title: str) -> None:
    """Draw pass@k over k: the starting model (all runs), and the trained models by variant."""
    runs = [run for group in groups for run in group.evaluated]
    draw_points(axes, [k_curve(run.passk, "base") for run in runs], "starting model", BASE_STYLE)
    for group in groups:
        curves = [k_curve(run.passk, "trained") for run in group.evaluated]
        draw_points(axes, curves, group.evaluated_legend, style_of(group))
    label_k(axes, max(run.passk["n"] for run in runs), title)


def label_k(axes, n: int, title: str) -> None:
    """Set up axes of pass@k over k, up to n. A k that is too close to n has a tick without a label."""
    ks = pass_k_values(n)
    axes.set_xscale("log", base=2)
    labels = [str(k) if k == n or math.log(n / k) > LABEL_SHARE * math.log(n) else "" for k in ks]
    axes.set_xticks(ks, labels)
    label_axes(axes, title, "k (samples per prompt)", "held-out pass@k", ylim=(0, 1.02))


PART_COLUMNS = [
    Column("run", lambda row: row[0].name),
    Column("task", lambda row: str(row[1]["task"])),
    Column("level", lambda row: "" if row[1]["level"] is None else str(row[1]["level"])),
    Column("prompts", lambda row: str(row[1]["prompts"])),
]


SIDES_COLUMN = Column(
    "pass@1, base → trained [95 %]",
    lambda row: sides_cell(*(summary_score(row[1][side], 1) for side in SIDES), ".3f"),
)


def by_task(frame: Frame) -> Section | None:
    """Return held-out pass@1 per task and level, a row each per run; `None` if there is only one."""
    rows = [(run, part) for run in frame.runs for part in (run.passk or {}).get("by", [])]
    notes = ["95 % intervals over the prompts of each task and level."]
    return table_section(table_of("Per task and level", [*PART_COLUMNS, SIDES_COLUMN], rows, notes))


FORGETTING_COLUMNS = [
    *PART_COLUMNS,
    Column(
        "pass@1, base → trained",
        lambda row: " → ".join(f"{per_prompt(row[1], side).mean():.3f}" for side in SIDES),
    ),
    Column("change [95 %]", lambda row: interval_cell(gain(row[1], 1), "+.3f")),
]


def forgetting(frame: Frame) -> Section | None:
    """Return base, trained and change on other tasks, paired over prompts; `None` if none was evaluated."""
    rows = [(run, other) for run in frame.runs for other in (run.passk or {}).get("others", {}).values()]
    notes = ["The change is paired over prompts. If its interval includes 0, there is no significant change."]
    return table_section(table_of("Forgetting: tasks that were not trained", FORGETTING_COLUMNS, rows, notes))


def checkpoints(frame: Frame) -> Section | None:
    """Return pass@k over checkpoints, with best and last of each run and the fitted rate; `None` without one."""
    ks = checkpoint_ks(frame.runs)
    measured = [(run, k, checkpoint_curve(run.passk, k)) for run in frame.runs for k in ks]
    rows = [row for row in measured if row[2] is not None]
    if not rows:
        return None
    title = "Held-out pass@k over checkpoints"
    panels = []
    for k in ks:
        draw = partial(draw_checkpoints, k=k)
        panels.append(steps_panel(f"Held-out pass@{k}", frame.groups, draw, f"pass@{k}", legend=k == ks[0]))
    text = caption(frame, "Starting model at step 0. Bands of a single run: 95 % over prompts.")
    notes = [
        "95 % intervals over prompts. The best checkpoint was selected on the same prompts, so its score is biased "
        "upwards."
    ]
    blocks = [Picture("checkpoints.png", title, text, panels), table_of(title, CHECKPOINT_COLUMNS, rows, notes)]
    rated = [(run.name, rate) for run in frame.runs if run.passk for rate in rates(run.passk)]
    if rated:
        blocks.append(rate_table(rated))
    return Section(title, blocks)


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
    picture = Picture("passk.png", "Held-out pass@k against k", text, panels, 3)
    return Section("pass@k against k", [picture]) if panels else None


def _side_by_side(what: str, title: str, rows: list[tuple[str, list[Estimate], Estimate]], digits: int = 3) -> Table:
    """Return a table of base, trained and gain."""
    cells = [
        [name, *(interval_cell(side, f".{digits}f") for side in sides), interval_cell(change, f"+.{digits}f")]
        for name, sides, change in rows
    ]
    return Table(title, [what, *SIDES, "gain"], cells)


def _row(name: str, result: dict, k: int) -> tuple[str, list[Estimate], Estimate]:
    return name, [summary_score(result[side], k) for side in SIDES], gain(result, k)


def result_table(run_dir: Path, result: dict) -> Table:
    """Return base, trained and gain: a row per k and one for greedy decoding, with 95 % intervals over prompts."""
    title = (
        f"{run_dir}: {result['task']}, {result['split']} split{training_note(result)}, {result['prompts']} prompts × "
        f"{result['n']} samples, temperature {result['temperature']:g}"
    )
    rows = [_row(f"pass@{k}", result, k) for k in result["k"]]
    greedy = result.get("greedy")
    if greedy:
        sides = [Estimate(greedy[side]["accuracy"], *greedy[side]["interval"]) for side in SIDES]
        rows.append(("greedy", sides, Estimate(*greedy["gain"])))
    return _side_by_side("outcome", title, rows)


def parts_table(result: dict) -> Table | None:
    """
    Return pass@k at the smallest k for every task and level of the prompts, and for the tasks that were not trained;
    `None` without either.
    """
    k = result["k"][0]
    rows = []
    for part in result.get("by", []):
        level = "" if part["level"] is None else f"@{part['level']}"
        name = visible(f"{part['task']}{level}")
        rows.append(_row(name, {**part, "n": result["n"]}, k))
    for name, other in result.get("others", {}).items():
        rows.append(_row(f"{visible(name)},\nnot trained", other, k))
    return _side_by_side("task", f"pass@{k} by task", rows, digits=2) if rows else None


def checkpoint_table(result: dict) -> Table:
    """Return pass@k of base and every checkpoint, a row each."""
    columns = [Column("step", lambda point: str(point["step"]))]
    for k in result["k"]:
        columns.append(Column(f"pass@{k}", lambda point, k=k: interval_cell(summary_score(point, k), ".3f")))
    columns.append(Column("tokens", lambda point: f"{point['mean_tokens']:.0f}"))
    points = [{"step": 0, **result["base"]}, *result["checkpoints"]]
    return table_of("pass@k over training (step 0: starting model)", columns, points)


def draw_boundary(axes, result: dict) -> None:
    """Draw pass@k of both sides of one evaluation over k."""
    for side, name, style in (("base", "starting model", BASE_STYLE), ("trained", "trained", TRAINED_STYLE)):
        draw_points(axes, [k_curve(result, side)], name, style)
        bounds = [pass_at_k_bound(result[side]["correct"], result["n"], k) for k in result["k"]]
        axes.plot(result["k"], bounds, "--", color=style["color"], linewidth=1, label=f"{side}: estimated bound")
    label_k(axes, result["n"], "Bands: 95 % over prompts")


def bound_note(result: dict) -> list[str]:
    """Return a line with the estimated bound of pass@k at the largest k; none up to 2: there it is pass@k itself."""
    k = max(result["k"])
    if k <= 2:
        return []
    base, trained = (pass_at_k_bound(result[side]["correct"], result["n"], k) for side in SIDES)
    return [
        f"Bound of pass@{k} by mean and variance of pass@1 (Jensen), estimated: base {base:.3f}, trained "
        f"{trained:.3f}. The measured value can be higher."
    ]


def draw_trajectory(axes, result: dict, k: int, fitted: Sequence[ConstantRate]) -> None:
    """Draw pass@k of one evaluation over training, with its fit if there is one for this k."""
    points = checkpoint_curve(result, k)
    draw_points(axes, [points], "measured, 95 % over prompts", TRAINED_STYLE)
    for rate in fitted:
        if rate.k == k:
            steps = np.linspace(0, points.index[-1], 200)
            label = f"1 − (1 − {rate.p0:.3f}) exp(−{rate.alpha.value:.2e} t)"
            axes.plot(steps, rate.curve(steps), "--", color=UNKNOWN_COLOUR, label=label)
    label_steps(axes, f"Held-out pass@{k}", f"pass@{k}", ylim=(0, 1.02))


def write_pictures(run_dir: Path, result: dict, fitted: Sequence[ConstantRate]) -> list[Path]:
    """Write pass@k against k, and over the checkpoints if there are some; return the files."""
    panels = [Panel("Held-out pass@k against k", partial(draw_boundary, result=result))]
    files = [Picture("boundary.png", "", "", panels).write_png(run_dir)]
    if "checkpoints" in result:
        panels = []
        for k in ends(result["k"]):
            draw = partial(draw_trajectory, result=result, k=k, fitted=fitted)
            panels.append(Panel(f"Held-out pass@{k} over optimizer steps", draw))
        files.append(Picture("trajectory.png", "", "", panels).write_png(run_dir))
    return files
