"""
The command lines of `eval`, a function for each command: options, and checks that need no model. The entry points
import this first, so it imports nothing slow.
"""

import argparse
import operator
import os
import sys
from pathlib import Path

from trl_prorl.cli.command_line import check_arguments as check_training
from trl_prorl.cli.command_line import recipe_name
from trl_prorl.cli.ending import NOTHING_CHANGED, Parser, announce, as_bad_input
from trl_prorl.errors import InputError
from trl_prorl.eval.command import command, program_name
from trl_prorl.eval.run_folder.reading import (
    add_run_option,
    find_recorded_runs,
    find_run_folders,
    in_brackets,
    load_config,
)
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.tasks.plugin import load_plugin
from trl_prorl.text import LICENSE, short


MAX_SAMPLES = 256
MAX_PROMPTS = 100_000
MAX_COUNT = 2**53
MAX_TEMPERATURE = 1e6
PROMPTS = 32  # of a preflight
MIN_PREFLIGHT_PROMPTS = 2
RUNS_HELP = "run folders, folders of runs, or quoted globs"


def check_arguments(name: str) -> None:
    """
    Parse the command line of `eval.NAME` before its imports; end the process after `--help` or an error, else announce
    the command.
    """
    parse = globals().get(name)
    if parse is not None:

        def parse_and_announce(argv) -> None:
            announce(first_line(name, parse(argv)))

        code = command(parse_and_announce, kept=NOTHING_CHANGED)()
        if code:
            sys.exit(code)


def first_line(name: str, parsed) -> str:
    """Return the line that announces `eval.NAME`, from its command line."""
    if name == "preflight":
        what = recipe_name(parsed[1])
    else:
        one = getattr(parsed, "model", None) or getattr(parsed, "run", "this machine")
        runs = getattr(parsed, "runs", None) or [one]
        what = str(runs[0])
        if len(runs) > 1:
            what += f" and {len(runs) - 1} more"
    return f"{name.replace('_', '-')}: {what}. Importing libraries ..."


class Plugin(argparse.Action):
    """`--plugin FILE`, loaded when it is parsed."""

    def __call__(self, parser, namespace, values, option_string=None):
        load_plugin(values, may_have_rows=True)


def add_plugin_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin", action=Plugin, metavar="FILE.py", help="load your own file with the run's task, or its rows"
    )


def _find_runs(args: argparse.Namespace) -> argparse.Namespace:
    for name in getattr(args, "others", []):
        TaskName.parse(name)
    args.runs = find_run_folders(args.runs)
    return args


def check_sampling(
    prompts: int | None,
    temperature: float | None,
    max_new_tokens: int | None,
    batch_size: int,
    seed: int,
    samples: int = 1,
) -> None:
    """
    Check the settings of every evaluation that samples; `None` is the default. What a result may hold is read again.

    Raises:
        InputError: With the option, its value and the cure.
    """
    least = {"--batch-size": (batch_size, 1), "--max-new-tokens": (max_new_tokens, 1), "--samples": (samples, 1)}
    for option, (value, minimum) in {"--prompts": (prompts, 2), **least}.items():
        if value is not None and value < minimum:
            raise InputError(f"{option} must be at least {minimum}, not {value}")
    most = {"--prompts": (prompts, MAX_PROMPTS), "--max-new-tokens": (max_new_tokens, MAX_COUNT)}
    for option, (value, maximum) in most.items():
        if value is not None and value > maximum:
            raise InputError(f"{option} must be at most {maximum}, not {value}")
    if abs(seed) > MAX_COUNT:
        raise InputError(f"--seed must be from {-MAX_COUNT} to {MAX_COUNT}, not {seed}")
    if temperature is not None and not 0 < temperature <= MAX_TEMPERATURE:
        raise InputError(
            f"--temperature must be above 0 and at most {MAX_TEMPERATURE:,.0f}, not {temperature:g}; `passk` also "
            "decodes greedily"
        )


def whole_numbers(**given) -> dict[str, int | None]:
    """
    Return arguments of a script, such as NumPy's integers, as Python's: a result is written as JSON. `None` stays.

    Raises:
        InputError: One is no whole number.
    """
    found = {}
    for name, value in given.items():
        try:
            found[name] = None if value is None else operator.index(value)
        except TypeError:
            raise InputError(f"{name} must be a whole number, not {short(value)}") from None
    return found


