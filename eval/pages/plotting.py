"""Drawing for reports: line styles of variants, curves over steps with event marks, panels, and picture files."""

import io
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from trl_prorl.eval.analysis.configurations import short_label
from trl_prorl.eval.analysis.frame import Frame, ReportArm
from trl_prorl.eval.analysis.stability import band, why_no_curves
from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.files import replaced
from trl_prorl.run_files import GROWTH, GUARD_GAP
from trl_prorl.text import visible
from trl_prorl.variants import VARIANTS


OTHER_COLOUR = "#7F7F7F"
LINE_STYLES = ("-", "--", "-.", ":")
# From the fifth line of a colour on. No circle, because points of some curves are circles.
MARKERS = (None, "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
PANEL_INCHES = (5.2, 3.4)
PANEL_DPI = 120
LEFT = 0.16  # share of the panel's width left of the axes; more if a label needs it
MAX_LEFT = 0.7
EDGE_PIXELS = 4  # between the longest label and the edge
TITLE_LETTERS = 48  # in a line
TITLE_LINE_INCHES = 0.2
ROW_LETTERS = 30  # in a line of the label of a row
LEGEND_ROW_INCHES = 0.17
LEGEND_EDGE_INCHES = 0.1
LEGEND_COLUMNS = 2
LEGEND_LETTERS = 64  # in a line of all columns
MAX_CURVES = 10  # on one set of axes
MAX_RESETS = 30  # marked resets of a curve
LEGEND_NOTE = "Panels without a legend share the legend of the first panel."
RESETS_NOTE = f"Vertical lines: resets, in the colour of the variant (not drawn for more than {MAX_RESETS})."
BAND_NOTE = "Line: mean over seeds; band: lowest to highest seed, over the steps that all seeds reached."
SHEETS_NOTE = (
    "Variants with the same task, starting model, length and learning rate share axes. If there are more than "
    f"{MAX_CURVES}, they are split over several panels, each with one run of plain and one of control."
)
# Other events, at the bottom of the axes: marker, label, and sentence for the caption.
EVENT_MARKS = {
    GROWTH: ("^", "rank growth", "Triangles at the bottom: the rank of the adapter grew."),
    GUARD_GAP: (
        "X",
        "possible reward hacking",
        "Crosses at the bottom: `guard_gap` fired, because accuracy (`gold`) fell while the reward did not.",
    ),
}


@dataclass(frozen=True, eq=False)
class Panel:
    """
    One set of axes.

    Attributes:
        alt (`str`): Description for readers who cannot see the picture.
        draw (`Callable`): Draws into axes and sets labels for the legend, but draws no legend.
        rows (`int`): Rows of bars, which make the panel taller.
        legend (`bool`): Whether a legend is added.
    """

    alt: str
    draw: Callable
    rows: int = 0
    legend: bool = True

    @cached_property
    def _figure(self) -> Figure:
        width, height = PANEL_INCHES
        figure = Figure((width, max(height, 1.2 + 0.24 * self.rows)), PANEL_DPI)
        canvas = FigureCanvasAgg(figure)
        axes = figure.subplots()
        self.draw(axes)
        below = _add_legend(figure, axes) if self.legend else 0.0
        titles = max(axes.get_title(loc).count("\n") for loc in ("center", "right"))
        above = 0.3 + TITLE_LINE_INCHES * titles
        figure.set_figheight(figure.get_figheight() + below + above - 0.3)
        tall = figure.get_figheight()
        # Set by hand, because matplotlib's own layout takes five times as long.
        margins = {"right": 0.98, "bottom": (below + 0.5) / tall, "top": 1 - above / tall}
        figure.subplots_adjust(LEFT, **margins)
        beyond = EDGE_PIXELS - axes.get_tightbbox(canvas.get_renderer()).x0
        if beyond > 0:
            figure.subplots_adjust(min(LEFT + beyond / figure.bbox.width, MAX_LEFT))
        canvas.draw()
        return figure

    @cached_property
    def png(self) -> bytes:
        """The panel, 624 pixels wide: the type stays readable at 340 pixels, the width of a phone."""
        canvas = FigureCanvasAgg(self._figure)
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[:, :, :3])
        # A palette reduces the page to a third of its size; a figure has few colours.
        buffer = io.BytesIO()
        picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(buffer, format="png")
        return buffer.getvalue()

    @cached_property
    def svg(self) -> str:
        """The panel as SVG, with selectable text and the same bytes for the same numbers."""
        file = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "trl-prorl"}):
            self._figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return file.getvalue()


