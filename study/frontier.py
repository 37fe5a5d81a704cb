"""What is paid, what is right, and, in a third panel, what is right at equal KL, or what becomes of all else."""

import pandas as pd
from matplotlib.figure import Figure

from study.matrix import Block
from study.plots import arm_styles, draw, three_panels
from study.registered import SPAN, other_tasks, smoothed_curve
from study.scores import finished
from study.tables import Tables


PANELS = {"reward": "paid: the reward (proxy)", "gold": "right: gold"}
CALM = 100  # steps that the path of gold against the KL takes together


def frontier(block: Block, tables: Tables) -> Figure | None:
    """
    Draw proxy, the reward, and gold over steps, and gold against the KL to the base, each path from the left to the
    dot of the last step; in a block with other tasks what became of them against gold, from the base on. An arm's mean
    over its pairs. `None` without runs.
    """
    styles = arm_styles(block, tables)
    if not styles:
        return None
    runs = finished(block, tables)
    panels = three_panels()
    for arm, style in styles.items():
        keys = runs.xs(arm, axis=1, level=1).stack().dropna()
        curves = pd.concat({pair: smoothed_curve(tables, key) for pair, key in keys.items()}, axis=1)
        for axes, (name, title) in zip(panels.over_steps, PANELS.items(), strict=True):
            draw(axes, curves.xs(name, axis=1, level=-1), False, label=f"{arm}, n = {len(keys)}", **style)
            axes.set(title=title, xlabel="optimizer step")
        if block.runs[0].evaluation["others"]:
            path = pd.concat(other_tasks(tables, key) for key in keys).groupby(level=0).mean()
        else:
            path = _gold_by_kl(curves)
        panels.third.plot(*path.T.to_numpy(), **style)
        panels.third.plot(*path.iloc[-1], "o", color=style["color"])
    panels.third.set(xlabel=path.columns[0], title=path.columns[1])
    return panels.finish(f"Training batches: means of {SPAN} steps over the pairs of an arm.")


def _gold_by_kl(curves: pd.DataFrame) -> pd.DataFrame:
    """The mean path of an arm's runs, of which `curves` has the columns of each."""
    means = curves.T.groupby(level=-1).mean().T
    path = means.rolling(CALM, min_periods=1).mean()[["drift", "gold"]]
    path.columns = ["KL to the base, nats a token", "gold against KL"]
    return path
