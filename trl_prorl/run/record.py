"""
A run's log files, and what the trainer adds to TRL's log. Everything here only observes.

TRL appends its metrics to lists, and logs their means. A [`MetricReader`] reads what each of its methods appends.
"""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..anchors import OldPolicyAnchor, ReferenceAnchor
from ..kl import Anchors, completion_mask, has_advantage, kl_values
from ..parts import Event, MicroBatch, Part
from ..rollout import RolloutResult
from .columns import METRICS
from .log_files import ATTEMPT, EVALUATIONS_FILE, EVENTS_FILE, METRICS_FILE, RESET, JsonLines, next_attempt
from .meter import TOKENS_IN_LOSS, Means, Meter


# Columns of `metrics.jsonl` with another name in TRL's log.
COLUMNS = {
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "truncated_fraction",
    "clip_ratio/region_mean": "clip_region_mean",
    "learning_rate": "lr",
    "step_time": "time_step",
}
# Columns that the log has beside TRL's metrics, by their names there. Without a KL of its own TRL has no `kl`.
LOGGED = {f"prorl/{name}": name for name, key in METRICS.items() if key.logged} | {"kl": "kl"}
# TRL's means over tokens of a micro-batch. With sequence-level ratios `RATIO_MEANS` are means over completions, as
# `vespo/phi_seq_mean` always is.
TOKEN_MEANS = ("entropy", "kl")
RATIO_MEANS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")
# Trainer's additions to an evaluation's metrics.
SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


class MetricReader:
    """Reads TRL's lists of metrics, and leaves their values there. TRL's log begins new lists."""

    def __init__(self, lists: Mapping[str, list[float]]):
        self.lists = lists
        self._read: dict[str, tuple[list[float], int]] = {}  # by metric: its list, and the values that were read

    def read(self, means: Means) -> None:
        """Add what was appended since the last call to means."""
        for name, values in self.lists.items():
            last_values, count = self._read.get(name, (None, 0))
            if values is not last_values:
                count = 0
            for value in values[count:]:
                means.add(name, float(value))
            self._read[name] = (values, len(values))


def evaluation_row(step: int, attempt: int, metrics: Mapping[str, float], seconds: float | None) -> dict[str, Any]:
    """Return a line of `evaluations.jsonl`."""
    row = {"step": step, ATTEMPT: attempt}
    for name, value in metrics.items():
        is_number = value is not None and math.isfinite(value)  # None: a reward that scored no row
        if name.startswith("eval_") and not name.endswith(SPEEDS) and is_number:
            row[name] = value
    return {**row, "time_eval": seconds}


def token_means(level: str) -> tuple[str, ...]:
    """Name TRL's means over tokens, by `importance_sampling_level`."""
    return TOKEN_MEANS + RATIO_MEANS if level == "token" else TOKEN_MEANS


