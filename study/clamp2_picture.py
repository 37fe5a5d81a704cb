"""pass@k of a base and of arms for large k, each with the bound that mean and variance of its questions set."""

from matplotlib.figure import Figure

from study.clamp2 import mean_bounds, mean_pass_at_k
from study.matrix import BASE_ARM, Block
from study.plots import add_note, arm_styles
from study.tables import Tables


BASE_STYLE = {"color": "0.55", "linestyle": "--", "linewidth": 1.6}


def draw_pass_at_k(block: Block, tables: Tables) -> Figure | None:
    """
    Draw pass@k over k, a line for the base and for each arm of which it was measured, and thin and dotted its bound.
    `None` if it was measured of no arm.
    """
    scores = mean_pass_at_k(block, tables)
    if scores.empty:
        return None
    highest = mean_bounds(block, tables)
    styles = {BASE_ARM: BASE_STYLE, **arm_styles(block, tables)}
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    panel = figure.subplots()
    for arm in styles:
        if arm in scores:
            panel.plot(scores.index, scores[arm], label=arm, **styles[arm])
            panel.plot(highest.index, highest[arm], ":", color=styles[arm]["color"], linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xticks(scores.index, [str(k) for k in scores.index])
    panel.set_ylim(0, 1)
    panel.set_xlabel("k")
    panel.set_ylabel("pass@k, sampled")
    figure.legend(*panel.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return add_note(figure, "Means over bases. Dotted: the highest pass@k that these questions allow (exploratory).")
