"""The options of every evaluation by sampling, and what of them a run cannot be asked."""

from pathlib import Path

from eval.samples.held_out import check_run
from eval.samples.points import checkpoint_points
from eval.samples.task_name import TaskName


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
