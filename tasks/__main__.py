"""
Look at the tasks: `trl-prorl tasks list`, `trl-prorl tasks show reverse_digits --level 2`,
`trl-prorl tasks show code --options '{"reward": "share"}'`, `trl-prorl tasks show rg:chain_sum`,
`trl-prorl tasks show roman --plugin own.py`.
"""

import argparse
import functools
import json
import re
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trl_prorl.ending import command
from trl_prorl.tasks.base import check_dataset
from trl_prorl.tasks.plugin import load_plugin
from trl_prorl.tasks.registry import PREFIXES, get_task, task_class, task_names


def list_tasks() -> Table:
    """Return a table of the tasks: name and first line of the docstring, its links as their text."""
    table = Table("task", "what it asks")
    for name in [*task_names(), *(f"{prefix}:NAME" for prefix in PREFIXES)]:
        # Text, because rich would read brackets in a plain string as markup.
        line = task_class(name).__doc__.strip().splitlines()[0]
        table.add_row(name, Text(re.sub(r"\[([^][]+)\]\([^)]+\)", r"\1", line)))
    return table


def show_task(name: str, options: dict, split: str, n: int) -> Table:
    """Return a table of the first `n` rows of a split, with the reward of the gold answer."""
    task = get_task(name, **options)
    table = Table("prompt", "answer", "reward of the gold answer", title=f"{name}, level {task.level}, {split}")
    for row in check_dataset(task, task.rows(split, n)):
        table.add_row(Text(row["prompt"][0]["content"]), Text(row["answer"]), f"{task.reward(task.gold(row), row):g}")
    return table


def json_object(text: str) -> dict:
    """Return a JSON object from the command line."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no object; write it as in \'{{"reward": "share"}}\'')
    return value


@functools.partial(command, bad_input=ValueError)
def main(argv: list[str]) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="trl-prorl tasks" if sys.argv[0].startswith("trl-prorl ") else "python -m tasks",
        description="Look at the tasks.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the tasks")
    show = commands.add_parser("show", help="print some rows of a task")
    show.add_argument("name")
    show.add_argument("--level", type=int, help="difficulty; the task's own default if left out")
    show.add_argument("--path", help="file or folder, of a task that reads one")
    show.add_argument(
        "--options", type=json_object, default={}, help="further options, as JSON: a recipe's task_options"
    )
    show.add_argument("--plugin", metavar="FILE.py", help="a file of yours that registers a task")
    show.add_argument("--split", default="train")
    show.add_argument("-n", type=int, default=3, help="number of rows")
    look(parser.parse_args(argv))


def look(args: argparse.Namespace) -> None:
    """Print the table that the command line asks for."""
    if args.command == "list":
        Console().print(list_tasks())
        return
    if args.plugin:
        load_plugin(args.plugin)
    options = dict(args.options)
    for key in ("level", "path"):
        value = getattr(args, key)
        if value is not None:
            options[key] = value
    Console().print(show_task(args.name, options, args.split, args.n))


if __name__ == "__main__":
    sys.exit(main())
