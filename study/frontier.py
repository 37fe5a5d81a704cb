"""What is paid, what is right, and, in a third panel, what is right at equal KL, or what becomes of all else."""

import pandas as pd
from matplotlib.figure import Figure

from study.matrix import Block
from study.plots import draw, noted, styles
from study.registered import SPAN, beside, way
from study.scores import finished
from study.tables import Tables


PANELS = {"reward": "paid: the reward (proxy)", "gold": "right: gold"}
CALM = 100  # steps that the path of gold against the KL takes together


def frontier(block: Block, tables: Tables) -> Figure | None:
    """
    Proxy, the reward, and gold over steps, and gold against the KL to the base, each path from the left to the dot of
    the last step; in a block with other tasks what became of them against gold, from the base on. An arm's mean over
    its pairs. `None` without runs.
    """
    look, runs = styles(block, tables), finished(block, tables)
    if not look:
        return None
    figure = Figure(figsize=(12, 4), layout="constrained")
    *over_steps, against = figure.subplots(1, 3)
    for arm, style in look.items():
        keys = runs.xs(arm, axis=1, level=1).stack().dropna()
        ways = pd.concat({place: way(tables, key) for place, key in keys.items()}, axis=1)
        for axes, (name, title) in zip(over_steps, PANELS.items(), strict=True):
            draw(axes, ways.xs(name, axis=1, level=-1), False, label=f"{arm}, n = {len(keys)}", **style)
            axes.set(title=title, xlabel="optimizer step")
        if block.runs[0].evaluation["others"]:
            path = pd.concat(beside(tables, key) for key in keys).groupby(level=0).mean()
        else:
            path = ways.T.groupby(level=-1).mean().T.rolling(CALM, min_periods=1).mean()[["drift", "gold"]]
            path.columns = ["KL to the base, nats a token", "gold against KL"]
        against.plot(*path.T.to_numpy(), **style)
        against.plot(*path.iloc[-1], "o", color=style["color"])
    against.set(xlabel=path.columns[0], title=path.columns[1])
    figure.legend(*over_steps[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return noted(figure, f"Training batches: means of {SPAN} steps over the pairs of an arm.")
