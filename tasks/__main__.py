"""
List tasks, or print questions of one: `trl-prorl tasks list`, `trl-prorl tasks show reverse_digits --level 2`,
`trl-prorl tasks show code --options '{"reward": "share"}'`, `trl-prorl tasks show rg:chain_sum`,
`trl-prorl tasks show roman --plugin own.py`.
"""

import argparse
import re
import sys
from contextlib import suppress

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trl_prorl.cli.ending import Parser, as_bad_input, command
from trl_prorl.tasks.base import check_dataset
from trl_prorl.tasks.plugin import load_plugin
from trl_prorl.tasks.registry import PREFIXES, option_names, task_class, task_names, task_of_recipe
from trl_prorl.text import parse_json, visible_lines


def list_tasks() -> Table:
    """Return a table of all tasks: name, first line of the docstring, its links replaced by their text, options."""
    table = Table("task", "description", "options")
    for name in [*task_names(), *(f"{prefix}:NAME" for prefix in PREFIXES)]:
        # Text, because rich would read brackets in a plain string as markup.
        line = task_class(name).__doc__.strip().splitlines()[0]
        description = Text(re.sub(r"\[([^][]+)\]\([^)]+\)", r"\1", line))
        table.add_row(name, description, ", ".join(option_names(name)))
    return table


def show_task(args: argparse.Namespace) -> Table:
    """Return a table of the first rows of a split, with the reward of the reference answer."""
    if args.plugin:
        load_plugin(args.plugin)
    task = task_of_recipe(args.name, args.level, args.options, args.path)
    table = Table("prompt", "reference answer", "its reward", title=f"{args.name}, level {task.level}, {args.split}")
    for row in check_dataset(task, task.rows(args.split, args.n)):
        shown = [Text(visible_lines(text)) for text in (row["prompt"][0]["content"], row["answer"])]
        table.add_row(*shown, f"{task.reward(task.gold(row), row):g}")
    return table


def json_object(text: str) -> dict:
    """Parse a JSON object from the command line."""
    value = None
    with suppress(ValueError):
        value = parse_json(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is not a JSON object. Example: \'{{"reward": "share"}}\'')
    return value


@command
@as_bad_input()
def main(argv: list[str]) -> None:
    """Entry point."""
    parser = Parser(
        prog="trl-prorl tasks" if sys.argv[0].startswith("trl-prorl ") else "python -m tasks",
        description="List the tasks, or print questions of one.",
    )
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("list", help="list all tasks (the default)")
    show = commands.add_parser("show", help="print questions, reference answers and their rewards")
    show.add_argument("name", help="name of the task")
    show.add_argument("--level", type=int, help="set the difficulty (default: the task's own)")
    show.add_argument("--path", help="read questions from this file or folder")
    show.add_argument(
        "--options", type=json_object, default={}, help="pass further options as JSON, like task_options in a recipe"
    )
    show.add_argument("--plugin", metavar="FILE.py", help="load a Python file that registers a task")
    show.add_argument("--split", default="train", help="choose train, validation or test (default: train)")
    show.add_argument("-n", type=int, default=3, help="print this many rows (default: 3)")
    args = parser.parse_args(argv)
    Console().print(show_task(args) if args.command == "show" else list_tasks())


if __name__ == "__main__":
    sys.exit(main())
