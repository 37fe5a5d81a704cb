"""`trl-prorl COMMAND ...`: the commands of this project, from any directory."""

import sys
from importlib import import_module

from . import __version__
from .cli.ending import BAD_INPUT, DEBUG, NOTHING_CHANGED, in_one_line
from .cli.shipped_recipes import recipe_list
from .text import nearest


# Command: its module in `trl_prorl`, imported when the command runs, and its line in the help.
COMMANDS = {
    "train": ("cli.command_line", "train a recipe; without one, list the shipped recipes"),
    "demo": ("cli.demo", "train five variants on a CPU and compare them (6 to 10 minutes)"),
    "smollm2": ("embedded.smollm2", "install SmolLM2-135M, a pretrained language model (once)"),
    "preflight": ("eval.preflight", "check before training: can a recipe learn, does it fit, how long?"),
    "passk": ("eval.passk", "evaluate held-out pass@k, before and after training"),
    "report": ("eval.report", "write one page that compares several runs"),
    "why": ("eval.why", "say why a run does not learn: step, evidence, cure"),
    "drift": ("eval.drift", "measure the KL to the starting model"),
    "compare": ("eval.compare", "test whether runs differ significantly in pass@k"),
    "branch": ("eval.branch", "try continuations of a run from a checkpoint, such as a reset"),
    "push": ("eval.push", "upload a run to the Hugging Face Hub"),
    "tasks": ("tasks.__main__", "list the tasks, and show rows of one"),
    "env": ("cli.environment", "print versions and hardware, for a bug report"),
}


def help_text() -> str:
    lines = ["usage: trl-prorl COMMAND [--OPTION VALUE ...]", ""]
    for name, (_, summary) in COMMANDS.items():
        lines.append(f"  {name:<12}{summary}")
    lines += ["", "`trl-prorl COMMAND --help` lists all options of a command; `--debug` shows tracebacks."]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run a command, by default the process's. Returns the exit code; 2: no such command."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with in_one_line(NOTHING_CHANGED, debug=DEBUG in argv):
        return run(argv)


def run(argv: list[str]) -> int:
    """Returns the exit code."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if argv[0] == "--version":
        print(f"trl-prorl {__version__}")
        return 0
    name, *arguments = argv
    if name not in COMMANDS:
        print(f"error: {name!r} is not a command{nearest(name, COMMANDS)}: {', '.join(COMMANDS)}.", file=sys.stderr)
        return BAD_INPUT
    if argv == ["train"]:
        print(recipe_list())
        return 0
    sys.argv = [f"trl-prorl {name}", *arguments]
    module = COMMANDS[name][0]
    if module.startswith("eval."):
        import_module("trl_prorl.eval.command_lines").check_arguments(module.removeprefix("eval."))
    return import_module(f"trl_prorl.{module}").main() or 0
