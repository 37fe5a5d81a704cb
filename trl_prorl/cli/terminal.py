"""The lines that a run shows while it trains."""

from collections.abc import Mapping
from typing import Any

from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback

from ..anchors import ANCHORS
from ..optimizer import configured_rates
from ..text import shell_quote


TRL_RATE = 1e-6  # TRL's default of learning_rate, which suits full fine-tuning
LORA_RATES = "1e-5 to 5e-4"  # those of the recipes that train an adapter on a pretrained model
# The metrics in a line; all are in the log history and go to the trackers.
IN_A_LINE = [
    *"reward prorl/accuracy reward_std loss entropy grad_norm learning_rate completions/mean_length".split(),
    *(f"prorl/{anchor.kl_key}" for anchor in ANCHORS),
]


class Terminal(PrinterCallback):
    """Shows a log in one line, in place of transformers' dict of all metrics."""

    def __init__(self, trainer):
        self.trainer = trainer
        trainer.remove_callback(PrinterCallback)
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, ProgressCallback):
                callback.on_log = lambda *args, **kwargs: None
        trainer.add_callback(self)

    def say(self, line: str) -> None:
        if self.trainer.is_world_process_zero():
            tqdm.write(line)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.say(write_log_line(logs, state.global_step))

    def on_train_end(self, args, state, control, **kwargs):
        if state.best_model_checkpoint is not None:
            self.say(f"best checkpoint: {state.best_model_checkpoint}, {args.metric_for_best_model} {state.best_metric}")

    def say_next(self) -> None:
        self.say(f"next: trl-prorl passk --run {shell_quote(str(self.trainer.run_dir))}")


def highest_rate(optimizer) -> float | None:
    """Return the highest learning rate of an optimizer's groups, without its schedule; `None` if it chooses all."""
    return max(configured_rates(optimizer), default=None)


def write_log_line(logs: Mapping[str, Any], step: int) -> str:
    names = [name for name in IN_A_LINE if name in logs] or [name for name in logs if isinstance(logs[name], float)]
    return f"step {step}: " + "  ".join(f"{name.rpartition('/')[2]} {logs[name]:.4g}" for name in names)


def write_event_line(event: Mapping[str, Any]) -> str:
    return f"step {event['step_applied']}: {event['event'].replace('_', ' ')} ({event.get('reason', '')})"
