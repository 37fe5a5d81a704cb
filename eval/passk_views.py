"""Views of the held-out evaluation: pass@k against k, over checkpoints, per task, and on tasks that were not trained."""

import numpy as np
import pandas as pd

from eval.panels import Panel
from eval.plots import Curve, band, curves, mark_resets
from eval.runs import Run
from eval.statistics import NO_INTERVAL, bootstrap_interval, paired_bootstrap_difference, pass_at_k_per_prompt
from eval.tables import NOT_MEASURED, Table, cell, interval_cell, objective_notes, per_prompt


def ks_up_to(n: int) -> list[int]:
    """1, 2, 4 … and `n` itself."""
    powers = [2**power for power in range(n.bit_length()) if 2**power <= n]
    return powers if powers[-1] == n else [*powers, n]


def k_curve(run: Run, side: str, interval: bool = True) -> pd.DataFrame:
    """
    pass@k of one side for k = 1, 2, 4 … n from the counts of correct samples.

    Args:
        run (`Run`): An evaluated run.
        side (`str`): `base` or `trained`.
        interval (`bool`, *optional*, defaults to `True`): Whether to bootstrap over prompts.

    Returns:
        `pd.DataFrame`: `mean`, `low` and `high`, indexed by k; the ends are NaN without an interval.
    """
    rows = {}
    for k in ks_up_to(run.passk["n"]):
        values = per_prompt(run, side, k)
        low, high = bootstrap_interval(values) if interval else NO_INTERVAL
        rows[k] = {"mean": values.mean(), "low": low, "high": high}
    return pd.DataFrame.from_dict(rows, orient="index")


