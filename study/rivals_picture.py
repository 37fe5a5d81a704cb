"""The control less each of its rivals, in one picture: does something simpler do what a KL does?"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from study.matrix import Block
from study.plots import GREY, add_note
from study.rivals import TESTED, differences
from study.tables import Tables
from trl_prorl.variants import VARIANTS


MARKS = {"gold": "o", "greedy": "s"}  # by outcome
NAMES = {"gold": "sampled (registered)", "greedy": "greedy (exploratory)"}
APART = 0.22  # of the two outcomes of a rival


def draw_rivals(blocks: Sequence[Block], tables: Tables) -> Figure | None:
    """
    Draw the control's score less each rival's, with its 95 % interval over bases: a panel for each task, a row for
    each rival, sampled filled and greedy hollow below it. `None` without differences.
    """
    found = [one for block in blocks for one in differences(block, tables)]
    if not found:
        return None
    families = list(dict.fromkeys(one.family for one in found))
    colour = VARIANTS["control"].colour
    figure = Figure(figsize=(2.5 + 3.6 * len(families), 3.6), layout="constrained")
    axes = figure.subplots(1, len(families), squeeze=False, sharex=True, sharey=True)[0]
    for panel, family in zip(axes, families, strict=True):
        panel.axvline(0, **GREY)
        for one in found:
            if one.family != family:
                continue
            value, low, high = one.contrast.estimate
            place = len(TESTED) - TESTED.index(one.rival)
            face = colour
            if one.outcome == "greedy":
                place -= APART
                face = "white"
            panel.plot([low, high], [place, place], color=colour, linewidth=1.4)
            panel.plot(value, place, MARKS[one.outcome], color=colour, markerfacecolor=face, markersize=5, zorder=3)
        panel.set_title(family, fontsize=9)
        panel.tick_params(labelsize=8)
        panel.set_xlabel("score of the control less the rival's", fontsize=8)
    axes[0].set_yticks([len(TESTED) - place for place in range(len(TESTED))], TESTED)
    for outcome, mark in MARKS.items():
        face = colour if outcome == "gold" else "white"
        axes[0].plot([], [], mark, color=colour, markerfacecolor=face, markersize=5, label=NAMES[outcome])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return add_note(figure, "Bars: 95 % t-intervals over bases. Right of 0 the control is ahead.", objective=False)
