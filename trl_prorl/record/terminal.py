"""What a run shows while it trains: how it begins, a line for each log and each reset, how it ends."""

import logging
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from transformers import PrinterCallback, ProgressCallback

from ..resets.triggers import KEYS
from ..variants import DIFFER_BY_RESETS, VARIANTS
from .run_files import GROWTH, RESET


logger = logging.getLogger(__name__)

# The metrics of TRL in a line; all of them are in the log history and go to the trackers.
IN_A_LINE = (
    "reward reward_std loss prorl/kl_ref prorl/kl_old prorl/kl_base entropy grad_norm learning_rate "
    "completions/mean_length frac_reward_zero_std"
).split()


def log_line(logs: Mapping[str, Any], step: int) -> str:
    """One line of a log: the metrics that tell how a run goes, or the first ones where none of those is there."""
    if "train_runtime" in logs:
        return f"trained to step {step} in {logs['train_runtime']:.4g} s"
    of_evaluation = [key for key in logs if key.startswith("eval_") and key.endswith("_reward") or "_pass@" in key]
    names = [key for key in IN_A_LINE if key in logs] or of_evaluation
    names = names or [key for key, value in logs.items() if isinstance(value, (int, float))][:12]
    values = ((name.rpartition("/")[2] if name in IN_A_LINE else name, logs[name]) for name in names)
    return f"step {step}: " + "  ".join(f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in values)


def event_line(event: Mapping[str, Any]) -> str:
    """One line of an event, see docs/reference.md."""
    parts = [f"step {event['step_applied']}: {event['event'].replace('_', ' ')}"]
    if event["event"] == RESET:
        mix = event["ref_reset_mix"]
        moved = {1.0: "the reference becomes the policy", 0.0: "the reference stays"}
        parts += [moved.get(mix, f"the reference moves by {mix:g}"), f"optimizer {event['optimizer_reset']}"]
        parts += [f"kl_ref was {kl:.4g}" for kl in [event.get("kl_before")] if kl is not None]
    if event["event"] == GROWTH:
        parts.append(f"rank {event['rank_before']} becomes {event['rank']}")
    return ", ".join(parts) + (f" ({event['reason']})" if event.get("reason") else "")


def banner(trainer, steps: int) -> list[str]:
    """How a run of so many optimizer steps begins."""
    args, policy = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    trained = sum(param.numel() for param in policy.parameters() if param.requires_grad)
    kind = "LoRA, " if hasattr(policy, "peft_config") else "all "
    first = args.first_reset(steps)
    when = ["never" if first is None else f"first after step {first}"] * (args.ref_reset_every > 0)
    when += [f"{key}={value}" for key in KEYS if key != "ref_reset_every" and (value := getattr(args, key))]
    facts = {
        "trains": f"{trainer.base_name() or type(policy).__name__} ({kind}{trained:,} parameters), {steps} steps",
        "reward": ", ".join(trainer.reward_func_names),
        "variant": f"{args.variant}: {VARIANTS[args.variant].description}",
        "resets": "; ".join(when) or "none",
        "pack_groups": trainer.acceleration.packing,
        "compact_generation": trainer.acceleration.generation,
        "run folder": trainer.run_dir,
    }
    return [f"{name:<20}{fact}" for name, fact in facts.items()]


class NoDict(ProgressCallback):
    """transformers' bar, without the dict of all metrics: [`Terminal`] writes a line instead."""

    def on_log(self, *args, **kwargs):
        pass


class Terminal(PrinterCallback):
    """Shows a run of a [`ProRLTrainer`] on its main process, in the place of transformers' printing callback."""

    def __init__(self, trainer):
        self.trainer, self.shows = trainer, False
        there = {type(callback): callback for callback in trainer.callback_handler.callbacks}  # not a user's subclass
        theirs = [there[kind] for kind in (PrinterCallback, ProgressCallback) if kind in there]
        self.logs = bool(theirs)  # a notebook has a table of its own
        self.bar = NoDict() if ProgressCallback in there else None
        for callback in theirs:
            trainer.remove_callback(callback)
        for callback in filter(None, (self, self.bar)):
            trainer.add_callback(callback)

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks on who did not ask for silence."""
        return self.shows and sys.stdout.isatty() and not self.trainer.args.disable_tqdm

    def say(self, line: str) -> None:
        """A line, above the bar if there is one."""
        if self.shows:
            bar = getattr(self.bar, "training_bar", None)
            with nullcontext() if bar is None else bar.external_write_mode():
                print(line, flush=True)  # into a file, too, before the bar is drawn again

    def on_train_begin(self, args, state, control, **kwargs):
        self.shows = self.logs and state.is_world_process_zero
        done, steps = state.global_step, state.max_steps
        alone = [key for key in KEYS if getattr(args, key)] == ["ref_reset_every"]
        alone = alone and len(self.trainer.resets.callbacks) == 1
        if state.is_world_process_zero and alone and args.first_reset(steps) is None:
            first, control = args.first_reset(sys.maxsize), "; it is the control" * (args.variant in DIFFER_BY_RESETS)
            logger.warning(
                f"{args.variant} never resets: ref_reset_every={args.ref_reset_every} comes with the generation after "
                f"step {first}, and the run ends at step {steps}{control}. Lower ref_reset_every, or raise max_steps "
                "above that."
            )
        for line in banner(self.trainer, steps) if self.is_watched else ():
            self.say(line)
        if done:
            over = f"finished, nothing to do: checkpoint-{done} is the last step of {self.trainer.run_dir}"
            self.say(f"resumed from checkpoint-{done}" if done < steps else over)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.logs and state.is_local_process_zero and (self.bar is None or self.bar.training_bar is not None):
            self.say(log_line(logs, state.global_step))
