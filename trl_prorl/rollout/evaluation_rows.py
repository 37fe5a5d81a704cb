"""The rows of one evaluation, whatever batches they came in: rewards, lengths, entropies, and their means."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from transformers.trainer_utils import has_length
from trl.trainer.utils import nanstd

from ..weighted_mean import weighted_mean
from .outcome import groups_without_signal, weighted_sum


# TRL's losses that are means over the tokens of a batch; the others are means over its completions.
TOKEN_LOSSES = ("bnpo", "dapo", "cispo", "vespo")


def count_rows(dataset: Any, n: int) -> int | None:
    """
    Count the completions of an evaluation set, `n` of each prompt; `None` if it has no length. With several processes
    the last batch is filled with prompts from the set's beginning, which must not count twice.
    """
    return len(dataset) * n if has_length(dataset) else None


class EvaluationRows:
    """Gathers the rows of all processes, in the order of the set."""

    def __init__(self):
        self.begin()

    def begin(self) -> None:
        """Begin an evaluation."""
        self._columns: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._losses: list[float] = []
        self._loss_weights: list[float] = []

    def add(self, **columns: torch.Tensor) -> None:
        """Add columns of a batch, each with the rows of all processes."""
        for name, values in columns.items():
            self._columns[name].append(values.detach().cpu())

    def add_loss(self, loss: float, weight: float) -> None:
        """Add the loss of a batch, a mean over so many rows or tokens."""
        self._losses.append(loss)
        self._loss_weights.append(weight)

    def loss(self) -> float | None:
        """Average the losses; `None` where all batches are alike, so that the plain mean is right."""
        finite = [place for place, loss in enumerate(self._losses) if math.isfinite(loss)]
        weights = [self._loss_weights[place] for place in finite]
        if len(set(weights)) <= 1:
            return None
        return weighted_mean([self._losses[place] for place in finite], weights)

    def metrics(
        self, end: int | None, names: Sequence[str], weights: torch.Tensor, group_size: int, aggregation: str
    ) -> dict[str, float]:
        """
        Compute TRL's metrics of an evaluation over its rows.

        Args:
            end (`int`, *optional*): How many rows count.
            names (`Sequence[str]`): Of the F reward functions.
            weights (`torch.Tensor` of shape `(F,)`): Theirs.
            group_size (`int`): Completions of a prompt.
            aggregation (`str`): TRL's `multi_objective_aggregation`.
        """
        if not self._columns:
            return {}
        columns = {name: torch.cat(values)[:end] for name, values in self._columns.items()}
        rewards = columns["rewards"].float()
        total = weighted_sum(rewards, weights)
        measured = {"reward": total.nanmean(), "reward_std": nanstd(total)}
        for name, column in zip(names, rewards.unbind(dim=1), strict=True):
            measured[f"rewards/{name}/mean"] = column.nanmean()
            measured[f"rewards/{name}/std"] = nanstd(column)
        if group_size > 1:
            constant = groups_without_signal(rewards, group_size, weights, aggregation)
            measured["frac_reward_zero_std"] = constant.float().mean()
        lengths = columns["lengths"].float()
        cut = columns["cut"]
        measured["completions/clipped_ratio"] = cut.float().mean()
        for kind, some in (("", lengths), ("terminated_", lengths[~cut])):
            if len(some):
                measured[f"completions/mean_{kind}length"] = some.mean()
                measured[f"completions/min_{kind}length"] = some.min()
                measured[f"completions/max_{kind}length"] = some.max()
        tokens = columns["tokens"].sum()
        if tokens:
            measured["entropy"] = columns["entropies"].double().sum() / tokens
        return {name: value.item() for name, value in measured.items()}
