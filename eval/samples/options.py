"""The options of every evaluation by sampling, and what of them a run cannot be asked."""

from pathlib import Path

from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import read_env
from trl_prorl.eval.samples.held_out import HeldOut, check_run
from trl_prorl.eval.samples.points import checkpoint_points
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.record.provenance import evaluation_of, plugin_options


def held_outs(run_dir: Path, args) -> list[HeldOut]:
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
    config, env = check_run(run_dir), read_env(run_dir)
    how = f"; {evaluation_of(config, env, run_dir)} has the run's own" if plugin_options(env) else ""
    for name in (TaskName.of_run(config), *map(TaskName.parse, others)):
        try:
            name.make()
        except InputError as error:
            raise InputError(f"{error}{how}") from error
    if checkpoints:
        checkpoint_points(run_dir, config, checkpoints)
