"""
The command lines of `eval`, a function for each command: options, and what can be refused before a model is looked at.
Nothing that takes seconds to import is imported, and the entry points import this first.
"""

import argparse
import functools
import os
import sys
from pathlib import Path

from trl_prorl.ending import NOTHING_CHANGED, announce, as_bad_input, end_at_once
from trl_prorl.errors import InputError
from trl_prorl.eval.command import command, program_name
from trl_prorl.eval.gpucheck.parts import PARTS
from trl_prorl.eval.run_folder.reading import (
    add_run_option,
    find_recorded_runs,
    find_run_folders,
    in_brackets,
    load_config,
)
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.eval.stepcost.settings import parse as step_cost
from trl_prorl.launch.command_line import check_arguments as check_training
from trl_prorl.launch.command_line import recipe_name
from trl_prorl.tasks.plugin import load_plugin


__all__ = ["step_cost"]  # beside what stands here
MOST_SAMPLES = 256
PROMPTS = 32  # of a preflight
LEAST_PROMPTS = 2


def check_arguments(name: str) -> None:
    """
    Parse the command line of `eval.NAME` before its imports, and end the process where it asks for help or is wrong;
    else say what it is about to look at.
    """
    parse = globals().get(name)
    if parse is not None:

        def parse_and_announce(argv) -> None:
            announce(first_line(name, parse(argv)))

        code = command(parse_and_announce, kept=NOTHING_CHANGED)()
        if code:
            sys.exit(code)
    end_at_once(NOTHING_CHANGED)


def first_line(name: str, parsed) -> str:
    """Return what `eval.NAME` is about to look at, by its command line."""
    if name == "preflight":
        what = recipe_name(parsed[1])
    else:
        runs = getattr(parsed, "runs", None) or [getattr(parsed, "run", "this machine")]
        what = str(runs[0])
        if len(runs) > 1:
            what += f" and {len(runs) - 1} more"
    return f"{name.replace('_', '-')}: {what}. Importing libraries ..."


class Plugin(argparse.Action):
    """`--plugin FILE`, loaded as it is read."""

    def __call__(self, parser, namespace, values, option_string=None):
        load_plugin(values, may_have_rows=True)


def add_plugin_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin", action=Plugin, metavar="FILE.py", help="a file of yours that has the run's task, or its rows"
    )


def _find_runs(args: argparse.Namespace) -> argparse.Namespace:
    for name in getattr(args, "others", []):
        TaskName.parse(name)
    args.runs = find_run_folders(args.runs)
    return args


def _check_least(option: str, value: int | None, least: int = 1) -> None:
    """Refuse an option below its least value; `None` is an option that was not given."""
    if value is not None and value < least:
        raise InputError(f"{option} {value} must be at least {least}")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every evaluation by sampling has."""
    add_run_option(parser)
    add_plugin_option(parser)
    parser.add_argument("--split", default="test", help="split of the run's task")
    parser.add_argument("--prompts", type=int, help="number of prompts (default 128, of a script's run all rows)")
    parser.add_argument("--temperature", type=float, help="sampling temperature (default: the run's)")
    parser.add_argument("--max-new-tokens", type=int, help="length at which a completion is cut (default: the run's)")
    parser.add_argument("--batch-size", type=int, default=512, help="sequences per generate call")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    parser.add_argument("--checkpoints", nargs="+", default=[], metavar="STEP", help="steps of checkpoints, or all")
    known = "tasks that were not trained (forgetting), each NAME[@LEVEL][=PATH]"
    parser.add_argument("--others", "--other", nargs="+", default=[], metavar="TASK", help=known)
    parser.set_defaults(greedy=False)


def passk(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program_name("passk"), description="pass@k of runs, base against trained.")
    add_sampling_arguments(parser)
    parser.add_argument("--n", type=int, help=f"samples per prompt, up to {MOST_SAMPLES} (default 16, greedy 1)")
    parser.add_argument("--k", type=int, nargs="+", help="sizes of the draw (default those of 1 4 8 up to n)")
    parser.add_argument("--greedy", action="store_true", help="decode greedily only, one sample per prompt")
    no_greedy = ("--no-greedy", "--no_greedy")
    parser.add_argument(*no_greedy, dest="with_greedy", action="store_false", help="leave out the greedy decoding")
    parser.add_argument("--replace", action="store_true", help="write passk.json anew, even if it holds more")
    args = parser.parse_args(argv)
    if args.n is None:
        args.n = 1 if args.greedy else 16
    if args.k is None:
        args.k = [k for k in (1, 4, 8) if k <= args.n]
    check_passk(
        args.n, args.k, args.prompts, args.temperature, args.max_new_tokens, args.batch_size, only_greedy=args.greedy
    )
    return _find_runs(args)


def check_passk(
    n: int,
    ks: list[int],
    prompts: int | None,
    temperature: float | None,
    max_new_tokens: int | None,
    batch_size: int,
    only_greedy: bool = False,
) -> None:
    """
    Refuse settings of pass@k that cannot be measured; `None` is the run's own value, of prompts the default.

    Raises:
        InputError: Naming the option, its value and the cure.
    """
    if not 1 <= n <= MOST_SAMPLES:
        raise InputError(f"--n {n}: at least 1 sample per prompt is needed, and at most {MOST_SAMPLES}")
    if only_greedy and n > 1:
        raise InputError(f"--n {n} with --greedy: all samples of a prompt would be the same; leave out --n")
    if prompts is not None and prompts < 2:
        raise InputError(f"--prompts {prompts}: at least 2 prompts are needed, and 20 for an interval")
    for k in ks:
        if not 1 <= k <= n:
            raise InputError(f"--k {k} must lie between 1 and --n {n}; draw more samples or lower k")
    if temperature is not None and temperature <= 0:
        raise InputError(f"--temperature {temperature:g} must be above 0; use --greedy for greedy decoding")
    _check_least("--batch-size", batch_size)
    _check_least("--max-new-tokens", max_new_tokens)


def drift(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program_name("drift"), description="How far runs have moved from base.")
    add_sampling_arguments(parser)
    parser.add_argument("--samples", type=int, default=4, help="samples per prompt")
    args = parser.parse_args(argv)
    check_drift(args.samples, args.prompts, args.temperature, args.max_new_tokens, args.batch_size)
    return _find_runs(args)


def check_drift(
    samples: int, prompts: int | None, temperature: float | None, max_new_tokens: int | None, batch_size: int
) -> None:
    """
    Refuse settings with which drift cannot be measured; `None` is the default.

    Raises:
        InputError: Naming the option, its value and the cure.
    """
    _check_least("--prompts", prompts, least=2)
    _check_least("--samples", samples)
    _check_least("--batch-size", batch_size)
    _check_least("--max-new-tokens", max_new_tokens)
    if temperature is not None and temperature <= 0:
        raise InputError(f"--temperature {temperature:g} must be above 0: drift is measured on samples")


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
    parser = argparse.ArgumentParser(
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
    if args.prompts < LEAST_PROMPTS:
        raise InputError(f"--prompts {args.prompts} must be at least {LEAST_PROMPTS}, and 20 for an interval")
    if args.json is not None:
        check_writable(args.json)
    if not others:
        raise InputError(f"nothing says what to look at: give {recipe} (--help says more)")
    with as_bad_input():
        return args, check_training(None, others)


def check_writable(file: Path) -> None:
    """Refuse a file that cannot be written, which would be known only after the work."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise InputError(f"--json {file}: its folder does not exist; create it, or name another")
    if file.is_dir():
        raise InputError(f"--json {file} is a folder; name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--json {file} lies in a folder that is read-only for this user; name another")


