"""
One trial of `trl-prorl branch`, in a process of its own: a recipe is resumed from a checkpoint, and ends after a given
step with a checkpoint.

    python -m trl_prorl.eval.trial UNTIL RESET_AT --config RUN/config.yaml --resume_from_checkpoint CHECKPOINT ...
"""

import sys

from transformers import TrainerCallback

from trl_prorl.cli.command_line import check_arguments
from trl_prorl.cli.ending import as_bad_input, command
from trl_prorl.cli.recipe import parse_recipe
from trl_prorl.train import run
from trl_prorl.trainer import ProRLTrainer
from trl_prorl.watch import Reason, StopReason


NO_RESET = -1  # in place of a step
REASON = "branch"  # of the requested reset, in `events.jsonl`


class ContinueTo(TrainerCallback):
    """
    Ends a training after a step, with a checkpoint, and not before: a stop of the run's own, such as `stop_stall`, is
    an event, and training goes on. The run's length, and so its schedule, stay as they are. A training that begins at
    the step `reset_at` begins with a reset, and not a trial that was stopped later and goes on.
    """

    def __init__(self, trainer: ProRLTrainer, until: int, reset_at: int):
        self.trainer = trainer
        self.until = until
        self.reset_at = reset_at

    def on_train_begin(self, args, state, control, **kwargs):
        step = state.global_step
        if step == self.reset_at:
            self.trainer.request_reset(Reason(REASON, value=step, threshold=step, step=step))

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= self.until:
            control.should_training_stop = True
            control.should_save = True

    def on_save(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.until  # every stop saves


class NoStopReason(StopReason):
    """Never remembers that an event has ended the run."""

    ended_by = property(lambda self: None, lambda self, event: None)


@command
def main(argv: list[str]) -> None:
    """Entry point."""
    until, reset_at, *recipe = argv
    with as_bad_input():
        configurations = parse_recipe(check_arguments(None, recipe))
    _, args, _ = configurations
    args.log_completions_hub_repo = None  # a trial uploads nothing; no option of the command line unsets this key

    def make_trainer(**given) -> ProRLTrainer:
        trainer = ProRLTrainer(**given)
        trainer.parts["end"] = NoStopReason()
        trainer.add_callback(ContinueTo(trainer, int(until), int(reset_at)))
        return trainer

    run(*configurations, make_trainer)


if __name__ == "__main__":
    sys.exit(main())
