"""Look at the tasks: `python -m tasks list`, `python -m tasks show reverse_digits --level 2`."""

import argparse
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .registry import get_task, task_class, task_names


def list_tasks() -> Table:
    """A table of the tasks: name and first line of the docstring."""
    table = Table("task", "what it asks")
    for name in task_names():
        # Text, because rich would read brackets in a plain string as markup.
        table.add_row(name, Text(task_class(name).__doc__.strip().splitlines()[0]))
    return table


def show_task(name: str, options: dict, split: str, n: int) -> Table:
    """A table of the first `n` rows of a split, with the reward of the gold answer."""
    task = get_task(name, **options)
    table = Table("prompt", "answer", "reward of the gold answer", title=f"{name}, level {task.level}, {split}")
    for row in task.rows(split, n):
        table.add_row(Text(row["prompt"][0]["content"]), Text(row["answer"]), f"{task.reward(task.gold(row), row):g}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks", description="Look at the tasks.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the tasks")
    show = commands.add_parser("show", help="print some rows of a task")
    show.add_argument("name")
    show.add_argument("--level", type=int, help="difficulty; the task's own default if left out")
    show.add_argument("--split", default="train")
    show.add_argument("-n", type=int, default=3, help="number of rows")
    args = parser.parse_args()
    if args.command == "list":
        Console().print(list_tasks())
        return
    try:
        options = {} if args.level is None else {"level": args.level}
        Console().print(show_task(args.name, options, args.split, args.n))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
