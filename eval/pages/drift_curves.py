"""Drift from the starting model: the checkpoints of one run, and the runs of a report side by side."""

from functools import partial
from pathlib import Path

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.eval.pages.page import Section
from trl_prorl.eval.pages.plotting import TRAINED_COLOUR, Panel, label_steps
from trl_prorl.eval.pages.table import Column, Table, cell, interval_cell, table_of
from trl_prorl.run.log_files import training_note


# Title and unit of each measure's panel.
PANELS = {
    "kl_to_base": ("KL to the starting model", "nats per token (exact)"),
    "token_agreement": ("Same greedy token", "share of positions"),
    "entropy": ("Entropy on own samples", "nats per token"),
    "mean_tokens": ("Length of samples", "tokens"),
}


POINT_COLUMNS = [
    Column("step", lambda point: "end" if point["step"] is None else str(point["step"])),
    Column(
        "KL to base [95 %]",
        lambda point: interval_cell(Estimate(point["kl_to_base"], *point["interval"]), ".4f"),
    ),
    Column("same token", lambda point: f"{100 * point['token_agreement']:.1f} %"),
    Column("entropy", lambda point: cell(point["entropy"], ".3f")),
    Column("of base", lambda point: cell(point["base_entropy"], ".3f")),
    Column("tokens", lambda point: cell(point["mean_tokens"], ".1f")),
    Column("reward", lambda point: cell(point.get("reward"), ".3f")),
    Column("accuracy", lambda point: cell(point.get("accuracy"), ".3f")),
]
RUN_COLUMNS = [Column("run", lambda point: point["run"]), *POINT_COLUMNS]


def points_table(run_dir: Path, result: dict) -> Table:
    """Return the table of one run with a row per checkpoint."""
    title = f"Drift of {run_dir} from the starting model (step 0){training_note(result)}"
    return table_of(title, POINT_COLUMNS, result["points"])


def section(frame: Frame) -> Section | None:
    """Return the last point of each run that has one."""
    rows = [{"run": run.name, **run.drift["points"][-1]} for run in frame.runs if run.drift]
    note = (
        "Last checkpoint of each run, against the starting model. KL: nats per token on the policy's own samples, "
        "exact over the vocabulary. Same token: share of positions with the same greedy one."
    )
    title = "Drift from the starting model"
    return Section(title, tables=[table_of(title, RUN_COLUMNS, rows, [note])]) if rows else None


def draw_measure(axes, points: list[dict], key: str) -> None:
    """Draw a measure over steps; the KL with its interval over prompts."""
    title, unit = PANELS[key]
    steps = [point["step"] for point in points]
    axes.plot(steps, [point[key] for point in points], marker="o", color=TRAINED_COLOUR)
    if key == "kl_to_base":
        low, high = zip(*(point["interval"] for point in points), strict=True)
        axes.fill_between(steps, low, high, alpha=0.25, color=TRAINED_COLOUR)
    label_steps(axes, title, unit)


def drift_panels(result: dict) -> list[Panel]:
    """Return KL, agreement, entropy and length over steps."""
    points = [point for point in result["points"] if point["step"] is not None]
    points.sort(key=lambda point: point["step"])  # the trained model is last, and may be an earlier checkpoint
    return [Panel(title, partial(draw_measure, points=points, key=key)) for key, (title, _) in PANELS.items()]
