"""
Means over rows and tokens of what TRL logs.

TRL keeps a list of values for each metric, one of each generation batch or micro-batch since its last log, and logs
their plain mean. That is wrong where they are means of unequal numbers of rows or tokens; and TRL gives an empty
micro-batch the value 0.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..parts import Part
from ..weighted_mean import weighted_mean
from .meter import Meter


# Means over the tokens of a micro-batch. With sequence-level ratios the second are means over completions.
TOKEN_MEANS = ("entropy", "kl", "vespo/phi_seq_mean")
RATIO_MEANS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")
LEAST = (
    "completions/min_length",
    "completions/min_terminated_length",
    "clip_ratio/low_min",
    "sampling/importance_sampling_ratio/min",
)
MOST = (
    "completions/max_length",
    "completions/max_terminated_length",
    "clip_ratio/high_max",
    "sampling/sampling_logp_difference/max",
    "sampling/importance_sampling_ratio/max",
)
ENDED = tuple(f"completions/{kind}_terminated_length" for kind in ("mean", "min", "max"))  # of those that ended


class Means(Part):
    """
    Keeps, next to TRL's lists of values, the weight of each mean.

    Args:
        args ([`~trl_prorl.ProRLConfig`]): `importance_sampling_level`, `skip_zero_rows`.
        metrics (`Mapping[str, dict[str, list[float]]]`): TRL's lists by `"train"` or `"eval"`, and by metric.
        meter ([`Meter`]): Knows the tokens of each micro-batch of a step.
    """

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
        self._weights: dict[str, dict[str, list]] = {"train": {}, "eval": {}}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self._weights["train"]}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self._weights["train"] = state["weights"]

    def add(self, mode: str, metric: str, weight: float | torch.Tensor) -> None:
        """Record what the newest value of a metric is a mean of: so many rows or tokens, 0 if of none."""
        self._weights[mode].setdefault(metric, []).append(weight)

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

    def add_evaluated(self, tokens: float) -> None:
        """Record the number of tokens of the newest loss of an evaluation."""
        for metric in self.of_tokens:
            self._complete("eval", metric, [tokens])

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
        for metric in self.of_tokens:
            self._complete("train", metric, tokens)

    def _complete(self, mode: str, metric: str, weights: Sequence[float]) -> None:
        """Add weights to a metric whose newest values have none."""
        missing = len(self.metrics[mode].get(metric, ())) - len(self._weights[mode].get(metric, ()))
        if missing == len(weights):
            self._weights[mode].setdefault(metric, []).extend(weights)

    def read(self) -> None:
        """Read what micro-batches of training have left on the device, all at once."""
        lists = [*self.metrics["train"].values(), *self._weights["train"].values()]
        places = [(values, place) for values in lists for place, value in enumerate(values) if torch.is_tensor(value)]
        if places:
            numbers = torch.stack([values[place] for values, place in places]).tolist()
            for (values, place), number in zip(places, numbers, strict=True):
                values[place] = number

    def combine(self, mode: str) -> None:
        """Leave of each metric one value, over all rows and tokens since the last log."""
        metrics = self.metrics[mode]
        for metric, values in list(metrics.items()):
            weights = self._weights[mode].get(metric, [])
            if len(weights) != len(values):
                weights = [1.0] * len(values)
            pairs = zip(values, weights, strict=True)
            counted = [value for value, weight in pairs if weight and not math.isnan(value)]
            if counted and metric in LEAST:
                metrics[metric] = [min(counted)]
            elif counted and metric in MOST:
                metrics[metric] = [max(counted)]
            elif counted:
                metrics[metric] = [weighted_mean(values, weights)]
            elif metric in self.of_tokens:
                del metrics[metric]  # of no token
        self._weights[mode].clear()
