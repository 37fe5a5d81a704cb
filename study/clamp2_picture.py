"""
Two pictures: gold at the end by coefficient and by the steps between resets; and pass@k of a base and of arms for
large k, each with the bound that mean and variance of its questions set.
"""

from matplotlib.figure import Figure

from study.clamp2 import BETAS, PLAIN, RESETS, arm_of, golds, mean_bounds, mean_pass_at_k
from study.matrix import BASE_ARM, Block
from study.plots import GREY, add_note, arm_styles
from study.tables import Tables
from trl_prorl.variants import VARIANTS


BASE_STYLE = {"color": "0.55", "linestyle": "--", "linewidth": 1.6}


def draw_given_back(block: Block, tables: Tables) -> Figure | None:
    """
    Draw sampled gold at the end: a panel for each coefficient, a place for the control, for A by the steps between its
    resets, and for B, a point for each base and one for their mean, and a line for plain. Only bases that have all
    arms are shown; `None` if none has.
    """
    scores = golds(block, tables).dropna().groupby(level=0).mean()
    if scores.empty:
        return None
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    panels = figure.subplots(1, len(BETAS), sharey=True)
    for panel, beta in zip(panels, BETAS, strict=True):
        places = {"control": (f"control_beta{beta}", "control")}
        for every in sorted(RESETS, reverse=True):
            places[f"A, reset\nevery {every}"] = (arm_of(beta, every), "A")
        places["B"] = (f"B_beta_old{beta}", "B")
        panel.axhline(scores[PLAIN].mean(), label="plain", **GREY)
        for place, (arm, variant) in enumerate(places.values()):
            colour = VARIANTS[variant].colour
            panel.plot([place] * len(scores), scores[arm], ".", color=colour, markersize=5, alpha=0.5)
            panel.plot(place, scores[arm].mean(), "o", color=colour, markersize=7)
        panel.set_xticks(range(len(places)), list(places), fontsize=8)
        panel.set_title(f"β = {beta}", fontsize=9)
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("right answers at the end, sampled", fontsize=8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return add_note(figure, "Small points: bases. Large points, and the line: means over bases.")


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
    return add_note(figure, "Means over bases. Dotted: an upper bound, from the questions' chances (exploratory).")
