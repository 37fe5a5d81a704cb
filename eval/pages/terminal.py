"""Sentences of a report on a terminal."""

from collections.abc import Iterable

from rich.console import Console

from trl_prorl.shown import visible


def print_bullets(console: Console, lines: Iterable[str]) -> None:
    """A list; nothing in a line acts on the terminal."""
    for line in lines:
        console.print(f"- {visible(line)}", markup=False, highlight=False)
