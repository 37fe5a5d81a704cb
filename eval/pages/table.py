"""A table for the terminal, for markdown and for the page: its columns, and numbers as cells."""

import io
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.text import visible, without_html


NOT_MEASURED = "–"
PIPED = 100  # columns without a terminal
POWER = "80 % power"  # of a detectable difference


def terminal() -> Console:
    """Return a console as wide as the terminal, or of 100 columns without one."""
    return Console(width=_columns())


def printed(show: Callable[[Console], None]) -> str:
    """Return what a function prints on such a console."""
    console = Console(file=io.StringIO(), width=_columns(), force_jupyter=False)
    show(console)
    return console.file.getvalue().rstrip()


def _columns() -> int:
    return shutil.get_terminal_size((PIPED, 24)).columns


def cell(value: float | None, spec: str) -> str:
    """Return a number in the given format; an en dash if it was not measured."""
    return NOT_MEASURED if value is None or math.isnan(value) else format(value, spec)


def interval_cell(estimate: Estimate | None, spec: str) -> str:
    """Return `value [low, high]`, `value (n/a)` without an interval, or an en dash."""
    if estimate is None:
        return NOT_MEASURED
    value, low, high = estimate
    return f"{value:{spec}} (n/a)" if math.isnan(low) else f"{value:{spec}} [{low:{spec}}, {high:{spec}}]"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def mean_cell(values: list[float], spec: str) -> str:
    """Return the mean of the values, or a dash if there are none."""
    return format(sum(values) / len(values), spec) if values else NOT_MEASURED


def arrow_cell(values: list[float | None], spec: str) -> str:
    """Return `base → trained`, or a dash if either is missing."""
    return NOT_MEASURED if None in values else f"{values[0]:{spec}} → {values[1]:{spec}}"


def sides_cell(base: Estimate | None, trained: Estimate | None, spec: str) -> str:
    """Return `base → trained [low, high]`, or a dash if either is missing."""
    if base is None or trained is None:
        return NOT_MEASURED
    return f"{cell(base.value, spec)} → {interval_cell(trained, spec)}"


def print_bullets(console: Console, lines: Iterable[str]) -> None:
    """Print a list, a line each, so that commands can be copied; markup and control characters have no effect."""
    for line in lines:
        console.print(f"- {visible(line)}", markup=False, highlight=False, soft_wrap=True)


@dataclass
class Table:
    """
    A table of text cells, rendered as GitHub markdown and HTML in the report and by rich in the terminal.

    Attributes:
        title, header, rows: The title, the headings and the cells.
        notes (`list[str]`): Paragraphs below the table.
        definitions (`list[str]`): Meanings of the columns: a list below the table, folded in HTML.
        groups (`list[tuple[str, int]]`): Headings above the header, each with its number of columns; HTML only.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    groups: list[tuple[str, int]] = field(default_factory=list)

    def to_markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        # A pipe ends a cell, even within code; behind a backslash of the text it could not be escaped.
        cells = [
            [without_html(visible(cell).replace("\\|", "\\ |")).replace("|", "\\|") for cell in line] for line in lines
        ]
        table = "\n".join("| " + " | ".join(line) + " |" for line in cells)
        definitions = "\n".join(f"- {without_html(visible(line))}" for line in self.definitions)
        notes = [without_html(visible(note)) for note in self.notes]
        return "\n\n".join(filter(None, [table, *notes, definitions]))

    def to_rich(self, narrow: bool = False) -> RichTable:
        """
        Return the table for the terminal. With `narrow` it fits 80 columns: no frame, right-aligned, and only the
        first column wraps.
        """
        caption = escape(visible(" ".join(self.notes))) or None
        title = visible(self.title)
        whole = len(title) <= _columns()
        title = Text(title, "table.title", no_wrap=whole, overflow="ignore" if whole else None)
        table = RichTable(title=title, caption=caption, caption_justify="left")
        if narrow:
            table.show_edge = table.pad_edge = False
        for place, name in enumerate(self.header):
            layout = {"overflow": "fold"} if place == 0 else {"no_wrap": narrow}  # two long names differ at their ends
            table.add_column(escape(visible(name)), justify="right" if narrow else "left", **layout)
        for row in self.rows:
            cells = [text.split("\n") if narrow else [text] for text in row]
            table.add_row(*("\n".join(escape(visible(line)) for line in lines) for lines in cells))
        return table


@dataclass(frozen=True)
class Column:
    """
    One column of a table.

    Attributes:
        heading (`str` or `Callable`): Its heading, or a function of the rows that returns it.
        cell (`Callable`): Returns the cell of a row.
        definition (`str`): Its meaning, for the list below the table.
        group (`str`): Heading above it and its neighbours of the same group.
        applies (`Callable`): Returns whether the table has this column for the given rows.
    """

    heading: str | Callable[[Sequence], str]
    cell: Callable[[Any], str]
    definition: str = ""
    group: str = ""
    applies: Callable[[Sequence], bool] = lambda rows: True


def table_of(
    title: str, columns: Sequence[Column], rows: Sequence, notes: Sequence[str] = (), definitions: Sequence[str] = ()
) -> Table:
    """
    Return the table that these columns make of any rows; further definitions follow those of the columns.
    """
    shown = [column for column in columns if column.applies(rows)]
    header = []
    all_definitions = []
    for column in shown:
        heading = column.heading
        if callable(heading):
            heading = heading(rows)
        header.append(heading)
        if column.definition:
            all_definitions.append(column.definition)
    all_definitions += definitions
    cells = [[column.cell(row) for column in shown] for row in rows]
    groups = [(name, len(list(members))) for name, members in groupby(shown, key=lambda column: column.group)]
    if not any(name for name, _ in groups):
        groups = []
    return Table(title, header, cells, list(notes), all_definitions, groups)