def _add_legend(figure: Figure, axes) -> float:
    """Add a legend at the bottom, in one column if a label is too long for two; return its height in inches."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return 0.0
    columns = LEGEND_COLUMNS if max(map(len, labels)) <= LEGEND_LETTERS // LEGEND_COLUMNS else 1
    labels = [wrap(label, LEGEND_LETTERS // columns) for label in labels]
    lines = sum(label.count("\n") + 1 for label in labels)
    style = {"fontsize": 8, "frameon": False, "handlelength": 2.5}
    figure.legend(handles, labels, loc="lower center", ncols=columns, **style)
    return LEGEND_EDGE_INCHES + LEGEND_ROW_INCHES * -(-lines // columns)


def wrap(text: str, letters: int) -> str:
    """Wrap a label of a picture; the name of a run may have no spaces to break at."""
    return textwrap.fill(visible(text).replace("$", r"\$"), letters)  # matplotlib parses `$` as mathematics


def row_labels(labels: list[str]) -> tuple[list[str], int]:
    """Return the wrapped labels of rows of bars, and the number of lines of the longest."""
    wrapped = [wrap(label, ROW_LETTERS) for label in labels]
    return wrapped, max(label.count("\n") + 1 for label in wrapped)


def write_svg_sheet(panels: list[Panel], path: Path, columns: int) -> None:
    """Write panels side by side as one SVG; ids of shapes are made unique per panel."""
    parts = []
    left = 0.0
    top = 0.0
    tallest = 0.0
    width = 0.0
    for place, panel in enumerate(panels):
        if place and place % columns == 0:
            left = 0.0
            top += tallest
            tallest = 0.0
        root, body = re.search(r"<svg ([^>]*)>(.*)</svg>", panel.svg, re.DOTALL).groups()
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', root)
        panel_width, height = map(float, box.groups())
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        # Coordinates rounded to 0.01 points halve the file.
        body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), body)
        body = re.sub(r'(\bid="|"#|url\(#)', rf"\g<1>p{place}-", body)
        size = f'x="{left:g}" y="{top:g}" width="{panel_width:g}" height="{height:g}"'
        parts.append(f"<svg {size} {box[0]}>{body}</svg>")
        left += panel_width
        width = max(width, left)
        tallest = max(tallest, height)
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    size = f'width="{width:g}pt" height="{top + tallest:g}pt" viewBox="0 0 {width:g} {top + tallest:g}"'
    with replaced(path) as aside:
        aside.write_text("\n".join([f"<svg {names} {size}>", *parts, "</svg>\n"]), encoding="utf-8")


def write_sheet(panels: list[Panel], path: Path, columns: int) -> None:
    """Write panels side by side as one PNG."""
    pictures = [Image.open(io.BytesIO(panel.png)).convert("RGB") for panel in panels]
    columns = min(columns, len(pictures))
    rows = [pictures[start : start + columns] for start in range(0, len(pictures), columns)]
    width = pictures[0].width
    heights = [max(picture.height for picture in row) for row in rows]
    sheet = Image.new("RGB", (columns * width, sum(heights)), "white")
    for place, row in enumerate(rows):
        for column, picture in enumerate(row):
            sheet.paste(picture, (column * width, sum(heights[:place])))
    with replaced(path) as aside:
        sheet.save(aside, format="png")


def colour_of(run: RecordedRun | ReportArm) -> str:
    """Return the colour of its variant; grey for an unknown one."""
    return VARIANTS[run.variant].colour if run.variant in VARIANTS else OTHER_COLOUR


def style_of(arm: ReportArm) -> dict:
    """Return line properties: colour by variant, dashes and then markers by position within the colour."""
    style = {"color": colour_of(arm), "linestyle": LINE_STYLES[arm.place % len(LINE_STYLES)]}
    marker = MARKERS[arm.place // len(LINE_STYLES) % len(MARKERS)]
    if marker is not None:
        style["marker"] = marker
        style["markersize"] = 5
    return style


def run_label(run: RecordedRun) -> str:
    """Return the name of a run with the label of its variant: `control (fixed reference)`."""
    return f"{run.name} ({short_label(run.variant)})"


def sheets(frame: Frame) -> list[tuple[str, list[ReportArm]]]:
    """
    Return the variants that share axes, with the beginning of their titles: one set per ground. A ground with more
    than 10 variants is split, and its first plain and control variants are drawn in every part.
    """
    parts_of_all = []
    for title, arms in frame.grounds.items():
        first = {arm.variant: arm for arm in reversed(arms)}
        references = [first[variant] for variant in ("plain", "control") if variant in first]
        parts = [arms[start : start + MAX_CURVES] for start in range(0, len(arms), MAX_CURVES)]
        for number, part in enumerate(parts, start=1):
            others = [arm for arm in references if arm not in part]
            words = [title] if title else []
            if len(parts) > 1:
                words.append(f"{number} of {len(parts)}")
            beginning = f"{', '.join(words)}: " if words else ""
            parts_of_all.append((beginning, [*others, *part]))
    return parts_of_all


def curve_sheets(frame: Frame) -> list[tuple[str, list[ReportArm]]]:
    """Return [`sheets`] with only the runs that have curves to draw."""
    found = []
    for beginning, arms in sheets(frame):
        alive = arms_with_curves(arms)
        if alive:
            found.append((beginning, alive))
    return found


def arms_with_curves(arms: list[ReportArm]) -> list[ReportArm]:
    """Return the variants without runs of too few steps: the mean over seeds would end at these."""
    alive = [replace(arm, rows=[row for row in arm.rows if why_no_curves(row.run) is None]) for arm in arms]
    return [arm for arm in alive if arm.rows]


def caption(frame: Frame, text: str) -> str:
    """
    Return the caption of curves over steps: a text, then the meaning of the marks and, with several seeds, of the
    bands.
    """
    notes = [text, LEGEND_NOTE, RESETS_NOTE]
    for event, (_, _, note) in EVENT_MARKS.items():
        if any(run.event_steps(event) for run in frame.runs):
            notes.append(note)
    if any(len(arm.rows) > 1 for arm in frame.arms):
        notes.append(BAND_NOTE)
    return " ".join(notes)


def draw_lines(
    axes, arms: list[ReportArm], key_of: Callable, smooth=lambda values: values, suffix="", **style
) -> None:
    """
    Draw a metric of some variants; its key may depend on the variant. One run: raw values faint, smoothed values
    strong. Several runs: mean and band of the smoothed runs.
    """
    for arm in arms:
        series = arm.series(key_of(arm.variant))
        smoothed = [line for line in map(smooth, series) if len(line)]
        if not smoothed:
            continue
        colour = colour_of(arm)
        strong = smoothed[0]
        if len(arm.rows) == 1:
            axes.plot(series[0].index, series[0], color=colour, linewidth=0.6, alpha=0.25)
        else:
            spread = band(smoothed)
            axes.fill_between(spread.index, spread["low"], spread["high"], color=colour, alpha=0.18, linewidth=0)
            strong = spread["mean"]
        line = {"linewidth": 1.8, "markevery": 0.1, **style_of(arm), **style}
        axes.plot(strong.index, strong, label=f"{arm.legend}{suffix}", **line)


def draw_points(axes, frames: list[pd.DataFrame], label: str, style: dict) -> None:
    """
    Draw points: for one run its `mean` with the interval `low` to `high`, for several the mean and band over runs.
    """
    frame = frames[0] if len(frames) == 1 else band([each["mean"] for each in frames])
    axes.fill_between(frame.index, frame["low"], frame["high"], color=style["color"], alpha=0.15, linewidth=0)
    line = {"marker": "o", "markersize": 4, **style}
    axes.plot(frame.index, frame["mean"], linewidth=1.8, label=label, **line)


def steps_panel(title: str, arms: list[ReportArm], draw: Callable, unit: str, legend: bool = True) -> Panel:
    """
    Return a panel over optimizer steps, drawn by `draw(axes, arms)`, with marks for resets and other events.
    """

    def whole(axes):
        draw(axes, arms)
        if not axes.lines:
            say_not_measured(axes)
        mark_events(axes, arms)
        axes.grid(alpha=0.2)
        axes.set_title(wrap(title, TITLE_LETTERS), y=1.0)  # a fixed place, which matplotlib need not search for
        axes.set(xlabel="optimizer step", ylabel=unit)

    return Panel(f"{title} over optimizer steps", whole, legend=legend)


def say_not_measured(axes) -> None:
    axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=OTHER_COLOUR)


def mark_events(axes, arms: list[ReportArm]) -> None:
    """
    Draw resets as thin vertical lines, and other events as marks at the bottom. More than 30 resets of one variant
    would hide those of others.
    """
    across = axes.get_xaxis_transform()
    for arm in arms:
        steps = sorted({step for run in arm.runs for step in run.reset_steps() or []})
        if 0 < len(steps) <= MAX_RESETS:
            axes.vlines(steps, 0, 1, colour_of(arm), linewidth=0.8, alpha=0.6, transform=across, zorder=0)
    for event, (marker, label, _) in EVENT_MARKS.items():
        for arm in arms:
            steps = sorted({step for run in arm.runs for step in run.event_steps(event)})
            if steps:
                place = {"color": colour_of(arm), "markersize": 5, "transform": across, "clip_on": False}
                axes.plot(steps, [0.0] * len(steps), marker, label=label, **place)
                label = None  # once


def symlog_threshold(series: list[pd.Series]) -> float:
    """Return where a KL axis becomes linear: at the smallest positive values, because a reset sets the KL to 0."""
    positive = [values[values > 0] for values in series]
    smallest = [values.quantile(0.05) for values in positive if len(values)]
    return max(min(smallest, default=1e-6), 1e-12)