def add_sampling_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the options of every evaluation that samples."""
    add_run_option(parser, required=required)
    add_held_out_arguments(parser)
    known = "evaluate these checkpoints, too: their steps, or all"
    parser.add_argument("--checkpoints", nargs="+", default=[], metavar="STEP", help=known)
    known = "measure forgetting on other tasks, each NAME[@LEVEL][=PATH]"
    parser.add_argument("--others", nargs="+", default=[], metavar="TASK", help=known)


def add_held_out_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the held-out prompts, and of the sampling."""
    add_plugin_option(parser)
    parser.add_argument("--split", default="test", help="split of the run's task (default: test)")
    parser.add_argument("--prompts", type=int, help="number of prompts (default: 128; own rows: all)")
    parser.add_argument("--temperature", type=float, help="sampling temperature (default: as in training)")
    parser.add_argument("--max-new-tokens", type=int, help="maximum number of new tokens (default: as in training)")
    parser.add_argument("--batch-size", type=int, default=512, help="sequences per generate call (default: 512)")
    parser.add_argument("--seed", type=int, default=0, help="sampling seed (default: 0)")


def add_passk_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of pass@k."""
    parser.add_argument("--n", type=int, default=16, help=f"samples per prompt, up to {MAX_SAMPLES} (default: 16)")
    parser.add_argument("--k", type=int, nargs="+", help="values of k (default: 1, 4 and 8, up to n)")
    parser.add_argument("--no-greedy", dest="with_greedy", action="store_false", help="skip greedy decoding")
    parser.add_argument("--replace", action="store_true", help="overwrite an existing passk.json with other settings")


def complete_passk(args: argparse.Namespace) -> None:
    """
    Fill in the defaults of pass@k, and check its settings.

    Raises:
        InputError: With the option, its value and the cure.
    """
    if args.k is None:
        args.k = default_ks(args.n)
    check_passk(args.n, args.k, args.prompts, args.temperature, args.max_new_tokens, args.batch_size, args.seed)


def passk(argv=None) -> argparse.Namespace:
    parser = Parser(
        prog=program_name("passk"),
        description="Measure held-out pass@k and greedy accuracy of runs: trained model against starting model.",
    )
    add_sampling_arguments(parser, required=False)
    add_passk_arguments(parser)
    parser.add_argument("--model", metavar="MODEL", help="in place of --run: folder or Hub name of a model or adapter")
    parser.add_argument("--base", metavar="MODEL", help="the model that it was trained from (default: its adapter's)")
    parser.add_argument("--task", metavar="TASK", help="its task, NAME[@LEVEL][=PATH] (default: the rows of --plugin)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of its result (default: passk/MODEL)")
    args = parser.parse_args(argv)
    complete_passk(args)
    check_model(args)
    return args if args.runs is None else _find_runs(args)


def check_model(args: argparse.Namespace) -> None:
    """Raise `InputError` unless either runs or a model are given, each with its own options."""
    if (args.runs is None) == (args.model is None):
        raise InputError("give --run RUN, or --model MODEL with --task TASK")
    of_model = {"--base": args.base, "--task": args.task, "--out": args.out}
    of_run = {"--checkpoints": args.checkpoints, "--others": args.others}
    wrong, needed = (of_run, "--run RUN") if args.runs is None else (of_model, "--model MODEL")
    for option, value in wrong.items():
        if value:
            raise InputError(f"{option} needs {needed}")


def default_ks(n: int) -> list[int]:
    """Return the values of k if none is given."""
    return [k for k in (1, 4, 8) if k <= n]


def check_passk(
    n: int,
    ks: list[int],
    prompts: int | None,
    temperature: float | None,
    max_new_tokens: int | None,
    batch_size: int,
    seed: int,
) -> None:
    """
    Check the settings of pass@k; `None` is the run's own value, or the default number of prompts.

    Raises:
        InputError: With the option, its value and the cure.
    """
    if not 1 <= n <= MAX_SAMPLES:
        raise InputError(f"--n must be from 1 to {MAX_SAMPLES}, not {n}")
    for k in ks:
        if not 1 <= k <= n:
            raise InputError(f"--k must be from 1 to --n {n}, not {k}; raise --n or lower --k")
    check_sampling(prompts, temperature, max_new_tokens, batch_size, seed)


def drift(argv=None) -> argparse.Namespace:
    parser = Parser(
        prog=program_name("drift"),
        description="Measure drift from the starting model: KL, agreement and entropy on the run's samples.",
    )
    add_sampling_arguments(parser)
    parser.add_argument("--samples", type=int, default=4, help="samples per prompt (default: 4)")
    args = parser.parse_args(argv)
    check_sampling(args.prompts, args.temperature, args.max_new_tokens, args.batch_size, args.seed, args.samples)
    return _find_runs(args)


def preflight(argv=None) -> tuple[argparse.Namespace, list[str]]:
    """Return our options, and the arguments that are left, which are the run's."""
    prog = program_name("preflight")
    epilog = (
        "--KEY VALUE is any key of the recipe, --plugin FILE.py a file of yours that registers its task. "
        "Exit code 0: it can learn; 1: it cannot learn; 2: an error that the run itself would raise."
    )
    recipe = "--config RECIPE.yaml"
    if prog.startswith("trl-prorl "):
        recipe = "RECIPE"
        epilog += " RECIPE is a file, or a name that `trl-prorl train` lists."
    parser = Parser(
        prog=prog,
        usage=f"%(prog)s {recipe} [--prompts N] [--all] [--json FILE]\n       [--plugin FILE.py] [--KEY VALUE ...]",
        description="Check before training whether a recipe can learn, whether it fits and how long it takes.",
        epilog=epilog,
        allow_abbrev=False,
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"training prompts to sample (default {PROMPTS})")
    parser.add_argument("--all", action="store_true", help="show the checks that passed, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all findings to this file, too")
    args, others = parser.parse_known_args(argv)
    if args.prompts < MIN_PREFLIGHT_PROMPTS:
        raise InputError(f"--prompts {args.prompts} must be at least {MIN_PREFLIGHT_PROMPTS}, and 20 for an interval")
    if args.json is not None:
        check_writable(args.json)
    if not others:
        raise InputError(f"preflight needs a recipe: give {recipe} (--help lists the options)")
    with as_bad_input():
        return args, check_training(None, others)


