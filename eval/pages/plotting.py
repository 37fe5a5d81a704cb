"""Drawing for reports: line styles of variants, curves over steps with event marks, panels, and picture files."""

import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from trl_prorl.eval.analysis.frame import MIN_STEPS, Frame, RunGroup
from trl_prorl.eval.analysis.stability import band, running_mean
from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.run.files import replaced
from trl_prorl.run.log_files import GROWTH, GUARD_GAP, STALL
from trl_prorl.text import visible


TRAINED_COLOUR = "#0072B2"  # of the trained model in the pictures of one run
# The lines of one colour, by position: its shade (below 0 towards black, above 0 towards white) and its dashes.
SHADES = (0.0, -0.4, 0.55, -0.7)
LINE_STYLES = ("-", "--", "-.", ":")
# From the fifth line of a colour on. No circle, because points of some curves are circles.
MARKERS = (None, "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
PANEL_INCHES = (5.2, 3.4)
PANEL_DPI = 120  # 624 pixels wide: the type stays readable at 340 pixels, the width of a phone
ROW_INCHES = 0.24  # of bars
# At most so many steps between ticks, and no 0.0025: beside long names there is no room for more.
FEW_TICKS = {"nbins": 4, "steps": [1, 2, 5, 10]}
TITLE_LETTERS = 48  # in a line
ROW_LETTERS = 30  # in a line of the label of a row
LEGEND_ROW_INCHES = 0.18
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
        "Crosses at the bottom: `guard_gap` fired, because accuracy fell while the reward did not.",
    ),
    STALL: ("s", "end by a stall", "Squares at the bottom: `stop_stall` ended the run."),
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

    def draw_into(self, figure: Figure | SubFigure) -> float:
        """Draw the panel, with its legend below it; return the height that it needs, in inches."""
        axes = figure.subplots()
        self.draw(axes)
        height = max(PANEL_INCHES[1], 1.2 + ROW_INCHES * self.rows)
        handles, labels = axes.get_legend_handles_labels()
        if not self.legend or not labels:
            return height
        columns = LEGEND_COLUMNS if max(map(len, labels)) <= LEGEND_LETTERS // LEGEND_COLUMNS else 1
        labels = [wrap(label, LEGEND_LETTERS // columns) for label in labels]
        style = {"fontsize": 8, "frameon": False, "handlelength": 2.5}
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, **style)
        lines = sum(label.count("\n") + 1 for label in labels)
        return height + LEGEND_ROW_INCHES * -(-lines // columns)


@dataclass(frozen=True, eq=False)
class Picture:
    """
    A picture: one file next to the markdown; in the page its panels one by one, which fold to one column.

    Attributes:
        file (`str`): Name of the PNG.
        alt (`str`): Description for readers who cannot see it.
        caption (`str`): Text below it.
        panels (`list[Panel]`): Its panels.
        columns (`int`): Panels in a row if there is room.
    """

    file: str
    alt: str
    caption: str
    panels: list[Panel]
    columns: int = 2

    @cached_property
    def figure(self) -> Figure:
        columns = min(self.columns, len(self.panels))
        rows = -(-len(self.panels) // columns)
        figure = Figure((PANEL_INCHES[0] * columns, 1.0), PANEL_DPI, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.0, hspace=0.0)
        grid = figure.add_gridspec(rows, columns)
        heights = [0.0] * rows
        for place, panel in enumerate(self.panels):
            row, column = divmod(place, columns)
            heights[row] = max(heights[row], panel.draw_into(figure.add_subfigure(grid[row, column])))
        grid.set_height_ratios(heights)
        figure.set_figheight(sum(heights))
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # which would be computed again for each file
        return figure

    @cached_property
    def image(self) -> Image.Image:
        canvas = FigureCanvasAgg(self.figure)
        canvas.draw()
        return Image.fromarray(np.asarray(canvas.buffer_rgba())[:, :, :3])

    def panel_pngs(self) -> list[bytes]:
        """Return each panel as a PNG."""
        pngs = []
        for panel in self.figure.subfigs:
            left, bottom, right, top = panel.bbox.extents
            height = self.image.height
            picture = self.image.crop((round(left), round(height - top), round(right), round(height - bottom)))
            buffer = io.BytesIO()
            # A palette reduces the page to a third of its size; a figure has few colours.
            picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(buffer, format="png")
            pngs.append(buffer.getvalue())
        return pngs

    def write_png(self, folder: Path) -> Path:
        """Write the PNG into a folder; return the file."""
        with replaced(folder / self.file) as staging:
            self.image.save(staging, format="png")
        return folder / self.file

    def paths(self, folder: Path) -> tuple[Path, Path]:
        """Return the files that [`Picture.write`] makes."""
        path = folder / self.file
        return path, path.with_suffix(".svg")

    def write(self, folder: Path) -> None:
        """Write the PNG and the same picture as SVG, with selectable text, into a folder."""
        self.write_png(folder)
        _, path = self.paths(folder)
        # The same bytes for the same numbers.
        with replaced(path) as staging, rc_context({"svg.fonttype": "none", "svg.hashsalt": "trl-prorl"}):
            self.figure.savefig(staging, format="svg", metadata={"Date": None, "Creator": None})


def wrap(text: str, letters: int) -> str:
    """Wrap a label of a picture; the name of a run may have no spaces to break at."""
    return textwrap.fill(visible(text).replace("$", r"\$"), letters)  # matplotlib parses `$` as mathematics


def bars_panel(title: str, alt: str, labels: list[str], xlabel: str, draw: Callable, lines: int = 1) -> Panel:
    """Return a panel with a labelled row of at least so many lines for each label, drawn by `draw(axes)`."""
    wrapped = [wrap(label, ROW_LETTERS) for label in labels]

    def whole(axes):
        draw(axes)
        axes.set_yticks(range(len(labels)), wrapped)
        axes.set_title(title, loc="right")
        axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel=xlabel)
        axes.xaxis.set_major_locator(MaxNLocator(**FEW_TICKS))
        axes.grid(alpha=0.2)

    tallest = max(label.count("\n") + 1 for label in wrapped)
    return Panel(alt, whole, max(lines, tallest) * len(labels))


def colour_of(group: RunGroup) -> str:
    """Return the colour of its variant, grey for an unknown one, in the shade of its position within the colour."""
    return shade(group.runs[0].kind.colour, group.place)


def shade(colour: str, place: int) -> str:
    """Return the shade of a colour for its line number `place`; those of a dark colour are all lighter."""
    amount = SHADES[place % len(SHADES)]
    parts = np.array(to_rgb(colour))
    if amount < 0 and parts.max() > 0.4:
        return to_hex(parts * (1 + amount))
    return to_hex(parts + (1 - parts) * abs(amount)).upper()


def style_of(group: RunGroup) -> dict:
    """Return line properties: shade and dashes, and then markers, by position within the colour of the variant."""
    style = {"color": colour_of(group), "linestyle": LINE_STYLES[group.place % len(LINE_STYLES)]}
    marker = MARKERS[group.place // len(LINE_STYLES) % len(MARKERS)]
    if marker is not None:
        style["marker"] = marker
        style["markersize"] = 5
    return style


def run_label(run: RecordedRun) -> str:
    """Return the name of a run with the label of its variant: `control (fixed reference)`."""
    return f"{run.name} ({run.kind.short})"


def sheets(frame: Frame) -> list[tuple[str, list[RunGroup]]]:
    """
    Return the groups that share axes, with the beginning of their titles: one set per ground. A ground with more than
    10 groups is split, and its first plain and control groups are drawn in every part.
    """
    found = []
    for title, groups in frame.grounds.items():
        first = {group.variant: group for group in reversed(groups)}
        references = [first[variant] for variant in ("plain", "control") if variant in first]
        parts = [groups[start : start + MAX_CURVES] for start in range(0, len(groups), MAX_CURVES)]
        for number, part in enumerate(parts, start=1):
            others = [group for group in references if group not in part]
            words = [title] if title else []
            if len(parts) > 1:
                words.append(f"{number} of {len(parts)}")
            beginning = f"{', '.join(words)}: " if words else ""
            found.append((beginning, [*others, *part]))
    return found


def curve_sheets(frame: Frame) -> list[tuple[str, list[RunGroup]]]:
    """Return [`sheets`] with only the runs that have curves to draw."""
    found = [(beginning, with_curves(groups)) for beginning, groups in sheets(frame)]
    return [(beginning, groups) for beginning, groups in found if groups]


def with_curves(groups: list[RunGroup]) -> list[RunGroup]:
    """Return the groups without runs of too few steps: the mean over seeds would end at these."""
    long = [replace(group, rows=[row for row in group.rows if len(row.run.metrics) >= MIN_STEPS]) for group in groups]
    return [group for group in long if group.rows]


def caption(frame: Frame, text: str) -> str:
    """
    Return the caption of curves over steps: a text, then the meaning of the marks and, with several seeds, of the
    bands.
    """
    notes = [text, LEGEND_NOTE, RESETS_NOTE]
    for event, (_, _, note) in EVENT_MARKS.items():
        if any(run.event_steps(event) for run in frame.runs):
            notes.append(note)
    if any(len(group.rows) > 1 for group in frame.groups):
        notes.append(BAND_NOTE)
    return " ".join(notes)


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
        line = {"linewidth": 1.8, "markevery": 0.1, **style_of(group), **style}
        axes.plot(strong.index, strong, label=f"{group.legend}{suffix}", **line)


def draw_points(axes, frames: list[pd.DataFrame], label: str, style: dict) -> None:
    """
    Draw points: for one run its `mean` with the interval `low` to `high`, for several the mean and band over runs.
    """
    frame = frames[0] if len(frames) == 1 else band([each["mean"] for each in frames])
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


def steps_panel(title: str, groups: list[RunGroup], draw: Callable, unit: str, legend: bool = True) -> Panel:
    """
    Return a panel over optimizer steps, drawn by `draw(axes, groups)`, with marks for resets and other events.
    """

    def whole(axes):
        draw(axes, groups)
        mark_events(axes, groups)
        label_steps(axes, title, unit)

    return Panel(f"{title} over optimizer steps", whole, legend=legend)


def mark_events(axes, groups: list[RunGroup]) -> None:
    """
    Draw resets as thin vertical lines, and other events as marks at the bottom. More than 30 resets of one variant
    would hide those of others.
    """
    across = axes.get_xaxis_transform()
    for group in groups:
        steps = {step for run in group.runs for step in run.reset_steps() or []}
        if 0 < len(steps) <= MAX_RESETS:
            axes.vlines(sorted(steps), 0, 1, colour_of(group), linewidth=0.8, alpha=0.6, transform=across, zorder=0)
    for event, (marker, label, _) in EVENT_MARKS.items():
        for group in groups:
            steps = sorted({step for run in group.runs for step in run.event_steps(event)})
            if steps:
                place = {"color": colour_of(group), "markersize": 5, "transform": across, "clip_on": False}
                axes.plot(steps, [0.0] * len(steps), marker, label=label, **place)
                label = None  # once
