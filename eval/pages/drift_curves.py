"""Drift from the starting model: the checkpoints of one run, and the runs of a report side by side."""

from functools import partial
from pathlib import Path

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS, NO_INTERVAL_NOTE, Estimate
from trl_prorl.eval.pages.document import Section, table_section
from trl_prorl.eval.pages.plotting import TRAINED_COLOUR, Panel, Picture, label_steps
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, Table, cell, interval_cell, table_of
from trl_prorl.run.log_files import training_note


# Title and unit of each measure's panel.
PANELS = {
    "kl_to_base": ("KL to the starting model", "nats per token (exact)"),
    "token_agreement": ("Same greedy token", "share of positions"),
    "entropy": ("Entropy on own samples", "nats per token"),
    "mean_tokens": ("Length of samples", "tokens"),
}


def _kl_cell(point: dict) -> str:
    return interval_cell(Estimate(point["kl_to_base"], *point["interval"]), ".4f")


def _step_cell(point: dict, unknown: str) -> str:
    return unknown if point["step"] is None else str(point["step"])


def _has(key: str):
    """Return the condition of a column: some point has this measure."""
    return lambda points: any(point.get(key) is not None for point in points)


POINT_COLUMNS = [
    Column("step", lambda point: _step_cell(point, "end")),
    Column("KL to base (nats/token)", _kl_cell),
    Column("same greedy token", lambda point: f"{100 * point['token_agreement']:.1f} %"),
    Column("entropy", lambda point: cell(point["entropy"], ".3f")),
    Column("tokens", lambda point: cell(point["mean_tokens"], ".1f")),
    Column("reward", lambda point: cell(point["reward"], ".3f"), applies=_has("reward")),
    Column("accuracy", lambda point: cell(point["accuracy"], ".3f"), applies=_has("accuracy")),
]
RUN_COLUMNS = [
    Column("run", lambda row: row[0]),
    Column("step", lambda row: _step_cell(row[1], NOT_MEASURED)),
    Column("KL to base [95 %]", lambda row: _kl_cell(row[1])),
    Column("agreement", lambda row: cell(row[1]["token_agreement"], ".3f")),
    Column("entropy, base → trained", lambda row: f"{row[1]['base_entropy']:.3f} → {cell(row[1]['entropy'], '.3f')}"),
    Column("tokens per sample", lambda row: cell(row[1]["mean_tokens"], ".1f")),
]


def points_tables(run_dir: Path, result: dict) -> list[Table]:
    """Return the tables of one run with a row per checkpoint: on its own task, and on each other one."""
    points = result["points"]
    title = f"Drift of {run_dir} from the starting model (step 0){training_note(result)}"
    tables = [table_of(title, POINT_COLUMNS, points)]
    for name in points[0].get("others", {}):
        of_other = [{"step": point["step"], **point["others"][name]} for point in points]
        tables.append(table_of(f"{title} on {name}", POINT_COLUMNS, of_other))
    return tables


def runs_table(frame: Frame) -> Table:
    """Return the last point of each run that has one."""
    rows = []
    for run in frame.runs:
        points = (run.drift or {}).get("points")
        if points:
            rows.append((run.name, points[-1]))
    notes = [
        "Last checkpoint of each run, against the starting model. KL: nats per token on the policy's own samples, "
        f"exact over the vocabulary. Agreement: share of positions with the same greedy token. {NOT_MEASURED} means "
        "not measured."
    ]
    if any((run.drift or {}).get("prompts", MIN_PROMPTS) < MIN_PROMPTS for run in frame.runs):
        notes.append(NO_INTERVAL_NOTE)
    return table_of("Drift from the starting model", RUN_COLUMNS, rows, notes)


def section(frame: Frame) -> Section | None:
    return table_section(runs_table(frame))


def draw_measure(axes, points: list[dict], key: str) -> None:
    """Draw a measure over steps; the KL with its interval over prompts."""
    title, unit = PANELS[key]
    steps = [point["step"] for point in points]
    axes.plot(steps, [point[key] for point in points], marker="o", color=TRAINED_COLOUR)
    if key == "kl_to_base":
        low, high = zip(*(point["interval"] for point in points), strict=True)
        axes.fill_between(steps, low, high, alpha=0.25, color=TRAINED_COLOUR)
    label_steps(axes, title, unit)


def drift_picture(result: dict) -> Picture:
    """Return KL, agreement, entropy and length over steps."""
    points = [point for point in result["points"] if point["step"] is not None]
    points.sort(key=lambda point: point["step"])  # the trained model is last, and may be an earlier checkpoint
    panels = [Panel(title, partial(draw_measure, points=points, key=key)) for key, (title, _) in PANELS.items()]
    return Picture("drift.png", "Drift from the starting model", "", panels, columns=len(panels))