def push(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program_name("push"), description="Push a run to the Hugging Face Hub.")
    parser.add_argument("--run", required=True, type=Path, help="run folder")
    parser.add_argument("--repo", help="repository (default: the run's hub_model_id, else the folder's name)")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument(
        "--with-reference",
        action=argparse.BooleanOptionalAction,
        help="push the frozen adapter ref, too (default: the run's hub_push_reference)",
    )
    record = parser.add_mutually_exclusive_group()
    record.add_argument("--with-record", action="store_true", default=True, help="push the record (the default)")
    record.add_argument("--without-record", dest="with_record", action="store_false", help="leave the record out")
    parser.add_argument("--dry-run", action="store_true", help="show what would be pushed, and do nothing")
    args = parser.parse_args(argv)
    load_config(args.run)
    return args


def gpu_check(argv=None) -> argparse.Namespace:
    prog = program_name("gpu_check")
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} [--OPTION VALUE ...]",
        description="Checks on a GPU that the numbers are right, and measures what things cost there.",
        formatter_class=functools.partial(argparse.ArgumentDefaultsHelpFormatter, max_help_position=26),
    )
    parser.add_argument(
        "--cpu", action="store_true", help="at toy size, without the tests, in about a minute of one core"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--minutes", type=float, metavar="N", default=20.0, help="of all parts; the rest is left")
    parser.add_argument("--again", action="store_true", help="also what has passed already")
    parser.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="of the results; runs/gpu_check/card or /cpu"
    )
    args = parser.parse_args(argv)
    if args.minutes <= 0:
        parser.error(f"--minutes {args.minutes:g} is not positive.")
    return args


def reset_cost(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program_name("reset_cost"), description="What a reset costs, against a plain copy of the same bytes."
    )
    parser.add_argument("--hidden", type=int, default=896, help="the defaults are Qwen2.5-0.5B's, fewer layers")
    parser.add_argument("--intermediate", type=int, default=4864)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--rank", type=int, default=32, help="of the LoRA adapter")
    parser.add_argument("--repeats", type=int, default=11)
    # One of several GPUs: CUDA_VISIBLE_DEVICES.
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: a GPU if there is one")
    return parser.parse_args(argv)


def report(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program_name("report"), description="Report on run folders.")
    add_run_option(parser, help="run folders, folders of runs, or quoted globs of them", type=str)
    add_plugin_option(parser)
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the report, or NAME.html (default: where all runs lie)",
    )
    args = parser.parse_args(argv)
    args.found = find_recorded_runs(args.runs)
    return args


def compare(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program_name("compare"), description="Runs on the same prompts, paired.")
    add_run_option(parser, help="run folders, folders of runs, or quoted globs of them: two runs or more", type=str)
    parser.add_argument("--k", type=int, nargs="+", help="sizes of the draw (default: those of all evaluations)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    args = parser.parse_args(argv)
    args.found = find_recorded_runs(args.runs)
    folders, left_out, _ = args.found
    if len(folders) < 2:
        raise InputError(
            f"--runs {' '.join(args.runs)}: '{folders[0]}' is the only run with a finished step"
            f"{in_brackets(left_out)}; a comparison needs two, so give another run"
        )
    if args.json is not None:
        check_writable(args.json)
    return args


def boundary(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program_name("boundary"), description="What a run gained and lost over base."
    )
    add_run_option(parser)
    return _find_runs(parser.parse_args(argv))


def trajectory(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program_name("trajectory"), description="pass@k over training, with a fit.")
    add_run_option(parser)
    parser.add_argument("--k", type=int, nargs="+", help="sizes of the draw (default: the run's smallest and largest)")
    parser.add_argument("--resamples", type=int, default=2000, help="resamples of the prompts")
    return _find_runs(parser.parse_args(argv))
