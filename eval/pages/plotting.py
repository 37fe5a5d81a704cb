"""Drawing: panels as PNG, line styles of variants, curves over steps with marks of events."""

import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.stability import band, running_mean
from trl_prorl.run.files import replaced
from trl_prorl.run.log_files import GROWTH, GUARD_GAP, STALL
from trl_prorl.text import visible


TRAINED_COLOUR = "#0072B2"  # of the trained model in the pictures of one run
LINE_STYLES = ("-", "--", "-.", ":")  # of the lines of one colour, by position
PANEL_INCHES = (5.2, 3.4)
PANEL_DPI = 120  # 624 pixels wide: the type stays readable at 340 pixels, the width of a phone
ROW_INCHES = 0.24  # of bars
LEGEND_ROW_INCHES = 0.18
TITLE_LETTERS = 46  # in a line of a title
LETTERS = 54  # in a line of a legend
ROW_LETTERS = 30  # in a line of the label of a row
MAX_RESETS = 30  # marked resets of a curve; more would hide those of others
CAPTION = (
    f"Vertical lines: resets, in the colour of the variant (not drawn for more than {MAX_RESETS}). With several "
    "seeds, the line is their mean and the band lowest to highest, over the steps that all seeds reached."
)
EVENT_MARKS = {  # at the bottom of the axes: marker and label
    GROWTH: ("^", "rank growth"),
    GUARD_GAP: ("X", "possible reward hacking (guard_gap)"),
    STALL: ("s", "end by a stall"),
}


@dataclass(frozen=True, eq=False)
class Panel:
    """
    One set of axes.

    Attributes:
        alt (`str`): Description for readers who cannot see the picture.
        draw (`Callable`): Draws into axes, and sets labels for the legend.
        rows (`int`): Rows of bars, which make the panel taller.
    """

    alt: str
    draw: Callable
    rows: int = 0

    def png(self) -> bytes:
        buffer = io.BytesIO()
        draw_figure([self]).savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()


def draw_figure(panels: list[Panel]) -> Figure:
    """Draw panels side by side, each with its legend below it."""
    figure = Figure((PANEL_INCHES[0] * len(panels), 1.0), PANEL_DPI, layout="constrained")
    height = PANEL_INCHES[1]
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel.draw(axes)
        handles, labels = axes.get_legend_handles_labels()
        labels = [wrap(label, LETTERS) for label in labels]
        if labels:
            style = {"fontsize": 8, "frameon": False, "handlelength": 2.5}
            axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.16), **style)
        lines = sum(label.count("\n") + 1 for label in labels)
        needed = max(PANEL_INCHES[1], 1.2 + ROW_INCHES * panel.rows) + LEGEND_ROW_INCHES * lines
        height = max(height, needed)
    figure.set_figheight(height)
    return figure


def write_png(panels: list[Panel], path: Path) -> Path:
    """Write panels into one PNG file; return its path."""
    with replaced(path) as staging:
        draw_figure(panels).savefig(staging, format="png", bbox_inches="tight")
    return path


def wrap(text: str, letters: int) -> str:
    """Wrap a label of a picture; the name of a run may have no spaces to break at."""
    return textwrap.fill(visible(text).replace("$", r"\$"), letters)  # matplotlib parses `$` as mathematics


def colour_of(group: RunGroup) -> str:
    """Return the colour of its variant, lighter for each further group of that colour."""
    white = min(0.3 * group.place, 0.75)
    return to_hex(np.array(to_rgb(group.runs[0].kind.colour)) * (1 - white) + white)


def style_of(group: RunGroup) -> dict:
    return {"color": colour_of(group), "linestyle": LINE_STYLES[group.place % len(LINE_STYLES)]}


def sheets(frame: Frame) -> list[tuple[str, list[RunGroup]]]:
    """Return the groups that share axes, one set per ground, with the beginning of their titles."""
    return [(f"{title}: " if title else "", groups) for title, groups in frame.grounds.items()]


def draw_lines(axes, groups: list[RunGroup], key: str, smooth=running_mean, suffix: str = "", **style) -> None:
    """
    Draw a metric of some groups. One run: raw values faint, smoothed values strong. Several runs: mean and band of the
    smoothed runs.
    """
    for group in groups:
        series = group.series(key)
        smoothed = [line for line in map(smooth, series) if len(line)]
        if not smoothed:
            continue
        colour = colour_of(group)
        strong = smoothed[0]
        if len(group.rows) == 1:
            axes.plot(series[0].index, series[0], color=colour, linewidth=0.6, alpha=0.25)
        else:
            spread = band(smoothed)
            axes.fill_between(spread.index, spread["low"], spread["high"], color=colour, alpha=0.18, linewidth=0)
            strong = spread["mean"]
        axes.plot(
            strong.index, strong, label=f"{group.legend}{suffix}", **{"linewidth": 1.8, **style_of(group), **style}
        )


def draw_points(axes, frames: list[pd.DataFrame], label: str, style: dict) -> None:
    """
    Draw points: for one run its `mean` with the interval `low` to `high`, for several the mean and band over runs.
    """
    frame = frames[0] if len(frames) == 1 else band([points["mean"] for points in frames])
    axes.fill_between(frame.index, frame["low"], frame["high"], color=style["color"], alpha=0.15, linewidth=0)
    line = {"marker": "o", "markersize": 4, **style}
    axes.plot(frame.index, frame["mean"], linewidth=1.8, label=label, **line)


def label_steps(axes, title: str, ylabel: str, xlabel: str = "optimizer step", **properties) -> None:
    """Label axes over optimizer steps, with whole numbers of steps."""
    label_axes(axes, title, xlabel, ylabel, **properties)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def label_axes(axes, title: str, xlabel: str, ylabel: str, **properties) -> None:
    axes.set(title=wrap(title, TITLE_LETTERS), xlabel=xlabel, ylabel=ylabel, **properties)
    axes.grid(alpha=0.2)


def steps_panel(title: str, groups: list[RunGroup], draw: Callable, unit: str) -> Panel:
    """
    Return a panel over optimizer steps, drawn by `draw(axes, groups)`, with marks for resets and other events.
    """

    def whole(axes):
        draw(axes, groups)
        mark_events(axes, groups)
        label_steps(axes, title, unit)

    return Panel(f"{title} over optimizer steps", whole)


def mark_events(axes, groups: list[RunGroup]) -> None:
    """Draw resets as thin vertical lines, and other events as marks at the bottom."""
    across = axes.get_xaxis_transform()
    for group in groups:
        steps = {step for run in group.runs for step in run.reset_steps() or []}
        if 0 < len(steps) <= MAX_RESETS:
            axes.vlines(sorted(steps), 0, 1, colour_of(group), linewidth=0.8, alpha=0.6, transform=across, zorder=0)
        for event, (marker, label) in EVENT_MARKS.items():
            steps = sorted({step for run in group.runs for step in run.event_steps(event)})
            if steps:
                place = {"color": colour_of(group), "markersize": 5, "transform": across, "clip_on": False}
                axes.plot(steps, [0.0] * len(steps), marker, label=f"{group.legend}: {label}", **place)
