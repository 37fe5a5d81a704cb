"""Blocks that differ in how often a batch is used, in one picture: does B replace the clip?"""

from collections.abc import Iterable

import pandas as pd
from matplotlib.figure import Figure

from study.matrix import Block
from study.plots import GREY, noted
from study.tables import Tables
from trl_prorl.variants import VARIANTS


USES = "num_iterations"  # of a batch
MARKS = ("o", "s", "^", "D")  # by arm
OF_A_RUN = ["arm", "variant", "clip", "uses"]


def reuse(blocks: Iterable[Block], tables: Tables) -> Figure | None:
    """
    pass@1 by the updates that a generation batch is used for: an arm's mean over its pairs, and a mark for each pair;
    dashed without the clip, in grey the bases. `None` unless the blocks' runs differ in it.
    """
    runs = [(block, run) for block in blocks for run in block.runs if run.key in tables.runs.index]
    rows = pd.DataFrame(
        [(run.key.arm.removesuffix(block.suffix), tables.runs.loc[run.key, "variant"],
          run.recipe.get("loss_mode") != "unclipped", run.recipe[USES]) for block, run in runs],
        columns=OF_A_RUN,
    )  # fmt: skip
    if rows["uses"].nunique() < 2:
        return None
    rows[["base", "gold"]] = tables.runs.loc[[run.key for _, run in runs], ["base_pass@1", "gold"]].to_numpy()
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(rows["base"].mean(), label="base", **GREY)
    for place, ((arm, variant, clip), of) in enumerate(rows.groupby(OF_A_RUN[:3], sort=False)):
        style = {"color": VARIANTS[variant].colour, "marker": MARKS[place % len(MARKS)]}
        mean = of.groupby("uses")["gold"].mean()
        axes.plot(mean.index, mean, linestyle="-" if clip else "--", label=arm, **style)
        axes.plot(of["uses"], of["gold"], linestyle="", alpha=0.35, markersize=4, **style)
    axes.set_xscale("log", base=2)
    uses = sorted(rows["uses"].unique())
    axes.set_xticks(uses, uses)
    axes.set(xlabel="updates for which a batch is used", ylabel="held-out pass@1, by the verifier")
    axes.legend(fontsize=8)
    return noted(figure, "Lines: means over pairs; marks: pairs. Dashed: without the clip.")
