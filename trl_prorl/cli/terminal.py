"""The lines that a run shows while it trains."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback

from ..anchors import ANCHORS
from ..keys import TRIGGER_KEYS
from ..optimizer import configured_rates
from ..run.log_files import ENV_FILE, GROWTH, NONFINITE, RESET, STALL, read_json
from ..run.provenance import passk_command
from ..text import shell_quote
from ..watch import Alarm
from .prompt_rows import named_sets
from .variants import DIFFER_BY_RESETS, VARIANTS


logger = logging.getLogger(__name__)

TRL_RATE = 1e-6  # TRL's default of learning_rate, which suits full fine-tuning
LORA_RATES = "1e-5 to 5e-4"  # those of the recipes that train an adapter on a pretrained model

KLS = [f"prorl/{anchor.kl_key}" for anchor in ANCHORS]
ACCURACY = "prorl/accuracy"
# The metrics in a line, the KLs last; all of them are in the log history and go to the trackers.
IN_A_LINE = [
    "reward",
    ACCURACY,
    "reward_std",
    "loss",
    "entropy",
    "grad_norm",
    "learning_rate",
    "completions/mean_length",
    "completions/clipped_ratio",
    "frac_reward_zero_std",
    *KLS,
]
REFERENCE_NOW = {0.0: "the reference is unchanged", 1.0: "the reference is now the policy"}
OF_AN_EVALUATION = ("_reward", "_in_training")


class Terminal(PrinterCallback):
    """Shows a run on its main process, in place of transformers' printing callbacks."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.shows = False
        there = {type(callback): callback for callback in trainer.callback_handler.callbacks}  # not a user's subclass
        theirs = [there[kind] for kind in (PrinterCallback, ProgressCallback) if kind in there]
        self.logs = bool(theirs)  # a notebook has a table of its own
        for callback in theirs:
            trainer.remove_callback(callback)
        trainer.add_callback(self)
        self.bar: ProgressBar | None = None
        if ProgressCallback in there:
            self.bar = ProgressBar()
            trainer.add_callback(self.bar)

    @property
    def is_watched(self) -> bool:
        return self.shows and sys.stdout.isatty() and not self.trainer.args.disable_tqdm

    def say(self, line: str) -> None:
        if not self.shows:
            return
        bar = getattr(self.bar, "training_bar", None)
        if bar is None:
            print(line, flush=True)
            return
        with bar.external_write_mode():
            print(line, flush=True)  # into a file, too, before the bar is drawn again

    def on_train_begin(self, args, state, control, optimizer, **kwargs):
        self.shows = self.logs and state.is_world_process_zero
        done = state.global_step
        steps = state.max_steps
        ended_by = self.trainer.parts["end"].ended_by
        if state.is_world_process_zero:
            self._warn_of_what_has_no_effect(args, steps)
            if hasattr(self.trainer.accelerator.unwrap_model(self.trainer.model), "peft_config"):
                warn_of_low_rate(optimizer)
        lines = [describe_processes(args), *describe_shared_prompts(self.trainer)]
        if self.is_watched:
            lines += banner(self.trainer, steps)
        if done >= steps:
            lines.append(f"nothing to do: {self.trainer.run_dir} already finished at checkpoint-{done}, its last step")
        elif ended_by is not None:
            alarms = [part for part in self.trainer.parts.values() if isinstance(part, Alarm)]
            (key,) = [alarm.key for alarm in alarms if alarm.name == ended_by]
            lines.append(
                f"nothing to do: {ended_by} has ended {self.trainer.run_dir} at checkpoint-{done}. To train on, "
                f"change {key} ({getattr(args, key)}), with allow_config_change: true"
            )
        elif done:
            lines.append(f"resumed from checkpoint-{done}")
        for line in lines:
            if line is not None:
                self.say(line)

    def _warn_of_what_has_no_effect(self, args, steps: int) -> None:
        if args.skip_zero_rows and args.zero_rows_obstacle is not None:
            logger.warning(
                f"skip_zero_rows=True skips no row: {args.zero_rows_obstacle} Remove skip_zero_rows, or for a KL set "
                "drop_zero_rows: true (which changes the objective)."
            )
        keys = [key for key in TRIGGER_KEYS if getattr(args, key)]
        resets_by_steps_alone = keys == ["ref_reset_every"] and args.guard_gap_action != "reset"
        for key, first in first_possible_steps(self.trainer).items():
            if first <= steps:
                continue
            lead = same = ""
            if key == "ref_reset_every" and resets_by_steps_alone:
                lead = f"{args.variant} never resets: "
                if args.variant in DIFFER_BY_RESETS:
                    same = ", so the run is the same as with a fixed reference"
            logger.warning(
                f"{lead}{key}={getattr(args, key)} cannot act before step {first}, and the run ends at step {steps}"
                f"{same}. Raise max_steps to {first} (or more), lower {key}, or remove it."
            )

    def on_train_end(self, args, state, control, **kwargs):
        watch = self.trainer.parts["signal_watch"]
        if state.is_world_process_zero and watch.never_had_signal:
            watch.warn(state.global_step)
        if args.stop_stall and state.best_model_checkpoint is not None:
            self.say(
                f"best checkpoint: {state.best_model_checkpoint}, {args.metric_for_best_model} "
                f"{state.best_metric:.4g} at step {state.best_global_step}"
            )
        if not self.trainer.recipe:  # a recipe's model is saved after this
            self.say_next()

    def say_next(self) -> None:
        """Print a run's folder, and the command that shows it."""
        if not self.shows:
            return
        folder = self.trainer.run_dir
        recipe = self.trainer.recipe
        command = f"trl-prorl report --runs {shell_quote(str(folder))}"  # a script has its own rows and verifier
        if recipe:
            command = passk_command(vars(recipe[0]), read_json(Path(folder, ENV_FILE)), folder)
        self.say(f"run folder: {folder}, next: {command}")

    def on_log(self, args, state, control, logs=None, **kwargs):
        is_shown = self.bar is None or self.bar.training_bar is not None
        if self.logs and state.is_local_process_zero and is_shown:
            self.say(write_log_line(logs, state.global_step, args.anchored))


