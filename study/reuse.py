"""Blocks that differ in how often a batch is used, in one picture: does B replace the clip?"""

from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure

from study.matrix import Block
from study.plots import GREY, add_note
from study.tables import Tables
from trl_prorl.variants import VARIANTS


USES = "num_iterations"  # of a batch
MARKS = ("o", "s", "^", "D")  # by arm
OF_AN_ARM = ["arm", "variant", "clip"]


def uses_of_runs(blocks: Iterable[Block], tables: Tables) -> pd.DataFrame:
    """
    Return a row for each finished run: `arm`, without its block's suffix, `variant`, `clip`, the `uses` of a batch,
    and pass@1 of its `base` and of itself, `gold`.
    """
    rows = []
    for block in blocks:
        for run in block.runs:
            if run.key not in tables.runs.index:
                continue
            row = tables.runs.loc[run.key]
            rows.append(
                {
                    "arm": run.key.arm.removesuffix(block.suffix),
                    "variant": row["variant"],
                    "clip": run.recipe.get("loss_mode") != "unclipped",
                    "uses": run.recipe[USES],
                    "base": row["base_pass@1"],
                    "gold": row["gold"],
                }
            )
    return pd.DataFrame(rows, columns=[*OF_AN_ARM, "uses", "base", "gold"])


def reuse(blocks: Iterable[Block], tables: Tables) -> Figure | None:
    """
    Draw pass@1 by the updates that a generation batch is used for: an arm's mean over its pairs, and a mark for each
    pair; dashed without the clip, in grey the bases. `None` unless the blocks' runs differ in it.
    """
    runs = uses_of_runs(blocks, tables)
    if runs["uses"].nunique() < 2:
        return None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(runs["base"].mean(), label="base", **GREY)
    for place, ((arm, variant, clip), of_arm) in enumerate(runs.groupby(OF_AN_ARM, sort=False)):
        style = {"color": VARIANTS[variant].colour, "marker": MARKS[place % len(MARKS)]}
        mean = of_arm.groupby("uses")["gold"].mean()
        axes.plot(mean.index, mean, linestyle="-" if clip else "--", label=arm, **style)
        axes.plot(of_arm["uses"], of_arm["gold"], linestyle="", alpha=0.35, markersize=4, **style)
    axes.set_xscale("log", base=2)
    uses = sorted(runs["uses"].unique())
    axes.set_xticks(uses, uses)
    axes.set(xlabel="updates for which a batch is used", ylabel="held-out pass@1, by the verifier")
    axes.legend(fontsize=8)
    return add_note(figure, "Lines: means over pairs; marks: pairs. Dashed: without the clip.")
