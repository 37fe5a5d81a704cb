"""
The command lines of `eval`, a function for each command. The entry points import this first, so it imports nothing
slow.
"""

import argparse
import functools
import sys
from pathlib import Path

from trl_prorl.cli import ending
from trl_prorl.cli.command_line import check_arguments as check_training
from trl_prorl.cli.ending import NOTHING_CHANGED, Parser, announce, as_bad_input
from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import find_runs, load_config
from trl_prorl.tasks.plugin import load_plugin
from trl_prorl.text import LICENSE


PROMPTS = 32  # of a preflight
RUNS_HELP = "run folders, folders of runs, or quoted globs"
# Makes an entry point. Samples are written as they are drawn, and results atomically.
command = functools.partial(
    ending.command,
    kept="finished samples are kept, and no result is half-written. Run the same command again to continue.",
)


def check_arguments(name: str) -> None:
    """
    Parse the command line of `eval.NAME` before its imports; end the process after `--help` or an error, else announce
    the command.
    """
    parse = globals()[name]

    def parse_and_announce(argv) -> None:
        parse(argv)
        announce(f"{name}: importing libraries ...")

    code = command(parse_and_announce, kept=NOTHING_CHANGED)()
    if code:
        sys.exit(code)


class Plugin(argparse.Action):
    """`--plugin FILE.py`, loaded when it is parsed."""

    def __call__(self, parser, namespace, values, option_string=None):
        load_plugin(values)


class Numbers(argparse.Action):
    """Whole numbers with spaces or commas between them, or the word `const`."""

    def __call__(self, parser, namespace, values, option_string=None):
        words = " ".join(values).replace(",", " ").split()
        is_word = words == [self.const]
        if not is_word and not all(map(str.isdecimal, words)):
            parser.error(f"{option_string} {' '.join(values)}: write whole numbers, as in {option_string} 1 4 8")
        setattr(namespace, self.dest, self.const if is_word else list(map(int, words)))


def new_parser(name: str, description: str, **options) -> Parser:
    prog = sys.argv[0] if sys.argv[0].startswith("trl-prorl ") else f"python -m trl_prorl.eval.{name}"
    return Parser(prog=prog, description=description, **options)