def _over_seeds(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """One run keeps its interval over prompts; of several, mean and band over the seeds."""
    return frames[0] if len(frames) == 1 else band([frame["mean"] for frame in frames])


def _draw(axes, frame: pd.DataFrame, label: str, marker: str, **style) -> None:
    axes.fill_between(frame.index, frame["low"], frame["high"], color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(frame.index, frame["mean"], markersize=4, linewidth=1.8, label=label, **{"marker": marker, **style})


def k_panels(runs: list[Run]) -> list[Panel]:
    """A panel per curve, base against trained over k; one scale for all."""
    evaluated = [
        Curve([run for run in curve.runs if run.passk], curve.label, curve.style)
        for curve in curves(runs)
        if any(run.passk for run in curve.runs)
    ]

    def panel(curve):
        def draw(axes):
            for side, marker, style in (
                ("base", "s", {"color": "#7F7F7F", "linestyle": ":"}),
                ("trained", "o", curve.style),
            ):
                _draw(
                    axes,
                    _over_seeds([k_curve(run, side, len(curve.runs) == 1) for run in curve.runs]),
                    side,
                    marker,
                    **style,
                )
            ks = ks_up_to(max(run.passk["n"] for run in curve.runs))
            axes.set_xscale("log", base=2)
            axes.set_xticks(ks, list(map(str, ks)))
            axes.set(title=curve.label, xlabel="k (samples drawn)", ylabel="held-out pass@k", ylim=(0, 1.02))
            axes.grid(alpha=0.2)

        return Panel(f"Held-out pass@k against k of {curve.label}, base and trained", draw)

    return [panel(curve) for curve in evaluated]


def checkpoint_curve(run: Run, k: int) -> pd.DataFrame | None:
    """Held-out pass@k over optimizer steps, base at 0, with its interval over prompts; `None` without checkpoints."""
    points = {point["step"]: point for point in (run.passk or {}).get("checkpoints") or [] if f"pass@{k}" in point}
    if not points:
        return None
    points[0] = run.passk["base"]
    rows = {step: (point[f"pass@{k}"], *point[f"interval@{k}"]) for step, point in points.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high"]).sort_index()


def checkpoint_ks(runs: list[Run]) -> list[int]:
    """The smallest and the largest k of the runs with checkpoints."""
    ks = {k for run in runs if (run.passk or {}).get("checkpoints") for k in run.passk["k"]}
    return sorted({min(ks), max(ks)}) if ks else []


def checkpoint_panels(runs: list[Run]) -> list[Panel]:
    """pass@k over checkpoints, a panel per k."""
    shown = curves(runs)

    def panel(k):
        def draw(axes):
            for curve in shown:
                frames = [frame for run in curve.runs if (frame := checkpoint_curve(run, k)) is not None]
                if frames:
                    _draw(axes, _over_seeds(frames), curve.label, "o", **curve.style)
            mark_resets(axes, shown)
            axes.set(title=f"Held-out pass@{k}", xlabel="optimizer step (0: base)", ylabel=f"pass@{k}")
            axes.grid(alpha=0.2)

        return Panel(f"Held-out pass@{k} over optimizer steps, base at step 0", draw)

    return [panel(k) for k in checkpoint_ks(runs)]


def checkpoint_table(runs: list[Run]) -> Table | None:
    """The best and the last checkpoint of each run, per k; `None` without checkpoints."""
    ks, rows = checkpoint_ks(runs), []
    for run in runs:
        for k in ks:
            frame = checkpoint_curve(run, k)
            if frame is None:
                continue
            trained = frame.drop(index=0)
            best, last = trained["mean"].idxmax(), trained.index[-1]
            rows.append(
                [
                    run.name,
                    str(k),
                    cell(frame["mean"][0], ".3f"),
                    f"at {best}: {interval_cell(trained.loc[best], '.3f')}",
                    f"at {last}: {interval_cell(trained.loc[last], '.3f')}",
                ]
            )
    if not rows:
        return None
    notes = [
        "Intervals are 95 % over prompts. The best of many checkpoints is chosen on the same prompts it is reported on, and "
        "so too high by chance."
    ]
    return Table(
        "Held-out pass@k over checkpoints",
        ["arm", "k", "base", "best, at step …", "last, at step …"],
        rows,
        notes + objective_notes(runs),
    )


def tasks_table(runs: list[Run]) -> Table | None:
    """Held-out pass@1 and pass@k per task and level, a row each per run; `None` where prompts are of one kind."""
    rows = []
    for run in runs:
        for part in (run.passk or {}).get("by") or []:
            largest = max(run.passk["k"])
            rows.append(
                [run.name, str(part["task"]), str(part["level"]), str(part["prompts"])]
                + [_base_to_trained(part, k) for k in dict.fromkeys((1, largest))]
            )
    if not rows:
        return None
    header = ["arm", "task", "level", "prompts", "pass@1, base → trained [95 %]"]
    if len(rows[0]) > len(header):
        header.append("pass at the largest k, base → trained [95 %]")
    return Table(
        "Per task and level",
        header,
        [row + [NOT_MEASURED] * (len(header) - len(row)) for row in rows],
        ["The prompts of each task and level alone; intervals over prompts."] + objective_notes(runs),
    )


def _base_to_trained(part: dict, k: int) -> str:
    base, trained = part["base"].get(f"pass@{k}"), part["trained"].get(f"pass@{k}")
    if base is None or trained is None:
        return NOT_MEASURED
    low, high = part["trained"][f"interval@{k}"]
    return f"{base:.3f} → {interval_cell((trained, low, high), '.3f')}"


def forgetting_table(runs: list[Run]) -> Table | None:
    """Tasks that were not trained: base against trained, paired over prompts; `None` if none was evaluated."""
    rows = []
    for run in runs:
        for other in ((run.passk or {}).get("others") or {}).values():
            base, trained = (
                pass_at_k_per_prompt(other[side]["correct"], other["n"], 1) for side in ("base", "trained")
            )
            change = paired_bootstrap_difference(trained, base)
            found = (
                NOT_MEASURED
                if np.isnan(change.low)
                else "worse"
                if change.high < 0
                else "better"
                if change.low > 0
                else "no change found"
            )
            rows.append(
                [
                    run.name,
                    str(other["task"]),
                    str(other["level"]),
                    str(other["prompts"]),
                    f"{base.mean():.3f} → {trained.mean():.3f}",
                    interval_cell(change, "+.3f"),
                    found,
                ]
            )
    if not rows:
        return None
    return Table(
        "Tasks that were not trained",
        ["arm", "task", "level", "prompts", "pass@1, base → trained", "change [95 %]", "so"],
        rows,
        ["The change is paired over prompts; better or worse where its interval leaves 0 out."]
        + objective_notes(runs),
    )


def decoding_table(runs: list[Run]) -> Table | None:
    """Greedy accuracy, length and truncation, base against trained; `None` if none was recorded."""
    rows = []
    for run in runs:
        passk = run.passk or {}
        greedy, sides = passk.get("greedy") or {}, [passk.get("base", {}), passk.get("trained", {})]
        cells = [_arrow([(greedy.get(side) or {}).get("accuracy") for side in ("base", "trained")], ".3f")]
        cells += [_arrow([side.get(key) for side in sides], spec) for key, spec in _DECODING.items()]
        if any(text != NOT_MEASURED for text in cells):
            rows.append([run.name, *cells])
    if not rows:
        return None
    header = ["arm", "greedy accuracy", "mean tokens of a sample", "samples cut off"]
    notes = ["Base → trained, on the held-out prompts; cut off means that a sample reached the length limit."]
    return Table("Greedy decoding and length", header, rows, notes + objective_notes(runs))


_DECODING = {"mean_tokens": ".1f", "truncated": ".3f"}


def _arrow(values: list[float | None], spec: str) -> str:
    return NOT_MEASURED if None in values else f"{values[0]:{spec}} → {values[1]:{spec}}"
