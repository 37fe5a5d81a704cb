"""Drift from the starting model: the checkpoints of one run, and the runs of a report side by side."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.statistics import MIN_PROMPTS, NO_INTERVAL_NOTE, Estimate
from trl_prorl.eval.pages.document import Section
from trl_prorl.eval.pages.table import NOT_MEASURED, Column, Table, cell, interval_cell, table_of
from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.files import replaced
from trl_prorl.run_files import training_note


# Title and unit of each measure's panel.
PANELS = {
    "kl_to_base": ("KL to the starting model", "nats per token (exact)"),
    "token_agreement": ("Same greedy token", "share of positions"),
    "entropy": ("Entropy on own samples", "nats per token"),
    "mean_tokens": ("Length of samples", "tokens"),
}


TEXT_NOTE = (
    "log p, base: log-probability of the samples under the starting model, nats per token. distinct-2: share of token "
    "pairs that are different. compression: bytes before / after zlib, higher if samples repeat each other."
)
NO_ENGLISH = "No perplexity of English text: the vocabulary of the model has no English words."


def drift_points(run: RecordedRun) -> list[dict]:
    """Return the points of a run whose step is known."""
    points = (run.drift or {}).get("points", [])
    return [point for point in points if point["step"] is not None]


def drift_series(run: RecordedRun, key: str) -> pd.Series | None:
    """Return a measure over optimizer steps; `None` if it was not measured."""
    points = {point["step"]: point[key] for point in drift_points(run) if point.get(key) is not None}
    return pd.Series(points, dtype=float).sort_index() if points else None


def _kl_cell(point: dict) -> str:
    interval = point.get("interval")
    if not interval:
        return cell(point["kl_to_base"], ".4f")
    return interval_cell(Estimate(point["kl_to_base"], *interval), ".4f")


def _entropy_cell(point: dict) -> str:
    base = point.get("base_entropy")
    trained = cell(point.get("entropy"), ".3f")
    return trained if base is None else f"{base:.3f} → {trained}"


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
]
LANGUAGE_COLUMNS = [
    Column("step", lambda point: _step_cell(point, "end")),
    Column("reward", lambda point: cell(point["reward"], ".3f"), applies=_has("reward")),
    Column("accuracy", lambda point: cell(point["gold"], ".3f"), applies=_has("gold")),
    Column("log p, base", lambda point: cell(point["base_logp"], ".3f")),
    Column("distinct-2", lambda point: cell(point["distinct_2"], ".3f")),
    Column("compression", lambda point: cell(point["compression_ratio"], ".2f")),
    Column(
        "perplexity, real text",
        lambda point: cell(point.get("text_perplexity"), ".2f"),
        applies=_has("text_perplexity"),
    ),
]
RUN_COLUMNS = [
    Column("run", lambda row: row[0]),
    Column("step", lambda row: _step_cell(row[1], NOT_MEASURED)),
    Column("KL to base [95 %]", lambda row: _kl_cell(row[1])),
    Column("agreement", lambda row: cell(row[1].get("token_agreement"), ".3f")),
    Column("entropy, base → trained", lambda row: _entropy_cell(row[1])),
    Column("tokens per sample", lambda row: cell(row[1].get("mean_tokens"), ".1f")),
]


def points_tables(run_dir: Path, result: dict) -> list[Table]:
    """Return the tables of one run with a row per checkpoint: on its own task, and on each other one."""
    points = result["points"]
    title = f"Drift of {run_dir} from the starting model (step 0){training_note(result)}"
    without_text = all(point.get("text_perplexity") is None for point in points)
    notes = [TEXT_NOTE, NO_ENGLISH] if without_text else [TEXT_NOTE]
    tables = [table_of(title, POINT_COLUMNS, points), table_of("Text quality", LANGUAGE_COLUMNS, points, notes)]
    for name in points[0].get("others", {}):
        of_other = [{"step": point["step"], **point["others"][name]} for point in points]
        tables.append(table_of(f"{title} on {name}", POINT_COLUMNS, of_other))
        tables.append(table_of(f"Text quality on {name}", LANGUAGE_COLUMNS, of_other))
    return tables


def runs_table(frame: Frame) -> Table | None:
    """Return the last point of each run; `None` if no run has one."""
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
    return table_of("Drift from the starting model", RUN_COLUMNS, rows, notes) if rows else None


def plot_drift(result: dict, path: Path) -> None:
    """Write KL, agreement, entropy and length over steps as a PNG."""
    points = [point for point in result["points"] if point["step"] is not None]
    steps = [point["step"] for point in points]
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    all_axes = figure.subplots(1, len(PANELS))
    for axes, (key, (title, unit)) in zip(all_axes, PANELS.items(), strict=True):
        axes.plot(steps, [point[key] for point in points], marker="o", color="#0072B2")
        if key == "kl_to_base":
            low, high = zip(*(point["interval"] for point in points), strict=True)
            axes.fill_between(steps, low, high, alpha=0.25, color="#0072B2")
        axes.set(title=title, xlabel="optimizer step", ylabel=unit)
        axes.grid(alpha=0.2)
    with replaced(path) as aside:
        figure.savefig(aside, format="png", dpi=110)


def sections(frame: Frame) -> list[Section]:
    table = runs_table(frame)
    return [Section(table.title, [table])] if table else []
