"""
What is known of a step when it is finished: a row of `metrics.jsonl`, and the means of the trainer's own log.

In reading order:

- `Recorder` makes a run's rows, events and evaluations, and writes them. A row is begun by the first generation batch
  or micro-batch of a step, and finished after its update, before its checkpoint.
- `UpdateNorm` measures how far an update moved the weights.
- `Means` corrects what TRL logs. TRL keeps a list of values for each metric, one of each generation batch or
  micro-batch since its last log, and logs their plain mean. That is wrong where they are means of unequal numbers of
  rows or tokens; and TRL gives an empty micro-batch the value 0.

All observe and change nothing. `columns.py` says what each key means, `meter.py` has counts, times and sums.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import kl
from .anchors import OldPolicyAnchor, ReferenceAnchor
from .kl import Anchors, completion_mask
from .meter import IN_LOSS, Meter, weighted_mean
from .parts import MicroBatch, Part
from .run_files import EVALUATIONS_FILE, EVENTS_FILE, METRICS_FILE, RESET, JsonLines


# Entries of a generation batch in `metrics.jsonl`, and TRL's names for it.
OF_TRL = {
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "frac_reward_zero_std",
    "completion_length": "completions/mean_length",
    "truncated_fraction": "completions/clipped_ratio",
}
CLIPPED = "clip_ratio/region_mean"  # TRL's name for `clip_region_mean`, of a micro-batch
OF_TRLS_REWARDS = "rewards/"  # the mean and the standard deviation of each function have these names in both
# What Trainer adds to an evaluation's metrics.
SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


class Recorder(Part):
    """
    Gathers what a step measures, and writes it down.

    Args:
        args ([`~trl_prorl.ProRLConfig`]): The trainer's arguments.
        meter ([`Meter`]): Has the counts, times and means of a step.
        anchors ([`Anchors`]): Their KL, and the coefficient of the active one, are recorded.
        accelerator: Sums over processes.
    """

    remembers = ("kl_ref", "generation_row", "generation_counts")

    def __init__(self, args, meter: Meter, anchors: Anchors, accelerator):
        self.args = args
        self.meter = meter
        self.anchors = anchors
        self.accelerator = accelerator
        self.total = partial(accelerator.reduce, reduction="sum")
        self.metrics = self.events = self.evaluations = None
        self.update_norm: UpdateNorm | None = None
        self.begin()

    def optimizer_made(self, optimizer) -> None:
        if self.update_norm is None and self.args.log_update_norm:
            self.update_norm = UpdateNorm(optimizer)

    def begin(self) -> None:
        self.kl_ref: float | None = None  # of the last finished step
        # The entries of the generation batches of a step, and of how many rows each of these is. The steps after it,
        # which train on the same batches, have them too.
        self.generation_row: dict[str, list[float]] = {}
        self.generation_counts: dict[str, list[int]] = {}
        self._counts: Mapping[str, int] = {}
        self._begin_row()
        self.meter.abandon_step()

    def _begin_row(self) -> None:
        self.of_step: dict[str, float | None] = {"time_reward": 0.0, "time_eval": 0.0}  # entries that are known
        self._clipped: list[float] = []  # share of each micro-batch

    # A step, from its generation to its row.

    def rewarded(self, counts: Mapping[str, int], seconds: float) -> None:
        """
        Take note of a generation batch that is about to be recorded.

        Args:
            counts (`Mapping[str, int]`): The rows that an entry is a mean of, where those are not all.
            seconds (`float`): The reward functions took so long.
        """
        self._counts = counts
        self.of_step["time_reward"] += seconds

    def batch(self, batch: Mapping[str, torch.Tensor], measured: Mapping[str, float], tokens: int) -> None:
        """Add a generation batch to the entries of its step, which `finish_step` joins by a mean weighted by rows."""
        advantages = self.accelerator.gather(batch["advantages"].float())
        mean, deviation = torch.stack([advantages.mean(), advantages.std()]).tolist()
        if "tokens_generated" not in self.of_step:  # the first generation of this step
            self.generation_row = {}
            self.generation_counts = {}
            self.of_step["tokens_generated"] = 0
        self.of_step["tokens_generated"] += tokens
        for name, value in {"advantage_mean": mean, "advantage_std": deviation, **measured}.items():
            self.generation_row.setdefault(name, []).append(value)
            self.generation_counts.setdefault(name, []).append(self._counts.get(name, len(advantages)))

    def micro_batch(self, micro_batch: MicroBatch) -> None:
        """Add one micro-batch to the means over tokens."""
        batch = micro_batch.batch
        logps = micro_batch.logps
        old = batch.get(OldPolicyAnchor.column)
        ref = batch.get(ReferenceAnchor.column)
        mask = completion_mask(batch)
        self.meter.add_count(IN_LOSS, mask.sum())  # computed or not
        if micro_batch.rows is not None:
            mask = torch.zeros_like(mask).index_copy(0, micro_batch.rows, mask[micro_batch.rows])
        # A dropped row has no penalty, so its KL steers nothing, whether it was computed or not.
        kl_mask = mask
        if self.args.drop_zero_rows:
            kl_mask = mask * (batch["advantages"].unsqueeze(1) != 0.0)
        means = {"entropy": micro_batch.entropies}
        if old is not None:
            means["mean_abs_dlogp"] = (logps - old).abs()
        if old is not None and ref is not None:
            means["k2_ref_over_old"] = kl.kl_values(ref, old, "k2")
        if micro_batch.sampler_logps is not None:  # before any update, so that the policy is π_old
            policy = logps if old is None else old
            means["mean_abs_dlogp_sampler"] = (micro_batch.sampler_logps - policy).abs()
        kls = {}
        for anchor in self.anchors:
            if batch.get(anchor.column) is not None:
                kls[anchor.kl_key] = kl.kl_values(logps, batch[anchor.column], "k3")
        self.meter.add_means(means, mask)
        self.meter.add_means(kls, kl_mask)
        if self.args.kl_clamp is not None:
            beyond = self.anchors.beyond_clamp(batch, logps)
            self.meter.add_count("kl_clamped", (beyond * kl_mask).sum().long())
        if micro_batch.penalty is not None:
            self.meter.add_total("kl_penalty", micro_batch.penalty)
        if CLIPPED in micro_batch.trl_metrics:
            self._clipped.append(micro_batch.trl_metrics[CLIPPED])

    def before_update(self, step: int, norm: float, rate: float) -> None:
        self.of_step["lr"] = rate
        self.of_step["grad_norm"] = norm

    def finish_step(self, step: int, skips: int) -> dict[str, float]:
        """
        Close the step, write its row and return it.

        Args:
            step (`int`): Optimizer steps done.
            skips (`int`): Optimizer steps that were left out so far.
        """
        row: dict[str, float | None] = {"step": step}
        for name, values in self.generation_row.items():
            row[name] = weighted_mean(values, self.generation_counts[name])
        row.update(self.meter.end_step(self.total, self.accelerator.num_processes))
        if self._clipped:
            of_tokens = self.args.importance_sampling_level == "token"
            weights = self.meter.micro_batch_tokens if of_tokens else [1.0] * len(self._clipped)
            row["clip_region_mean"] = weighted_mean(self._clipped, weights)
        row["beta"] = self.anchors.active.coefficient if self.anchors.active else 0.0
        row["tokens_generated"] = 0
        row.update(self.of_step)
        self._begin_row()
        if self.update_norm is not None:
            row["update_norm"] = self.update_norm.take()
        if self.args.nonfinite == "skip":
            row["nonfinite_skips"] = skips
        row = {name: value for name, value in row.items() if value is not None and math.isfinite(value)}
        self.kl_ref = row.get("kl_ref")
        if self.metrics is not None:
            self.metrics.write(row)
        return row

    # Events and evaluations.

    def event(self, event: dict[str, Any]) -> None:
        """Write an event: a reset, with the KL before it; a resume, …"""
        if event["event"] == RESET and self.kl_ref is not None:
            event["kl_before"] = self.kl_ref
        if self.events is not None:
            self.events.write(event)

    def evaluation(self, step: int, metrics: Mapping[str, float], sets: Iterable[str]) -> None:
        """
        Write the metrics of one evaluation, without its own speed.

        Args:
            step (`int`): Optimizer steps done.
            metrics (`Mapping[str, float]`): All metrics of the evaluation.
            sets (`Iterable[str]`): Names of the evaluation sets where there are several; the metrics' names hold them.
        """
        if self.evaluations is None:
            return
        prefixes = ["eval_", *(f"eval_{name}_" for name in sets)]
        speeds = {prefix + speed for prefix in prefixes for speed in SPEEDS}
        kept = {name: value for name, value in metrics.items() if name.startswith("eval_") and name not in speeds}
        self.evaluations.write({"step": step, **kept})

    def charge_evaluation(self, step: int, seconds: float) -> None:
        """
        Charge an evaluation to the step before it, whose row is already written.

        An evaluation before the first step is charged to the first step.
        """
        if self.metrics is None or not self.metrics.add_to_last(step, "time_eval", seconds):
            self.of_step["time_eval"] += seconds

    # Files, on the main process alone.

    def open(self, folder: Path, keep_row: Callable | None = None, keep_event: Callable | None = None) -> None:
        """
        Begin the three files, or continue those of a run that is resumed.

        Args:
            folder (`Path`): Folder of the log files.
            keep_row (`Callable`, *optional*): Which rows stay; `None` begins new files.
            keep_event (`Callable`, *optional*): Which events stay; `None` begins a new file.
        """
        self.metrics = JsonLines(folder / METRICS_FILE, keep_row)
        self.events = JsonLines(folder / EVENTS_FILE, keep_event)
        evaluations = folder / EVALUATIONS_FILE  # cut to the checkpoint, too, by a resume that evaluates no longer
        if self.args.eval_strategy != "no" or (keep_row is not None and evaluations.exists()):
            self.evaluations = JsonLines(evaluations, keep_row)

    @property
    def files(self) -> Iterable[Path]:
        """The files that are open."""
        return [log.path for log in (self.metrics, self.events, self.evaluations) if log is not None]


class UpdateNorm:
    """
    Measures the norm of an optimizer's last update, over all its parameters.

    Args:
        optimizer (`torch.optim.Optimizer`): Gets hooks; its parameters are copied before every update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._value: float | None = None
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        optimizer.register_step_pre_hook(self._copy)
        optimizer.register_step_post_hook(self._measure)

    def _copy(self, optimizer, args, kwargs) -> None:
        params = [param.detach() for group in optimizer.param_groups for param in group["params"]]
        self._before = [(param, param.clone()) for param in params]

    def _measure(self, optimizer, args, kwargs) -> None:
        squares = [(param - old).float().square().sum() for param, old in self._before]
        self._value = torch.stack(squares).sum().sqrt().item()
        self._before = []

    def take(self) -> float | None:
        """Return the norm once; `None` if the optimizer has not updated since, as where a scaler left a step out."""
        value = self._value
        self._value = None
        return value