def first_possible_steps(trainer) -> dict[str, int]:
    """Return the first optimizer step at which a key can act, by key."""
    args = trainer.args
    first: dict[str, int] = {}
    for key in ("ref_reset_every", "lora_growth_every", "elastic_reset_every"):
        if getattr(args, key):
            first[key] = args.next_boundary(getattr(args, key)) + 1
    if len(trainer.resets.callbacks) > 1:  # for a script's triggers alone it may be above `max_steps`
        first.pop("ref_reset_every", None)
    if args.ref_reset_kl_window > 1:
        first["ref_reset_kl_window"] = args.next_boundary(args.ref_reset_kl_window) + 1
    if args.entropy_floor is not None:
        first["entropy_patience"] = args.entropy_patience
    guard = trainer.parts.get("guard_gap")
    if guard is not None:  # it compares two averages
        first["guard_gap"] = guard.window + 1
    if args.eval_strategy == "steps":
        every = trainer.state.eval_steps
        if args.ref_reset_stall:  # the first evaluation is the best so far
            evaluations = args.ref_reset_stall + (not args.eval_on_start)
            first["ref_reset_stall"] = args.next_boundary(evaluations * every) + 1
        if args.stop_stall:
            first["stop_stall"] = (args.stop_stall + 1) * every
    return first


class ProgressBar(ProgressCallback):
    """Transformers' bar without the dict of all metrics."""

    def on_log(self, *args, **kwargs):
        pass


def banner(trainer, steps: int) -> list[str]:
    """Return the lines at the start of a run of `steps` optimizer steps."""
    args = trainer.args
    policy = trainer.accelerator.unwrap_model(trainer.model)
    trained = sum(param.numel() for param in policy.parameters() if param.requires_grad)
    kind = "LoRA, " if hasattr(policy, "peft_config") else "all "
    name = trainer.base_name() or type(policy).__name__
    facts = {
        "trains": f"{name} ({kind}{trained:,} parameters), {steps} steps",
        "reward": ", ".join(trainer.reward_func_names),
        "variant": f"{args.variant}: {VARIANTS[args.variant].description}",
        "resets": describe_resets(args, steps),
        "pack_groups": trainer.acceleration.packing,
        "merge_micro_batches": trainer.acceleration.merging,
        "compact_generation": trainer.acceleration.generation,
        "run folder": trainer.run_dir,
    }
    return [f"{name:<20}{fact}" for name, fact in facts.items()]


def describe_resets(args, steps: int) -> str:
    triggers = []
    if args.ref_reset_every > 0:
        first = args.first_reset(steps)
        triggers.append("never" if first is None else f"first after step {first}")
    for key in TRIGGER_KEYS:
        value = getattr(args, key)
        if key != "ref_reset_every" and value:
            triggers.append(f"{key}={value}")
    if args.guard_gap_action == "reset":
        triggers.append(f"guard_gap={args.guard_gap}")
    if args.has_own_triggers:
        triggers.append("a callback's triggers")
    if args.elastic_reset_every > 0:
        triggers.append(f"elastic_reset_every={args.elastic_reset_every}")
    return "; ".join(triggers) or "none"