def add_runs(parser: argparse.ArgumentParser, **options) -> None:
    """Add `--run RUN`, which may be repeated, or `--runs RUN RUN`: both accept one or several."""
    parser.add_argument(
        "--run", "--runs", dest="runs", metavar="RUN", action="extend", nargs="+", help=RUNS_HELP, **options
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options of the held-out prompts, and of the sampling."""
    parser.add_argument(
        "--plugin", action=Plugin, metavar="FILE.py", help="load your own file with the run's task, rows or verifier"
    )
    parser.add_argument("--split", default="test", help="split of the run's task (default: test)")
    parser.add_argument("--prompts", type=int, help="number of prompts (default: 128, or all; own rows: all)")
    parser.add_argument("--temperature", type=float, help="sampling temperature (default: as in training)")
    parser.add_argument("--max-new-tokens", type=int, help="maximum number of new tokens (default: as in training)")
    parser.add_argument("--batch-size", type=int, default=512, help="sequences per generate call (default: 512)")
    parser.add_argument("--seed", type=int, default=0, help="sampling seed (default: 0)")
    known = "evaluate these checkpoints, too: their steps, or all"
    parser.add_argument(
        "--checkpoints", nargs="+", action=Numbers, const="all", default=[], metavar="STEP", help=known
    )


def add_passk(parser: argparse.ArgumentParser) -> None:
    """Add the options of pass@k."""
    parser.add_argument("--n", type=int, default=16, help="samples per prompt (default: 16)")
    parser.add_argument("--k", nargs="+", action=Numbers, help="values of k (default: 1, 4 and 8, up to n)")
    known = "measure forgetting on other tasks, each NAME[@LEVEL][=PATH]"
    parser.add_argument("--others", nargs="+", default=[], metavar="TASK", help=known)
    parser.add_argument("--no-greedy", dest="with_greedy", action="store_false", help="skip greedy decoding")


def sizes(ks: list[int] | None, n: int) -> list[int]:
    """
    Return the values of k, or the default ones.

    Raises:
        InputError: One is not from 1 to `n`.
    """
    ks = sorted(set(ks or [k for k in (1, 4, 8) if k <= n]))
    if not ks or not 1 <= ks[0] <= ks[-1] <= n:
        raise InputError(f"--k must be from 1 to the {n} samples per prompt of --n, not {ks}")
    return ks


def passk(argv=None) -> argparse.Namespace:
    parser = new_parser("passk", "Measure held-out pass@k and greedy accuracy: trained model against starting model.")
    add_runs(parser)
    add_sampling(parser)
    add_passk(parser)
    parser.add_argument("--model", metavar="MODEL", help="in place of --run: folder or Hub name of a model or adapter")
    parser.add_argument("--base", metavar="MODEL", help="the model that it was trained from (default: its adapter's)")
    parser.add_argument("--task", metavar="TASK", help="its task, NAME[@LEVEL][=PATH] (default: the rows of --plugin)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of its result (default: passk/MODEL)")
    args = parser.parse_args(argv)
    args.k = sizes(args.k, args.n)
    if (args.runs is None) == (args.model is None):
        raise InputError("give --run RUN, or --model MODEL with --task TASK")
    of_run = args.checkpoints or args.others
    of_model = args.base or args.task or args.out
    if of_run if args.runs is None else of_model:
        raise InputError("--checkpoints and --others need --run; --base, --task and --out need --model")
    args.runs = find_runs(args.runs) if args.runs else []
    return args


def drift(argv=None) -> argparse.Namespace:
    parser = new_parser("drift", "Measure drift from the starting model: KL, agreement and entropy on own samples.")
    add_runs(parser, required=True)
    add_sampling(parser)
    parser.add_argument("--samples", type=int, default=4, help="samples per prompt (default: 4)")
    args = parser.parse_args(argv)
    args.runs = find_runs(args.runs)
    return args


def preflight(argv=None) -> tuple[argparse.Namespace, list[str]]:
    """Return our options, and the arguments that are left, which are the run's."""
    parser = new_parser(
        "preflight",
        "Check before training whether a recipe can learn, whether it fits and how long it takes.",
        usage="%(prog)s RECIPE [--prompts N] [--all] [--json FILE] [--plugin FILE.py] [--KEY VALUE ...]",
        epilog="Exit code 0: it can learn; 1: it cannot learn; 2: an error that the run itself would raise.",
        allow_abbrev=False,
    )
    parser.add_argument("--prompts", type=int, default=PROMPTS, help=f"training prompts to sample (default {PROMPTS})")
    parser.add_argument("--all", action="store_true", help="show the checks that passed, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all findings to this file, too")
    args, others = parser.parse_known_args(argv)
    if not others:
        raise InputError("preflight needs a recipe: its name, or --config FILE")
    with as_bad_input():
        return args, check_training(None, others)


def push(argv=None) -> argparse.Namespace:
    parser = new_parser("push", "Push a run to the Hugging Face Hub: model, card and log files.")
    parser.add_argument("--run", required=True, type=Path, help="run folder")
    parser.add_argument("--repo", help="repository (default: the run's hub_model_id, else the folder's name)")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--license", help="licence of the model card, as apache-2.0 (default: the card's so far)")
    parser.add_argument(
        "--with-reference",
        action=argparse.BooleanOptionalAction,
        help="also push the reference adapter, ref (default: the run's hub_push_reference)",
    )
    parser.add_argument("--without-record", dest="with_record", action="store_false", help="do not push the log files")
    parser.add_argument("--dry-run", action="store_true", help="list the files and their sizes, without pushing")
    parser.add_argument("--card", action="store_true", help="with --dry-run: also print the model card")
    args = parser.parse_args(argv)
    if args.license is not None and not LICENSE.fullmatch(args.license):
        raise InputError(f"--license {args.license}: write the Hub's name of a licence, as apache-2.0, mit or other")
    load_config(args.run)
    return args


def report(argv=None) -> argparse.Namespace:
    parser = new_parser("report", "Write one page about runs: best variant, significance, curves, pass@k, cost.")
    add_runs(parser, required=True)
    parser.add_argument("--out", type=Path, help="folder, or NAME.html (default: the folder of the first run)")
    args = parser.parse_args(argv)
    args.runs = find_runs(args.runs)
    args.out = args.out or args.runs[0].resolve().parent
    return args


def why(argv=None) -> argparse.Namespace:
    parser = new_parser("why", "Say why a run does not learn: step, evidence and cure.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUNS_HELP)
    args = parser.parse_args(argv)
    args.runs = find_runs(args.runs)
    return args


def compare(argv=None) -> argparse.Namespace:
    parser = new_parser("compare", "Test whether runs differ significantly in held-out pass@k and greedy accuracy.")
    add_runs(parser, required=True)
    parser.add_argument(
        "--k", nargs="+", action=Numbers, help="values of k (default: those that all evaluations share)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    args = parser.parse_args(argv)
    args.runs = find_runs(args.runs)
    return args


def branch(argv=None) -> argparse.Namespace:
    parser = new_parser(
        "branch",
        "Try several continuations of a run from one of its checkpoints, and compare them on held-out prompts. The "
        "run itself is not changed.",
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
    add_sampling(parser)
    add_passk(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    args = parser.parse_args(argv)
    args.k = sizes(args.k, args.n)
    load_config(args.run)
    return args
