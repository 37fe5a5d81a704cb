"""Gold by the base's share of right among paid answers, in one picture: how much of that share does a KL keep?"""

import numpy as np
from matplotlib.figure import Figure

from study.dose import LESS, PLAIN, WITHIN, by_share
from study.matrix import Block
from study.plots import GREY, add_note
from study.rivals import OUTCOMES, control_of
from study.tables import Tables
from trl_prorl.variants import VARIANTS


TITLES = {"gold": "sampled (registered)", "greedy": "greedy (exploratory)"}


def draw_dose(block: Block, tables: Tables) -> Figure | None:
    """
    Draw the end scores of the control and of plain by the base's share: a panel for each outcome, a point for each
    base and strictness, a line through the means of each strictness, and the band that was predicted of the control.
    `None` without runs.
    """
    arms = {"control": control_of(block).key.arm, "plain": PLAIN}
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    panels = figure.subplots(1, len(OUTCOMES), sharex=True, sharey=True)
    drawn = False
    for panel, outcome in zip(panels, OUTCOMES, strict=True):
        for name, arm in arms.items():
            points = by_share(block, tables, arm, outcome)
            if points.empty:
                continue
            drawn = True
            colour = VARIANTS[name].colour
            means = points.groupby(level="family").mean().sort_values("share")
            panel.plot(points["share"], points[outcome], ".", color=colour, markersize=5, alpha=0.5)
            panel.plot(means["share"], means[outcome], "o-", color=colour, markersize=5, linewidth=1.6, label=name)
        panel.set_title(TITLES[outcome], fontsize=9)
        panel.set_xlabel("share of right among the base's paid answers", fontsize=8)
        panel.tick_params(labelsize=8)
    if not drawn:
        return None
    predicted = np.array([0.0, 1.0])
    panels[0].plot(predicted, predicted - LESS, label="predicted of the control", **GREY)
    panels[0].fill_between(predicted, predicted - LESS - WITHIN, predicted - LESS + WITHIN, color="0.9", zorder=0)
    panels[0].set_xlim(0, 1)
    panels[0].set_ylim(0, 1)
    panels[0].set_ylabel("right answers at the end", fontsize=8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return add_note(figure, "Small points: bases. Lines: means over bases.", objective=False)