def check_writable(file: Path) -> None:
    """Check before the work that a file can be written."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise InputError(f"--json {file}: its folder does not exist; create it, or give another file")
    if file.is_dir():
        raise InputError(f"--json {file} is a folder; give a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--json {file} is in a folder that is read-only for this user; give another file")


def push(argv=None) -> argparse.Namespace:
    parser = Parser(
        prog=program_name("push"), description="Push a run to the Hugging Face Hub: model, card and log files."
    )
    parser.add_argument("--run", required=True, type=Path, help="run folder")
    parser.add_argument("--repo", help="repository (default: the run's hub_model_id, else the folder's name)")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--license", help="licence of the model card, as apache-2.0 (default: the card's so far)")
    parser.add_argument("--without-record", dest="with_record", action="store_false", help="do not push the log files")
    parser.add_argument("--dry-run", action="store_true", help="list the files and their sizes, without pushing")
    parser.add_argument("--card", action="store_true", help="with --dry-run: also print the model card")
    args = parser.parse_args(argv)
    if args.license is not None and not LICENSE.fullmatch(args.license):
        raise InputError(f"--license {args.license}: write the Hub's name of a licence, as apache-2.0, mit or other")
    load_config(args.run)
    return args


def report(argv=None) -> argparse.Namespace:
    parser = Parser(
        prog=program_name("report"),
        description="Write one page about a set of runs: best variant, significance, curves, pass@k, cost.",
    )
    add_run_option(parser, help=RUNS_HELP, type=str)
    add_plugin_option(parser)
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the report, or NAME.html (default: the folder that contains the runs)",
    )
    args = parser.parse_args(argv)
    args.found = find_recorded_runs(args.runs)
    return args


def why(argv=None) -> argparse.Namespace:
    parser = Parser(prog=program_name("why"), description="Say why a run does not learn: step, evidence and cure.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUNS_HELP)
    args = parser.parse_args(argv)
    args.found = find_recorded_runs(args.runs)
    return args


def compare(argv=None) -> argparse.Namespace:
    parser = Parser(
        prog=program_name("compare"),
        description="Test whether runs differ significantly in held-out pass@k and greedy accuracy.",
    )
    add_run_option(parser, help=f"two or more runs: {RUNS_HELP}", type=str)
    parser.add_argument("--k", type=int, nargs="+", help="values of k (default: those that all evaluations share)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    args = parser.parse_args(argv)
    args.found = find_recorded_runs(args.runs)
    folders, left_out, _ = args.found
    if len(folders) < 2:
        raise InputError(
            f"--runs {' '.join(args.runs)}: '{folders[0]}' is the only run with a finished step"
            f"{in_brackets(left_out)}; a comparison needs two, so add another run"
        )
    if args.json is not None:
        check_writable(args.json)
    return args


def branch(argv=None) -> argparse.Namespace:
    parser = Parser(
        prog=program_name("branch"),
        description="Try several continuations of a run from one of its checkpoints, and compare them on held-out "
        "prompts. The run itself is not changed.",
        epilog="A try is 'ref_reset' (one reset, before the next batch), KEY=VALUE, or several of these, separated by "
        "spaces: --try 'ref_reset optimizer_reset=hard'. The control, 'keep', is always trained, first.",
    )
    parser.add_argument("--run", required=True, type=Path, metavar="RUN", help="run folder")
    parser.add_argument("--at", type=int, metavar="STEP", help="checkpoint to start from (default: the newest)")
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="optimizer steps of each trial")
    parser.add_argument(
        "--try", dest="tries", required=True, action="append", metavar="'WORDS'", help="a trial; may be repeated"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the trials (default: RUN-branch-STEP)")
    add_held_out_arguments(parser)
    add_passk_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    parser.set_defaults(others=[], checkpoints=[])
    args = parser.parse_args(argv)
    if args.steps < 1:
        raise InputError(f"--steps must be at least 1, not {args.steps}")
    complete_passk(args)
    load_config(args.run)
    if args.json is not None:
        check_writable(args.json)
    return args
