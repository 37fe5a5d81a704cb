"""A table for the terminal and for the page: its columns, and numbers as cells."""

import io
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from trl_prorl.eval.analysis.statistics import Estimate
from trl_prorl.text import visible


NOT_MEASURED = "–"
PIPED = 100  # columns without a terminal


def terminal() -> Console:
    """Return a console as wide as the terminal, or of 100 columns without one."""
    return Console(width=None if sys.stdout.isatty() else PIPED)


def printed(show: Callable[[Console], None]) -> str:
    """Return what a function prints on a console of 100 columns."""
    console = Console(file=io.StringIO(), width=PIPED, force_jupyter=False)
    show(console)
    return console.file.getvalue().rstrip()


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
    A table of text cells, for the page and for the terminal.

    Attributes:
        title, header, rows: The title, the headings and the cells.
        notes (`list[str]`): Paragraphs below the table.
        definitions (`list[str]`): Meanings of the columns: a list below the table, folded in the page.
        groups (`list[tuple[str, int]]`): Headings above the header, each with its number of columns; page only.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    groups: list[tuple[str, int]] = field(default_factory=list)

    def to_rich(self) -> RichTable:
        """Return the table for the terminal."""
        caption = escape(visible(" ".join(self.notes))) or None
        title = escape(visible(self.title))
        table = RichTable(title=title, caption=caption, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for place, name in enumerate(self.header):
            table.add_column(escape(visible(name)), justify="right" if place else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(escape(visible(text)) for text in row))
        return table


@dataclass(frozen=True)
class Column:
    """
    One column of a table.

    Attributes:
        heading (`str`): Its heading.
        cell (`Callable`): Returns the cell of a row.
        definition (`str`): Its meaning, for the list below the table.
        group (`str`): Heading above it and its neighbours of the same group.
    """

    heading: str
    cell: Callable[[Any], str]
    definition: str = ""
    group: str = ""


def table_of(
    title: str, columns: Sequence[Column], rows: Sequence, notes: Sequence[str] = (), definitions: Sequence[str] = ()
) -> Table:
    """
    Return the table that these columns make of any rows; further definitions follow those of the columns.
    """
    cells = [[column.cell(row) for column in columns] for row in rows]
    definitions = [*(column.definition for column in columns if column.definition), *definitions]
    groups = [(name, len(list(members))) for name, members in groupby(columns, key=lambda column: column.group)]
    if len(groups) == 1:
        groups = []
    return Table(title, [column.heading for column in columns], cells, list(notes), definitions, groups)


class Measured(dict):
    """
    The result of an evaluation: the content of the file that it wrote, displayed as tables.

    Args:
        content (`dict`): JSON values.
        tables (`Sequence[Table]`): Its tables, for the terminal.
        notes (`Sequence[str]`): Lines below the tables.
    """

    def __init__(self, content: dict, tables: Sequence[Table], notes: Sequence[str] = ()):
        super().__init__(content)
        self.tables = list(tables)
        self.notes = list(notes)

    def print(self, console: Console) -> None:
        """Print the tables on a console, and the notes."""
        for table in self.tables:
            console.print(table.to_rich())
        print_bullets(console, self.notes)

    def __repr__(self) -> str:
        return printed(self.print)
