"""The lines that a run shows while it trains."""

import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback

from ..anchors import ANCHORS
from ..optimizer import configured_rates
from ..run.log_files import GROWTH, NONFINITE, RESET
from ..run.provenance import passk_command, spell_command
from ..text import visible


TRL_RATE = 1e-6  # TRL's default of learning_rate, which suits full fine-tuning
LORA_RATES = "1e-5 to 5e-4"  # those of the recipes that train an adapter on a pretrained model
ACCURACY = "prorl/accuracy"
KLS = [f"prorl/{anchor.kl_key}" for anchor in ANCHORS]
# The metrics in a line; all of them are in the log history and go to the trackers.
IN_A_LINE = [
    "reward",
    ACCURACY,
    "loss",
    "entropy",
    "grad_norm",
    "learning_rate",
    "completions/mean_length",
    "completions/clipped_ratio",
    "frac_reward_zero_std",
    *KLS,
]
OF_AN_EVALUATION = ("_reward", "_in_training")


class ProgressBar(ProgressCallback):
    """transformers' bar without its dict of all metrics."""

    def on_log(self, *args, **kwargs):
        pass


class Terminal(PrinterCallback):
    """Shows a log in one line, in place of transformers' dict of all metrics."""

    def __init__(self, trainer):
        self.trainer = trainer
        callbacks = {type(callback) for callback in trainer.callback_handler.callbacks}  # not a user's subclass
        theirs = callbacks & {PrinterCallback, ProgressCallback}
        self.shows_logs = bool(theirs)  # a notebook has a table of its own
        for kind in theirs:
            trainer.remove_callback(kind)
        if ProgressCallback in theirs:
            trainer.add_callback(ProgressBar())
        trainer.add_callback(self)

    def say(self, line: str) -> None:
        if self.trainer.is_world_process_zero():
            tqdm.write(visible(line))  # above the bar
            sys.stdout.flush()  # a file shows it at once, too

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.shows_logs:
            self.say(write_log_line(logs, state.global_step, args.anchored))

    def on_train_end(self, args, state, control, **kwargs):
        if state.best_model_checkpoint is not None:
            self.say(
                f"best checkpoint: {state.best_model_checkpoint}, {args.metric_for_best_model} {state.best_metric}"
            )

    def say_next(self) -> None:
        folder = str(self.trainer.run_dir)
        keys = {}
        for part in self.trainer.recipe:
            keys |= vars(part)
        command = passk_command(keys, {"command": spell_command(sys.orig_argv)}, folder)
        self.say(f"run folder: {folder}, next: {command}")


def highest_rate(optimizer) -> float | None:
    """Return the highest learning rate of an optimizer's groups, without its schedule; `None` if it chooses all."""
    return max(configured_rates(optimizer), default=None)


def write_log_line(logs: Mapping[str, Any], step: int, has_kl: bool) -> str:
    """Return one line of a log: the main metrics, else an evaluation's, else all numbers."""
    if "train_runtime" in logs:
        return f"trained to step {step} in {logs['train_runtime']:.4g} s"
    hidden = [] if has_kl else list(KLS)
    if "reward" not in logs:  # a step without a new generation batch repeats the accuracy of the last one
        hidden.append(ACCURACY)
    names = [name for name in IN_A_LINE if name in logs and name not in hidden]
    if not names:
        names = [name for name in logs if name.startswith("eval_") and name.endswith(OF_AN_EVALUATION)]
        names += [name for name in logs if "_pass@" in name]
    if not names:
        names = [name for name, value in logs.items() if isinstance(value, int | float)]
    values = []
    for name in names:
        label = name.rpartition("/")[2] if name in IN_A_LINE else name
        value = logs[name]
        values.append(f"{label} {value:.4g}" if isinstance(value, float) else f"{label} {value}")
    return f"step {step}: " + "  ".join(values)


def write_event_line(event: Mapping[str, Any]) -> str:
    """Return one line of an event, see docs/reference.md."""
    parts = [f"step {event['step_applied']}: {event['event'].replace('_', ' ')}"]
    if event["event"] == RESET:
        if event["ref_reset_mix"] != 0.0:
            parts.append(f"reference moved by {event['ref_reset_mix']:g} to the policy")
        parts.append(f"optimizer {event['optimizer_reset']}")
    if event["event"] == GROWTH:
        parts.append(f"rank {event['rank_before']} -> {event['rank']}")
    if event["event"] == NONFINITE:
        parts.append(f"{event['tensor']}: the update was skipped")
    line = ", ".join(parts)
    if event.get("reason"):
        line += f" ({event['reason']})"
    return line
