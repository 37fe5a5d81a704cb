"""What `drift.json` holds: how far a run moved from base, over checkpoints."""

import pandas as pd

from eval.panels import Panel
from eval.plots import band, curves, mark_resets
from eval.runs import Run
from eval.statistics import Estimate
from eval.tables import NOT_MEASURED, Table, cell, interval_cell, objective_notes


MEASURES = {
    "kl_to_base": ("KL to base", "nats per token (exact)", ".4f"),
    "token_agreement": ("Agreement with base", "share of positions", ".3f"),
    "entropy": ("Entropy at own samples", "nats per token", ".3f"),
    "mean_tokens": ("Length of samples", "tokens", ".1f"),
}


def drift_points(run: Run) -> list[dict]:
    """The points of a run whose step is known."""
    return [point for point in (run.drift or {}).get("points", []) if point["step"] is not None]


def drift_series(run: Run, key: str) -> pd.Series | None:
    """One measure over optimizer steps; `None` if it was not measured."""
    points = {point["step"]: point[key] for point in drift_points(run) if point.get(key) is not None}
    return pd.Series(points, dtype=float).sort_index() if points else None


def _interval(runs: list[Run]) -> pd.DataFrame | None:
    """KL to base of the one run that measured it, with its interval; `None` if a point has none."""
    points = next(drift_points(run) for run in runs if drift_series(run, "kl_to_base") is not None)
    if not all(point.get("interval") for point in points):
        return None
    rows = {point["step"]: (point["kl_to_base"], *point["interval"]) for point in points}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high"])


def drift_panels(runs: list[Run]) -> list[Panel]:
    """A panel per measure; mean and band over seeds, or the interval of a single run where it has one."""
    shown = curves(runs)

    def panel(key, title, unit):
        def draw(axes):
            for curve in shown:
                series = [values for run in curve.runs if (values := drift_series(run, key)) is not None]
                if not series:
                    continue
                spread = _interval(curve.runs) if key == "kl_to_base" and len(series) == 1 else None
                spread = band(series) if spread is None else spread
                axes.fill_between(
                    spread.index, spread["low"], spread["high"], color=curve.style["color"], alpha=0.15, linewidth=0
                )
                axes.plot(
                    spread.index,
                    spread["mean"],
                    markersize=4,
                    linewidth=1.8,
                    label=curve.label,
                    **{"marker": "o", **curve.style},
                )
            mark_resets(axes, shown)
            axes.set(title=title, xlabel="optimizer step", ylabel=unit)
            axes.grid(alpha=0.2)

        return Panel(f"{title} over optimizer steps", draw)

    measured = [key for key in MEASURES if any(drift_series(run, key) is not None for run in runs)]
    return [panel(key, *MEASURES[key][:2]) for key in measured]


def drift_table(runs: list[Run]) -> Table | None:
    """The last point of each run; `None` if no run has one."""
    rows = []
    for run in runs:
        points = (run.drift or {}).get("points")
        if not points:
            continue
        last = points[-1]
        interval = last.get("interval")
        kl = cell(last.get("kl_to_base"), ".4f")
        kl = interval_cell(Estimate(last["kl_to_base"], *interval), ".4f") if interval else kl
        rest = [cell(last.get(key), MEASURES[key][2]) for key in ("token_agreement", "entropy", "mean_tokens")]
        base_entropy = last.get("base_entropy")
        rest[1] = rest[1] if base_entropy is None else f"{base_entropy:.3f} → {rest[1]}"
        rows.append([run.name, NOT_MEASURED if last["step"] is None else str(last["step"]), kl, *rest])
    if not rows:
        return None
    return Table(
        "Distance from base",
        ["arm", "step", "KL to base [95 %]", "agreement", "entropy, base → trained", "tokens of a sample"],
        rows,
        [
            "The last checkpoint of each run. KL in nats per token, exact over the vocabulary, at the policy's own samples; "
            f"agreement is the share of positions where both have the same likeliest token. {NOT_MEASURED} means not "
            "measured."
        ]
        + objective_notes(runs),
    )
