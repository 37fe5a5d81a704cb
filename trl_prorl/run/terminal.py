"""What a run shows while it trains: how it begins, a line for each log and each reset, how it ends."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from transformers import PrinterCallback, ProgressCallback

from ..resets.triggers import KEYS
from ..variants import RESET_APART, VARIANTS
from .keys import GROWTH, RESET


logger = logging.getLogger(__name__)

# What a line shows of TRL's metrics, in this order; all of them are in the log history and go to the trackers.
SHOWN = {
    "reward": "reward",
    "reward_std": "std",
    "loss": "loss",
    "prorl/kl_ref": "kl_ref",
    "prorl/kl_old": "kl_old",
    "prorl/kl_base": "kl_base",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "completions/mean_length": "length",
    "frac_reward_zero_std": "flat",
    "step_time": "s/step",
}
AT_MOST = 12  # metrics in a line


def log_line(logs: Mapping[str, Any], step: int) -> str:
    """One line of a log: the metrics that tell how a run goes, or the first ones where none of those is there."""
    if "train_runtime" in logs:
        return f"trained to step {step} in {logs['train_runtime']:.4g} s"
    shown = [(name, logs[key]) for key, name in SHOWN.items() if key in logs]
    if not shown:
        of_evaluation = {key: key for key in logs if key.startswith("eval_") and ("pass@" in key or "_reward" in key)}
        names = {key: key for key in of_evaluation if "rewards/" not in key and "_std" not in key} or logs
        shown = [(name, logs[name]) for name in names if isinstance(logs[name], (int, float))]
    values = (f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown)
    return f"step {step}: " + "  ".join([*values][:AT_MOST])


def event_line(event: Mapping[str, Any]) -> str:
    """One line of an event, see [`~trl_prorl.run.keys`]."""
    told = [f"step {event['step_applied']}: {event['event'].replace('_', ' ')}"]
    if event["event"] == RESET:
        moved = {1.0: "the reference becomes the policy", 0.0: "the reference stays"}
        mix = event["ref_reset_mix"]
        told += [moved.get(mix, f"the reference moves by {mix:g}"), f"optimizer {event['optimizer_reset']}"]
        told += [f"kl_ref was {kl:.4g}" for kl in [event.get("kl_before")] if kl is not None]
    if event["event"] == GROWTH:
        told.append(f"rank {event['rank_before']} becomes {event['rank']}")
    return ", ".join(told) + (f" ({event['reason']})" if event.get("reason") else "")


def banner(trainer, steps: int) -> list[str]:
    """
    How a run begins.

    Args:
        trainer ([`ProRLTrainer`]):
            About to train.
        steps (`int`):
            Its optimizer steps.
    """
    args, policy = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    trained = sum(param.numel() for param in policy.parameters() if param.requires_grad)
    kind = f"LoRA, {trained:,} parameters" if hasattr(policy, "peft_config") else f"all {trained:,} parameters"
    first = args.first_reset(steps)
    when = ["never" if first is None else f"first after step {first}"] * (args.ref_reset_every > 0)
    when += [f"{key}={value}" for key in KEYS if key != "ref_reset_every" and (value := getattr(args, key))]
    reuse = f"off: {args.why_no_reuse}" if args.why_no_reuse else "on" if args.reuse_old_logps else "off"
    ways = {"pack_groups": trainer.ways.packing, "compact_generation": trainer.ways.generation}
    facts = {
        "trains": f"{trainer._base_name() or type(policy).__name__} ({kind}), {steps} steps",
        "reward": ", ".join(trainer.reward_func_names),
        "variant": f"{args.variant}: {VARIANTS[args.variant].description}",
        "resets": "; ".join(when) or "none",
        **ways,
        "reuse_old_logps": reuse,
        "run folder": str(trainer.run_dir),
    }
    return [f"{name:<20}{told}" for name, told in facts.items()]


class NoDict(ProgressCallback):
    """transformers' bar, without the dict of all metrics."""

    def on_log(self, *args, **kwargs):
        """[`Terminal`] writes a line instead."""


class Terminal(PrinterCallback):
    """
    Shows a run on its main process.

    Args:
        trainer ([`ProRLTrainer`]):
            Of the run; its callback of a progress bar or of printing is replaced.
    """

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
        bar = getattr(self.bar, "training_bar", None)
        (print if bar is None else bar.write)(line)

    def event(self, event: Mapping[str, Any]) -> None:
        """A reset, or another event of a step."""
        if self.shows:
            self.say(event_line(event))

    def on_train_begin(self, args, state, control, **kwargs):
        self.shows = self.logs and state.is_world_process_zero
        done, steps = state.global_step, state.max_steps
        alone = [key for key in KEYS if getattr(args, key)] == ["ref_reset_every"]
        if state.is_world_process_zero and alone and self.trainer.resets.watched == 1:
            if args.first_reset(steps) is None:
                logger.warning(
                    "%s never resets: ref_reset_every=%s comes with the generation after step %s, and the run ends at "
                    "step %s%s. Lower ref_reset_every, or raise max_steps above that.",
                    *(args.variant, args.ref_reset_every, args.first_reset(sys.maxsize), steps),
                    "; it is the control" if args.variant in RESET_APART else "",
                )
        if self.is_watched:
            for line in banner(self.trainer, steps):
                self.say(line)
        if self.shows and done:
            over = f"finished, nothing to do: checkpoint-{done} is the last step of {self.trainer.run_dir}"
            self.say(f"resumed from checkpoint-{done}" if done < steps else over)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self.logs and state.is_local_process_zero and logs:
            if self.bar is None or self.bar.training_bar is not None:
                self.say(log_line(logs, state.global_step))
