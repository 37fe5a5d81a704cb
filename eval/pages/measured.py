"""The result of an evaluation that is called from Python."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from trl_prorl.eval.pages.table import print_bullets, printed


class Measured(dict):
    """
    The result of an evaluation: a dictionary of JSON values that is displayed as tables.

    Args:
        content (`dict`): The content of the file that the evaluation wrote.
        tables (`Sequence[Table]`): Its tables, for the terminal.
        notes (`Sequence[str]`): Lines below the tables.
    """

    def __init__(self, content: dict, tables: Sequence[Table], notes: Sequence[str] = ()):
        super().__init__(content)
        self.tables = list(tables)
        self.notes = list(notes)

    def print(self, console: Console) -> None:
        """Print the tables on a console, and the notes."""
        for place, table in enumerate(self.tables):
            if place > 0:
                console.print()
            console.print(table)
        print_bullets(console, self.notes)

    def __repr__(self) -> str:
        return printed(self.print)
