"""The options of every evaluation by sampling, and what of them a run cannot be asked."""

import argparse
from pathlib import Path

from eval.run_folder.finding import add_run_option
from eval.samples.held_out import HeldOut, check_run
from eval.samples.points import checkpoint_points
from eval.samples.task_name import TaskName


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every evaluation by sampling has."""
    add_run_option(parser)
    parser.add_argument("--split", default="test", help="split of the run's task")
    parser.add_argument("--prompts", type=int, default=128, help="number of prompts")
    parser.add_argument("--temperature", type=float, help="sampling temperature (default: the run's)")
    parser.add_argument(
        "--max-new-tokens", type=int, help="tokens after which a completion is cut (default: the run's)"
    )
    parser.add_argument("--batch-size", type=int, default=512, help="sequences per generate call")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    parser.add_argument("--checkpoints", nargs="+", default=[], metavar="STEP", help="steps of checkpoints, or all")
    parser.add_argument(
        "--others",
        "--other",
        nargs="+",
        default=[],
        metavar="TASK",
        help="tasks that were not trained (forgetting), each NAME[@LEVEL][=PATH]",
    )
    parser.set_defaults(greedy=False)


def held_outs(run_dir: Path, args: argparse.Namespace) -> list[HeldOut]:
    """The run on its own task, then on the others that were asked for."""
    settings = {
        "temperature": 0.0 if args.greedy else args.temperature,
        "max_new_tokens": args.max_new_tokens,
        "seed": args.seed,
        "batch_size": args.batch_size,
    }
    names = [None, *map(TaskName.parse, args.others)]
    return [HeldOut(run_dir, args.split, args.prompts, name=name, **settings) for name in names]


def check_run_settings(run_dir: Path, checkpoints: list[str], others: list[str] = ()) -> None:
    """
    Refuse what a run cannot be asked, before anything is loaded.

    Args:
        run_dir (`Path`): The run folder.
        checkpoints (`list[str]`): Steps, or `all`.
        others (`list[str]`): Tasks beside the run's own, as the command line names them.

    Raises:
        InputError: Naming what is wrong, and the cure.
    """
    config = check_run(run_dir)
    for name in (TaskName.of_run(config), *map(TaskName.parse, others)):
        name.make()
    if checkpoints:
        checkpoint_points(run_dir, config, checkpoints)
