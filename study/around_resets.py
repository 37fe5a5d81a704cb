"""What happens at a reset: reward, KL, gradient norm and size of the updates, aligned at the resets of an arm."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from study.matrix import Block, RunKey
from study.plots import arm_styles
from study.scores import finished, reset_steps
from study.tables import Tables
from trl_prorl.eval.analysis.resets import AROUND, MIDDLE, align_at_resets, band_over_resets
from trl_prorl.eval.pages.plotting import OTHER_COLOUR


SHOWN = ("core", "clamp")  # blocks: healthy training, and a policy that a strong KL holds
REWARD = "reward"
PANELS = {
    REWARD: "reward less its mean before",
    "kl_ref": "KL to the reference",
    "grad_norm": "gradient norm",
    "update_norm": "size of the updates",
}
NOTE = (
    f"Step 0 is the last before a reset, step 1 the first after it. Lines: means over the resets of all runs; band: "
    f"{MIDDLE[0]}th to {MIDDLE[1]}th percentile of the bold arm's."
)


def around_resets(block: Block, tables: Tables) -> Figure | None:
    """
    Draw the mean of each of the `PANELS` over the resets of an arm's runs, a row for each family; with the band of the
    first arm that has resets, which is drawn bold. The control, which has none, is drawn at that arm's. `None` without
    resets.
    """
    styles = arm_styles(block, tables)
    runs = finished(block, tables)
    control = "control" + block.suffix
    resetting = [arm for arm in styles if _has_resets(tables, runs.xs(arm, axis=1, level=1).stack())]
    if not resetting:
        return None
    shown = [arm for arm in styles if arm in resetting or arm == control]
    figure = Figure(figsize=(12, 0.8 + 2.4 * len(block.families)), layout="constrained")
    grid = figure.subplots(len(block.families), len(PANELS), squeeze=False)
    for family, row in zip(block.families, grid, strict=True):
        for axes, (metric, title) in zip(row, PANELS.items(), strict=True):
            for arm in shown:
                aligned = aligned_metric(tables, runs[family, arm].dropna(), metric, resetting[0])
                if not len(aligned):
                    continue
                band = band_over_resets(aligned)
                style = {**styles[arm], "marker": ".", "label": f"{arm}: {len(aligned)} resets"}
                if arm == control:
                    style |= {"color": OTHER_COLOUR, "label": f"{arm}, at the same steps"}
                if arm == resetting[0]:
                    style["linewidth"] = 2.4
                    axes.fill_between(band.index, band["low"], band["high"], color=style["color"], alpha=0.15)
                axes.plot(band.index, band["mean"], **style)
            axes.axvline(0.5, color="#000000", linewidth=0.8, linestyle=":")  # the reset
            axes.set_title(f"{family}: {title}", fontsize=8)
            axes.tick_params(labelsize=7)
    for axes in grid[-1]:
        axes.set_xlabel("steps since the reset", fontsize=8)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.supxlabel(NOTE, fontsize=8, style="italic")
    return figure


def aligned_metric(tables: Tables, keys: pd.Series, metric: str, resetting: str) -> np.ndarray:
    """
    Return a metric of some runs around each of their resets, shape (R, T), as [`align_at_resets`], without those
    around which it was not measured.

    Where a run has no resets, those of the arm `resetting` on the same pair count. The reward is less its mean over
    the steps before the reset, because bases differ far more than steps.
    """
    rows = [np.empty((0, sum(AROUND)))]
    for key in keys:
        curve = tables.curves.loc[key]
        done = [step - 1 for step in _resets_of(tables, key, resetting)]
        rows.append(align_at_resets(curve["step"].to_numpy(), curve[metric].to_numpy(), done))
    aligned = np.concatenate(rows)
    aligned = aligned[~np.isnan(aligned).all(axis=1)]
    if metric == REWARD and len(aligned):
        before = aligned[:, : AROUND[0]]
        aligned = aligned - np.nanmean(before, axis=1, keepdims=True)
    return aligned


def _resets_of(tables: Tables, key: RunKey, resetting: str) -> list[int]:
    own = reset_steps(tables, key)
    other = key._replace(arm=resetting)
    if own or other not in tables.runs.index:
        return own
    return reset_steps(tables, other)


def _has_resets(tables: Tables, keys: pd.Series) -> bool:
    return any(reset_steps(tables, key) for key in keys.dropna())
