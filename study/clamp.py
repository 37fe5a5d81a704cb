"""What frees a clamped policy: how far a run would go, its asymptote, apart from its speed."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import curve_fit

from study.matrix import Block, RunKey
from study.plots import draw, noted, styles
from study.registered import SPAN
from study.scores import finished
from study.tables import Tables
from study.tuned import STILL


FAR = 2  # an asymptote beyond so many times the last value is a guess
NEARLY = 0.999  # of the run's steps: a half that least squares left at its bound
PANELS = {"gold": "right: gold", "entropy": "entropy, nats a token"}


def sigmoid(start: float) -> Callable[..., np.ndarray]:
    """
    start + (asymptote - start) / (1 + (half / step)^steepness), of the steps, the asymptote, `half`, the step at which
    half of the gain is reached, and the steepness (ScaleRL, arXiv 2510.13786, equation 1, over steps in place of
    compute).
    """
    return lambda step, asymptote, half, steepness: start + (asymptote - start) / (1 + (half / step) ** steepness)


def asymptote(gold: pd.Series, start: float) -> tuple[float, float]:
    """
    Asymptote, from 0 to 1, and the steps to half of the gain, at most those of the run, by least squares, of gold by
    step in a run whose base has `start`. Both are NaN where the run does not tell the asymptote: it lies beyond twice
    the mean of the last 20 steps, or half of the gain at the run's end or later. Where a run has not moved, `half` is.
    """
    gold, scale = gold.dropna(), (0.1, len(gold) / 4, 1.0)
    last, end, steps = gold.iloc[-SPAN:].mean(), gold.index[-1], gold.index.to_numpy(float)
    bounds, first = ([0.0, 1.0, 0.1], [1.0, end, 20.0]), (last, len(gold) / 4, 1.0)
    (high, half, _), _ = curve_fit(sigmoid(start), steps, gold, first, bounds=bounds, x_scale=scale, max_nfev=10_000)
    if abs(high - start) <= STILL:
        return float(high), np.nan
    return (float(high), float(half)) if high <= FAR * last and half < NEARLY * end else (np.nan, np.nan)


def released(block: Block, tables: Tables) -> pd.DataFrame:
    """
    A row for each run: `family`, `arm`; its `asymptote` and `half`; `entropy`, nats a token, mean of the last 20
    steps; `since`, gold of the last 20 steps less that of the 20 up to the step of the block's first reset.
    """
    reset = min((run.recipe["ref_reset_every"] for run in block.runs if run.recipe.get("ref_reset_every")), default=0)
    return pd.DataFrame([_released(tables, run.key, reset) for run in block.runs if run.key in tables.runs.index])


def _released(tables: Tables, key: RunKey, reset: int) -> dict:
    curve = tables.curves.loc[key].set_index("step")
    high, half = asymptote(curve["gold"], tables.runs.loc[key, "base_pass@1"])
    last, before = curve.iloc[-SPAN:], curve["gold"].loc[reset - SPAN + 1 : reset]
    since = last["gold"].mean() - before.mean()
    found = {"asymptote": high, "half": half, "entropy": last["entropy"].mean(), "since": since}
    return {"family": key.family, "arm": key.arm, **found}


def summary(block: Block, tables: Tables) -> pd.DataFrame:
    """
    `released` by family and arm: the number of `runs`, and of those that have `told` an asymptote; the median of
    `half`, the mean of all else.
    """
    arms = released(block, tables).groupby(["family", "arm"], sort=False)
    of = {"runs": ("asymptote", "size"), "told": ("asymptote", "count"), "asymptote": ("asymptote", "mean")}
    of |= {"half": ("half", "median"), "entropy": ("entropy", "mean"), "since": ("since", "mean")}
    return arms.agg(**of).reset_index()


def clamp(block: Block, tables: Tables) -> Figure | None:
    """
    Gold and entropy over steps, the mean of an arm's pairs, and each run's asymptote against its steps to half of the
    gain. `None` without runs.
    """
    look, runs, found = styles(block, tables), finished(block, tables), released(block, tables)
    if not look:
        return None
    figure = Figure(figsize=(12, 4), layout="constrained")
    *over_steps, far = figure.subplots(1, 3)
    for arm, style in look.items():
        keys = runs.xs(arm, axis=1, level=1).stack().dropna()
        for axes, (name, title) in zip(over_steps, PANELS.items(), strict=True):
            curves = {place: tables.curves.loc[key].set_index("step")[name] for place, key in keys.items()}
            draw(axes, pd.DataFrame(curves).rolling(SPAN).mean(), False, label=f"{arm}, n = {len(keys)}", **style)
            axes.set(title=title, xlabel="optimizer step")
        far.plot(*found.loc[found["arm"] == arm, ["half", "asymptote"]].to_numpy().T, "o", color=style["color"])
    far.set(title="how far, and how fast", xlabel="steps to half of the gain", ylabel="asymptote of gold")
    figure.legend(*over_steps[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return noted(figure, f"Training batches: means of {SPAN} steps over the pairs of an arm; at the right each run.")
