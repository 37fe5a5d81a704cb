"""A panel: one set of axes that can stand alone on a page or beside others on a sheet."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from trl_prorl.files import replaced


PANEL_INCHES, PANEL_DPI = (5.2, 3.4), 160
PALETTE = 256
SHEET_DPI = 100
LEGEND_ROW_INCHES = 0.22
CROWDED = 6  # labels of a legend within the axes, beyond which it is set small


@dataclass(frozen=True)
class Panel:
    """
    One set of axes.

    Attributes:
        alt (`str`): What the picture shows, for readers who do not see it.
        draw (`Callable`): Draws into the axes it is given; labels what belongs into a legend, but draws none.
        rows (`int`): Rows of a panel of bars, which make it taller.
        legend_columns (`int`): Columns of the legend where the panel stands alone.
    """

    alt: str
    draw: Callable
    rows: int = 0
    legend_columns: int = 2


def panel_png(panel: Panel) -> bytes:
    """The panel alone, 832 pixels wide: large enough type where it is shown 340 pixels wide, as on a phone."""
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width, max(height, 1.2 + 0.24 * panel.rows)), dpi=PANEL_DPI, layout="constrained")
    axes = figure.subplots()
    panel.draw(axes)
    labels = axes.get_legend_handles_labels()[1]
    if labels:
        rows = -(-len(labels) // panel.legend_columns)
        figure.set_figheight(figure.get_figheight() + LEGEND_ROW_INCHES * rows)
        figure.legend(
            loc="outside lower center", ncols=panel.legend_columns, fontsize=8, frameon=False, handlelength=2.5
        )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    # A palette makes the page a third as large; the few colours of a figure lose nothing by it.
    picture, small = Image.open(buffer).convert("RGB"), io.BytesIO()
    picture.quantize(PALETTE, dither=Image.Dither.NONE).save(small, format="png")
    return small.getvalue()


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG, whole or not at all."""
    with replaced(path) as aside:
        figure.savefig(aside, format="png")


def plot_sheet(panels: list[Panel], path: Path, columns: int, footnote: str = "") -> None:
    """
    Write panels side by side as one PNG, 1600 pixels wide; a single column 800.

    Args:
        panels (`list[Panel]`): The panels, row by row.
        path (`Path`): The file.
        columns (`int`): Panels in a row.
        footnote (`str`, *optional*): Text below them.
    """
    columns = min(columns, len(panels))
    rows, width = -(-len(panels) // columns), 16 if columns > 1 else 8
    figure = Figure(figsize=(width, max(3.6, 5 / columns * 2) * rows), dpi=SHEET_DPI, layout="constrained")
    figure.supxlabel(footnote, fontsize=9, style="italic")
    all_axes = figure.subplots(rows, columns, squeeze=False).flat
    told = set()
    for place, (axes, panel) in enumerate(zip(all_axes, panels, strict=False)):
        panel.draw(axes)
        # A long legend would hide the lines, so it stands once in a row.
        told = told if place % columns else set()
        labels = {label.split(":")[0] for label in axes.get_legend_handles_labels()[1]}
        if len(labels) > CROWDED and labels <= told:
            continue
        told |= labels
        if labels := axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=8 if len(labels) <= CROWDED else 5.5, framealpha=0.5)
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    save_figure(figure, path)
