"""What frees a clamped policy: how far a run would go, its asymptote, apart from its speed."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import curve_fit

from study.matrix import Block, RunKey
from study.plots import arm_styles, draw, three_panels
from study.registered import SPAN
from study.scores import finished
from study.tables import Tables
from study.tuned import STILL


FAR = 2  # an asymptote beyond so many times the last value is a guess
NEARLY = 0.999  # of the run's steps: a half that least squares left at its bound
MEANED = 0.05  # of a run's steps, on either side of a point, whose reward is averaged
LONG = 1000  # steps
EXACT = ("reverse_digits", "sums", "reverse_level8")  # families whose reward is 1 for a right answer and else 0
PANELS = {"gold": "right: gold", "entropy": "entropy, nats a token"}


class Fit(NamedTuple):
    """
    Holds where gold of a run would end, from 0 to 1, and the steps to half of the gain.

    Both are NaN where the run does not tell.
    """

    asymptote: float
    half: float


def sigmoid(start: float) -> Callable[..., np.ndarray]:
    """
    Make the function start + (asymptote - start) / (1 + (half / step)^steepness), of the steps, the asymptote, `half`,
    the step at which half of the gain is reached, and the steepness (ScaleRL, arXiv 2510.13786, equation 1, over steps
    in place of compute).
    """

    def curve(step: np.ndarray, asymptote: float, half: float, steepness: float) -> np.ndarray:
        return start + (asymptote - start) / (1 + (half / step) ** steepness)

    return curve


def fit_asymptote(gold: pd.Series, start: float) -> Fit:
    """
    Fit a sigmoid, by least squares, through gold by step in a run whose base has `start`.

    `half` is at most the steps of the run. Both are NaN where the run does not tell the asymptote: it lies beyond
    twice the mean of the last 20 steps, or half of the gain at the run's end or later. Where a run has not moved,
    `half` is.
    """
    gold = gold.dropna()
    steps = gold.index.to_numpy(float)
    end = gold.index[-1]
    last = gold.iloc[-SPAN:].mean()
    lowest = [0.0, 1.0, 0.1]
    highest = [1.0, end, 20.0]
    first_guess = (last, len(gold) / 4, 1.0)
    scale = (0.1, len(gold) / 4, 1.0)
    (high, half, _), _ = curve_fit(
        sigmoid(start), steps, gold, first_guess, bounds=(lowest, highest), x_scale=scale, max_nfev=10_000
    )
    if abs(high - start) <= STILL:
        return Fit(float(high), np.nan)
    if high <= FAR * last and half < NEARLY * end:
        return Fit(float(high), float(half))
    return Fit(np.nan, np.nan)


def slowing(reward: pd.Series, start: float) -> float:
    """
    Return the rate at which the unsolved part shrinks in the second half of a run, by that of the first half: 1 if
    pass@1 after s steps is 1 - (1 - start) e^(-rate s), a curve of one constant rate.

    Args:
        reward (`pd.Series`): Of the batches by step, 0 or 1 for each answer.
        start (`float`): The base's pass@1.
    """
    steps = len(reward)
    near = round(MEANED * steps)  # steps on either side of a point
    middle = reward.iloc[steps // 2 - near : steps // 2 + near].mean()
    end = reward.iloc[-2 * near :].mean()
    first = np.log((1 - start) / (1 - middle)) / (steps / 2)
    second = np.log((1 - middle) / (1 - end)) / (steps / 2 - near)
    return float(second / first)


def slowing_of_plain(blocks: Iterable[Block], tables: Tables) -> pd.Series:
    """Return [`slowing`] of every run without a KL that went on for `LONG` steps with an exact reward of 0 or 1."""
    found = {}
    for block in blocks:
        for run in block.runs:
            if run.key.arm != "plain" or run.key.steps < LONG or run.key.family not in EXACT:
                continue
            if run.key in tables.runs.index:
                reward = tables.curves.loc[run.key].set_index("step")["reward"]
                found[run.key] = slowing(reward, tables.runs.loc[run.key, "base_pass@1"])
    return pd.Series(found, dtype=float)


def released(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return a row for each run: `family`, `arm`; its `asymptote` and `half`; `entropy`, nats a token, mean of the last
    20 steps; `since`, gold of the last 20 steps less that of the 20 up to the step of the block's first reset.
    """
    intervals = [run.recipe["ref_reset_every"] for run in block.runs if run.recipe.get("ref_reset_every")]
    first_reset = min(intervals, default=0)
    keys = [run.key for run in block.runs if run.key in tables.runs.index]
    return pd.DataFrame([_released_row(tables, key, first_reset) for key in keys])


def _released_row(tables: Tables, key: RunKey, first_reset: int) -> dict:
    curve = tables.curves.loc[key].set_index("step")
    fit = fit_asymptote(curve["gold"], tables.runs.loc[key, "base_pass@1"])
    last = curve.iloc[-SPAN:]
    before = curve["gold"].loc[first_reset - SPAN + 1 : first_reset]
    return {
        "family": key.family,
        "arm": key.arm,
        "asymptote": fit.asymptote,
        "half": fit.half,
        "entropy": last["entropy"].mean(),
        "since": last["gold"].mean() - before.mean(),
    }


def summary(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return `released` by family and arm: the number of `runs`, and of those that have `told` an asymptote; the median
    of `half`, the mean of all else.
    """
    arms = released(block, tables).groupby(["family", "arm"], sort=False)
    columns = {
        "runs": ("asymptote", "size"),
        "told": ("asymptote", "count"),
        "asymptote": ("asymptote", "mean"),
        "half": ("half", "median"),
        "entropy": ("entropy", "mean"),
        "since": ("since", "mean"),
    }
    return arms.agg(**columns).reset_index()


def clamp(block: Block, tables: Tables) -> Figure | None:
    """
    Draw gold and entropy over steps, the mean of an arm's pairs, and each run's asymptote against its steps to half of
    the gain. `None` without runs.
    """
    styles = arm_styles(block, tables)
    if not styles:
        return None
    runs = finished(block, tables)
    fits = released(block, tables)
    panels = three_panels()
    for arm, style in styles.items():
        keys = runs.xs(arm, axis=1, level=1).stack().dropna()
        for axes, (name, title) in zip(panels.over_steps, PANELS.items(), strict=True):
            curves = {pair: tables.curves.loc[key].set_index("step")[name] for pair, key in keys.items()}
            means = pd.DataFrame(curves).rolling(SPAN).mean()
            draw(axes, means, False, label=f"{arm}, n = {len(keys)}", **style)
            axes.set(title=title, xlabel="optimizer step")
        of_arm = fits[fits["arm"] == arm]
        panels.third.plot(of_arm["half"].to_numpy(), of_arm["asymptote"].to_numpy(), "o", color=style["color"])
    panels.third.set(title="how far, and how fast", xlabel="steps to half of the gain", ylabel="asymptote of gold")
    return panels.finish(f"Training batches: means of {SPAN} steps over the pairs of an arm; at the right each run.")