def describe_processes(args) -> str | None:
    """Describe the completions of a step of several processes; `None` for one process."""
    processes = args.world_size
    if processes == 1:
        return None
    of_one = args.per_device_train_batch_size * args.gradient_accumulation_steps
    line = f"{processes} processes: {of_one * processes} completions per step, {processes} times as many as with one"
    if args.gradient_accumulation_steps % processes == 0:
        accumulated = args.gradient_accumulation_steps // processes
        line += f"; set gradient_accumulation_steps: {accumulated} to keep {of_one}"
    return line


def describe_shared_prompts(trainer) -> list[str]:
    """
    Return a line for each evaluation set that shares prompts with the training set, or cannot be compared with it.
    """
    lines = []
    for which, rows in named_sets(None, trainer.eval_dataset).items():
        if rows is None:
            continue
        share = trainer.share_in_training(rows)
        if share is None:
            lines.append(f"{which} could not be compared with the training set: some prompts cannot be read")
        elif share > 0:
            lines.append(f"{which} is not held-out: {share:.0%} of its prompts occur in the training set")
    return lines


def highest_rate(optimizer) -> float | None:
    """Return the highest learning rate of an optimizer's groups, without its schedule; `None` if it chooses all."""
    return max(configured_rates(optimizer), default=None)


def warn_of_low_rate(optimizer) -> None:
    """Warn if an adapter has a learning rate of full fine-tuning, such as TRL's default."""
    rate = highest_rate(optimizer)
    if rate is not None and 0.0 < rate <= TRL_RATE:
        logger.warning(
            f"learning_rate={rate:g} is too low for LoRA, the adapter will hardly change: TRL's default, "
            f"{TRL_RATE:g}, is meant for full fine-tuning. Set learning_rate: {LORA_RATES}."
        )


def write_log_line(logs: Mapping[str, Any], step: int, has_kl: bool) -> str:
    """Return one line of a log: the main metrics, else an evaluation's, else all numbers."""
    if "train_runtime" in logs:
        return f"trained to step {step} in {logs['train_runtime']:.4g} s"
    hidden = [] if has_kl else list(KLS)
    if "reward" not in logs:  # a step without a new generation batch repeats the accuracy of the last one
        hidden.append(ACCURACY)
    elif ACCURACY in logs:  # the line fits a terminal of 200 columns
        hidden.append("reward_std")
    names = [key for key in IN_A_LINE if key in logs and key not in hidden]
    each = [key for key in logs if key.startswith("rewards/") and key.endswith("/mean")]
    if len(each) > 1 and names:  # that of one alone is `reward`
        names += each
    evaluated = [key for key in logs if key.startswith("eval_") and key.endswith(OF_AN_EVALUATION) or "_pass@" in key]
    numbers = [key for key, value in logs.items() if isinstance(value, (int, float))]
    values = []
    for name in names or evaluated or numbers:
        label = name.rpartition("/")[2] if name in IN_A_LINE else name.removesuffix("/mean")
        if name == ACCURACY:
            label = "accuracy"
        value = logs[name]
        values.append(f"{label} {value:.4g}" if isinstance(value, float) else f"{label} {value}")
    return f"step {step}: " + "  ".join(values)


def write_event_line(event: Mapping[str, Any]) -> str:
    """Return one line of an event, see docs/reference.md."""
    parts = [f"step {event['step_applied']}: {event['event'].replace('_', ' ')}"]
    if event["event"] == RESET:
        moved = f"the reference moved by {event['ref_reset_mix']:g} towards the policy"
        parts.append(REFERENCE_NOW.get(event["ref_reset_mix"], moved))
        parts.append(f"optimizer {event['optimizer_reset']}")
        if event.get("kl_before") is not None:
            parts.append(f"kl_ref was {event['kl_before']:.4g}")
    if event["event"] == NONFINITE:
        parts.append(f"{event['tensor']}: the update was skipped")
    if event["event"] == GROWTH:
        parts.append(f"rank {event['rank_before']} -> {event['rank']}")
    if event["event"] == STALL:
        parts.append("the run ends")
    line = ", ".join(parts)
    if event.get("reason"):
        line += f" ({event['reason']})"
    return line