# Means over the tokens of a micro-batch. With sequence-level ratios the second are means over completions, as
# `vespo/phi_seq_mean` always is.
TOKEN_MEANS = ("entropy", "kl")
RATIO_MEANS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")
# What is no mean.
EXTREMES = {
    "completions/min_length": min,
    "completions/min_terminated_length": min,
    "clip_ratio/low_min": min,
    "sampling/importance_sampling_ratio/min": min,
    "completions/max_length": max,
    "completions/max_terminated_length": max,
    "clip_ratio/high_max": max,
    "sampling/sampling_logp_difference/max": max,
    "sampling/importance_sampling_ratio/max": max,
}
ENDED = tuple(f"completions/{kind}_terminated_length" for kind in ("mean", "min", "max"))  # of those that ended


class Means(Part):
    """
    Keeps, next to TRL's lists of values, the weight of each mean.

    Args:
        args ([`~trl_prorl.ProRLConfig`]): `importance_sampling_level`, `skip_zero_rows`.
        metrics (`Mapping[str, dict[str, list[float]]]`): TRL's lists by `"train"` or `"eval"`, and by metric.
        meter ([`Meter`]): Knows the tokens of each micro-batch of a step.
    """

    remembers = ("weights",)
    may_join = True  # with what is logged from then on

    def __init__(self, args, metrics: Mapping[str, dict[str, list[float]]], meter: Meter):
        self.metrics = metrics
        self.meter = meter
        self.skips_rows = args.skip_zero_rows
        self.of_tokens = TOKEN_MEANS
        if args.importance_sampling_level == "token":
            self.of_tokens += RATIO_MEANS
        self.begin()

    def begin(self) -> None:
        self.weights: dict[str, list] = {}  # of the training's metrics
        self.eval_weights: dict[str, list] = {}

    def _weights(self, mode: str) -> dict[str, list]:
        return self.weights if mode == "train" else self.eval_weights

    def add(self, mode: str, metric: str, weight: float | torch.Tensor) -> None:
        """Record what the newest value of a metric is a mean of: so many rows or tokens, 0 if of none."""
        self._weights(mode).setdefault(metric, []).append(weight)

    def lengths(self, mode: str) -> dict[str, int]:
        """Return how many values each metric has."""
        return {metric: len(values) for metric, values in self.metrics[mode].items()}

    def add_batch(self, mode: str, before: Mapping[str, int], counts: Mapping[str, int], rows: int) -> None:
        """
        Record what the values of a generation batch are means of.

        Args:
            mode (`str`): `"train"` or `"eval"`.
            before (`Mapping[str, int]`): The lengths before it.
            counts (`Mapping[str, int]`): By metric, the rows that it has a value for, if those are not all.
            rows (`int`): All rows.
        """
        metrics = self.metrics[mode]
        ended = 0
        if "completions/clipped_ratio" in metrics:
            ended = round(rows * (1.0 - metrics["completions/clipped_ratio"][-1]))
        counts = {**dict.fromkeys(ENDED, ended), **counts}
        if "tools/call_frequency" in metrics:
            counts["tools/failure_frequency"] = round(rows * metrics["tools/call_frequency"][-1])
        for metric, values in metrics.items():
            if len(values) > before.get(metric, 0):
                self.add(mode, metric, counts.get(metric, rows))

    def add_tokens(self, mode: str, tokens: Sequence[float]) -> None:
        """Record the tokens of the newest micro-batches, of which means over tokens have no weight yet."""
        weights = self._weights(mode)
        for metric in self.of_tokens:
            missing = len(self.metrics[mode].get(metric, ())) - len(weights.get(metric, ()))
            if missing == len(tokens):
                weights.setdefault(metric, []).extend(tokens)

    def row(self, step: int, row: Mapping[str, float]) -> None:
        """Record the number of tokens of the micro-batches of a step."""
        metrics = self.metrics["train"]
        tokens = self.meter.micro_batch_tokens
        if self.skips_rows and "entropy" in metrics:
            # Of the rows that were computed; TRL's mean of several processes does not know their numbers.
            del metrics["entropy"][-len(tokens) :]
            if "entropy" in row:
                metrics["entropy"].append(row["entropy"])
                self.add("train", "entropy", self.meter.tokens_of_means["entropy"])
        self.add_tokens("train", tokens)

    def read(self) -> None:
        """Read what micro-batches of training have left on the device, all at once."""
        lists = [*self.metrics["train"].values(), *self.weights.values()]
        places = [(values, place) for values in lists for place, value in enumerate(values) if torch.is_tensor(value)]
        if places:
            numbers = torch.stack([values[place] for values, place in places]).tolist()
            for (values, place), number in zip(places, numbers, strict=True):
                values[place] = number

    def combine(self, mode: str) -> None:
        """Leave of each metric one value, over all rows and tokens since the last log."""
        metrics = self.metrics[mode]
        for metric, values in list(metrics.items()):
            weights = self._weights(mode).get(metric, [])
            if len(weights) != len(values):
                weights = [1.0] * len(values)
            pairs = zip(values, weights, strict=True)
            counted = [value for value, weight in pairs if weight and not math.isnan(value)]
            if counted and metric in EXTREMES:
                metrics[metric] = [EXTREMES[metric](counted)]
            elif counted:
                metrics[metric] = [weighted_mean(values, weights)]
            elif metric in self.of_tokens:
                del metrics[metric]  # of no token
        self._weights(mode).clear()