class Recorder(Part):
    """Gathers and writes a step's measurements."""

    remembers = ("kl_ref",)

    def __init__(self, args, meter: Meter, anchors: Anchors, accelerator):
        self.args = args
        self.meter = meter
        self.anchors = anchors
        self.accelerator = accelerator
        self.sum_processes = partial(accelerator.reduce, reduction="sum")
        self.token_means = token_means(args.importance_sampling_level)
        self.attempt = 0
        self.metrics = self.events = self.evaluations = None
        self.update_norm: UpdateNorm | None = None
        self.kl_ref: float | None = None  # of the last finished step
        # Means of each generation batch of the current step: ours, and TRL's. The newest is last.
        self._batches: list[tuple[Means, Means]] = []
        self._since_log = Means()  # by the names of the log
        self._begin_row()

    def optimizer_made(self, optimizer) -> None:
        if self.update_norm is None and self.args.log_update_norm:
            self.update_norm = UpdateNorm(optimizer)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "batches": self._batches, "since_log": self._since_log}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        super().load_state_dict(state, changed)
        self._batches = [(Means(measured), Means(trl_metrics)) for measured, trl_metrics in state["batches"]]
        self._since_log = Means(state["since_log"])

    def _begin_row(self) -> None:
        self.of_step: dict[str, float | None] = {"tokens_generated": 0, "time_reward": 0.0}  # entries of its row
        self.subclass_metrics = Means()  # appended to TRL's lists outside its methods
        self._batches = self._batches[-1:]  # on which the next step may train, too
        self._losses: list[Mapping[str, float]] = []  # TRL's metrics of each loss

    def add_generation(self, result: RolloutResult, advantages: torch.Tensor) -> None:
        """Add a generation batch, with this process's advantages, to its step's means over rows."""
        advantages = self.accelerator.gather(advantages.float())
        mean, deviation = torch.stack([advantages.mean(), advantages.std()]).tolist()
        self.of_step["tokens_generated"] += int(self.accelerator.gather(result.tokens).sum())
        self.of_step["time_reward"] += result.seconds
        if not self._losses:  # the step trains on no earlier batch
            self._batches.clear()
        measured = {"advantage_mean": mean, "advantage_std": deviation, **result.measured}
        self._batches.append((result.means(measured), result.means(result.trl_metrics)))

    def on_loss(self, micro_batch: MicroBatch) -> None:
        batch = micro_batch.batch
        logps = micro_batch.logps
        old_logps = batch.get(OldPolicyAnchor.column)
        ref_logps = batch.get(ReferenceAnchor.column)
        mask = completion_mask(batch)
        self.meter.add_count(TOKENS_IN_LOSS, mask.sum())  # computed or not
        self.meter.add_total("loss", micro_batch.loss.float())
        if micro_batch.rows is not None:
            mask = torch.zeros_like(mask).index_copy(0, micro_batch.rows, mask[micro_batch.rows])
        # A dropped row has no penalty in the loss, so its KL has no effect, computed or not.
        kl_mask = mask
        if self.args.drop_zero_rows and self.args.kl_in == "loss":
            kl_mask = mask * has_advantage(batch).unsqueeze(1)
        means = {}
        if self.args.skips_zero_rows:  # TRL's own counts rows that were not computed
            means["entropy"] = micro_batch.entropies
        if old_logps is not None:
            means["mean_abs_dlogp"] = (logps - old_logps).abs()
        if old_logps is not None and ref_logps is not None:
            means["k2_ref_over_old"] = kl_values(ref_logps, old_logps, "k2")
        if micro_batch.sampler_logps is not None:
            policy_logps = logps if old_logps is None else old_logps  # without the column no update was done
            means["mean_abs_dlogp_sampler"] = (micro_batch.sampler_logps - policy_logps).abs()
        kl_means = {}
        for anchor in self.anchors:
            if batch.get(anchor.column) is not None:
                kl_means[anchor.kl_key] = kl_values(logps, batch[anchor.column], "k3")
        if micro_batch.kl_loss is not None:
            self.meter.add_total("kl_penalty", micro_batch.kl_loss)
            primary = self.anchors.primary.name
            if self.args.adds_penalty and primary in micro_batch.kls:  # else TRL has it
                kl_means["kl"] = micro_batch.kls[primary]
        self.meter.add_means(means, mask)
        self.meter.add_means(kl_means, kl_mask)
        if self.args.kl_clamp is not None:
            beyond = self.anchors.beyond_clamp(batch, logps)
            self.meter.add_count("kl_clamped", (beyond * kl_mask).sum().long())
        self._losses.append(micro_batch.trl_metrics)

    def on_pre_optimizer_step(self, step: int, norm: float | None, rate: float) -> None:
        self.of_step["lr"] = rate
        self.of_step["grad_norm"] = norm

    def finish_step(self, step: int, skips: int) -> dict[str, float]:
        """
        Write a step's row and return it. Of values with the same name the last one counts: TRL's of the losses, of a
        subclass and of the generation batches, then ours of the batches, of the losses and times, and of the update.

        Args:
            step (`int`): The step.
            skips (`int`): Optimizer steps skipped so far.
        """
        metered = self.meter.end_step(self.sum_processes, self.accelerator.num_processes)
        batches = Means()
        trl_batches = Means()
        for measured, trl_metrics in self._batches:
            batches.merge(measured)
            trl_batches.merge(trl_metrics)
        trl_values = self._join_losses().values_by_name()
        trl_values |= self.subclass_metrics.values_by_name()
        trl_values |= trl_batches.values_by_name()

        place: dict[str, float | None] = {"step": step, ATTEMPT: self.attempt}
        row = dict(place)
        row |= {COLUMNS.get(name, name): value for name, value in trl_values.items()}
        row |= batches.values_by_name()
        row |= metered
        row |= self.of_step
        row["beta"] = self.anchors.primary.coefficient if self.anchors.primary else 0.0
        if self.update_norm is not None:
            row["update_norm"] = self.update_norm.take()
        if self.args.nonfinite == "skip":
            row["nonfinite_skips"] = skips
        row |= place  # a subclass's metric may have these names
        row = {name: value for name, value in row.items() if value is not None and math.isfinite(value)}

        self._begin_row()
        self.kl_ref = row.get("kl_ref")
        for name, column in LOGGED.items():
            if column in row:
                self._since_log.add(name, row[column])
        if self.metrics is not None:
            self.metrics.write(row)
        return row

    def _join_losses(self) -> Means:
        """Return the means of TRL's metrics of the step's losses, over tokens where TRL's are."""
        joined = Means()
        for trl_metrics, tokens in zip(self._losses, self.meter.micro_batch_tokens, strict=True):
            for name, value in trl_metrics.items():
                weight = tokens if name in self.token_means else 1.0
                if weight:
                    joined.add(name, value, weight)
        return joined

    def take_log(self) -> dict[str, float]:
        """Return the means of our columns since the last call, by their names in the log."""
        values = self._since_log.values_by_name()
        self._since_log = Means()
        return values

    def on_event(self, event: Event) -> None:
        event[ATTEMPT] = self.attempt
        if event["event"] == RESET:
            self._since_log.add("prorl/resets", 1.0)
            if self.kl_ref is not None:
                event["kl_before"] = self.kl_ref
        if self.events is not None:
            self.events.write(event)

    def write_evaluation(self, step: int, metrics: Mapping[str, float], seconds: float) -> None:
        if self.evaluations is not None:
            self.evaluations.write(evaluation_row(step, self.attempt, metrics, seconds))

    # Files, on the main process only.

    def open(self, folder: Path, resumes: bool = False) -> None:
        self.attempt = next_attempt(folder) if resumes else 0
        self.metrics = JsonLines(folder / METRICS_FILE, resumes)
        self.events = JsonLines(folder / EVENTS_FILE, resumes)
        if self.args.eval_strategy != "no":
            self.evaluations = JsonLines(folder / EVALUATIONS_FILE, resumes)

    @property
    def files(self) -> Iterable[Path]:
        return [log.path for log in (self.metrics, self.events, self.evaluations) if log is not None]


class UpdateNorm:
    """Measures the norm of an optimizer's last update over all parameters, which it copies before."""

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
        """Return the norm once; `None` without an update since, for example after a step skipped by a scaler."""
        value = self._value
        self._value = None
        return value
