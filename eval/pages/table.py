"""A table for the terminal, for markdown and for the page, and the columns that it is made of."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from trl_prorl.text import visible, without_html


def print_bullets(console: Console, lines: Iterable[str]) -> None:
    """A list on a terminal; nothing in a line acts there."""
    for line in lines:
        console.print(f"- {visible(line)}", markup=False, highlight=False)


@dataclass
class Table:
    """
    Cells as text: rendered as GitHub markdown and HTML in the report and by rich in the terminal.

    Attributes:
        notes (`list[str]`): Paragraphs below the table.
        definitions (`list[str]`): What the columns mean, one each; a list below the table, folded in HTML.
        groups (`list[tuple[str, int]]`): Headings over the header, each with the number of columns below it; HTML
            only.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    groups: list[tuple[str, int]] = field(default_factory=list)

    def to_markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        cells = ([without_html(visible(cell)).replace("|", "\\|") for cell in line] for line in lines)
        table = "\n".join("| " + " | ".join(line) + " |" for line in cells)
        definitions = "\n".join(f"- {without_html(visible(line))}" for line in self.definitions)
        notes = [without_html(visible(note)) for note in self.notes]
        return "\n\n".join(filter(None, [table, *notes, definitions]))

    def to_rich(self, narrow: bool = False) -> RichTable:
        """
        Args:
            narrow (`bool`, *optional*, defaults to `False`): For 80 columns: no frame, everything to the right, and
                only the first column folds.
        """
        caption = escape(visible(" ".join(self.notes))) or None
        table = RichTable(title=escape(visible(self.title)), caption=caption, caption_justify="left")
        if narrow:
            table.show_edge = table.pad_edge = False
        for place, name in enumerate(self.header):
            layout = {"overflow": "fold"} if place == 0 else {"no_wrap": True}
            table.add_column(escape(visible(name)), **({"justify": "right", **layout} if narrow else {}))
        for row in self.rows:
            cells = [text.split("\n") if narrow else [text] for text in row]
            table.add_row(*("\n".join(escape(visible(line)) for line in lines) for lines in cells))
        return table


@dataclass(frozen=True)
class Column:
    """
    Everything that there is to say of one column.

    Attributes:
        heading (`str` or `Callable`): What stands above it; a function of all rows where they decide.
        cell (`Callable`): The text for one row.
        definition (`str`): What it means, for the list below the table.
        group (`str`): Heading over it and its neighbours of the same group; HTML only.
        shown (`Callable`, *optional*): Whether it is a column of these rows; by default always.
    """

    heading: str | Callable[[Sequence], str]
    cell: Callable[[Any], str]
    definition: str = ""
    group: str = ""
    shown: Callable[[Sequence], bool] = lambda rows: True


def table_of(
    title: str, columns: Sequence[Column], rows: Sequence, notes: Sequence[str] = (), definitions: Sequence[str] = ()
) -> Table:
    """
    The table whose cells the columns take from the rows.

    Args:
        title (`str`): Its title.
        columns (`Sequence[Column]`): From left to right.
        rows (`Sequence`): Whatever the columns' cells are made from, from top to bottom.
        notes (`Sequence[str]`): Paragraphs below the table.
        definitions (`Sequence[str]`): Further definitions, after the columns' own.
    """
    columns = [column for column in columns if column.shown(rows)]
    groups = [(name, len(list(members))) for name, members in groupby(columns, key=lambda column: column.group)]
    return Table(
        title,
        [column.heading(rows) if callable(column.heading) else column.heading for column in columns],
        [[column.cell(row) for column in columns] for row in rows],
        list(notes),
        [*(column.definition for column in columns if column.definition), *definitions],
        groups if any(name for name, _ in groups) else [],
    )
