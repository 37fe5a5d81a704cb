"""
The anchors of the KL terms: the reference, π_old and the base, each with its coefficient, and `kl_target`'s
adaptation.

Pure arithmetic on batches of log-probabilities. The scorer decides who scores them, and when.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..descriptor import switched_off
from ..parts import Part
from . import kl


def next_coefficient(coefficient: float, kl: float, target: float, steps: int, horizon: float) -> float:
    """
    β ← β · (1 + clip(kl/target − 1, −0.2, 0.2) · steps/horizon), from Ziegler et al. 2019 (arXiv 1909.08593, section
    2.2), positive and at least half of β: `kl` and `target` in nats per token, `steps` optimizer steps since the last
    call, `horizon` those in which a persistent error of 20 % or more moves β by 20 %.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * max(1.0 + error * steps / horizon, 0.5)


@dataclass
class Anchor:
    """
    An anchor of the policy.

    Attributes:
        name (`str`): `"ref"`, `"old"` or `"base"`.
        key (`str`), metric (`str`): The key of [`ProRLConfig`] with its coefficient, and TRL's name for its KL.
        coefficient (`float`): In force; 0 means no KL term.
    """

    name: str
    key: str
    metric: str
    coefficient: float

    @property
    def logps(self) -> str:
        """The key under which a batch holds its log-probabilities."""
        return logps_key(self.name)

    @property
    def record(self) -> str:
        """The key of its KL in the record."""
        return f"kl_{self.name}"


@dataclass(frozen=True)
class Penalty:
    """
    The KL terms of a micro-batch: the penalty of each anchor that acts, without its coefficient, shape `(B, T)`; and
    the scalar that enters the loss.
    """

    of: dict[str, torch.Tensor]
    loss: torch.Tensor


def logps_key(name: str) -> str:
    """The key of a batch that holds an anchor's log-probabilities, shape `(B, T)`."""
    return f"{name}_per_token_logps"


def completion_mask(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """1 where a token of a completion counts, shape `(B, T)`: not padding, and not written by a tool."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def counted(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """
    Values `(B, T)` with 0 where the mask is 0. A product with the mask would not do: at a token that does not count,
    such as one that a tool wrote, the exponential of a log-ratio may be infinite, and 0 · ∞ is NaN, in a gradient too.
    """
    return values.masked_fill(mask == 0, 0.0)


class Anchors(Part):
    """Every anchor of a run, in the order in which `kl_target` looks for the active one."""

    def __init__(self, args):
        self.args = args
        self.begin()

    def begin(self) -> None:
        args = self.args
        self.all = {
            "ref": Anchor("ref", "beta", "kl", args.beta),
            "old": Anchor("old", "beta_old", "kl_old", args.beta_old),
            "base": Anchor("base", "beta_base", "kl_base", args.beta_base),
        }
        self._kl_since_generation: list[float] = []

    def __getitem__(self, name: str) -> Anchor:
        return self.all[name]

    def __iter__(self) -> Iterator[Anchor]:
        return iter(self.all.values())

    @property
    def active(self) -> Anchor | None:
        """The first anchor with a coefficient: its coefficient is logged and adapted."""
        return next((anchor for anchor in self if anchor.coefficient != 0.0), None)

    def acting(self, batch: Mapping[str, torch.Tensor]) -> list[Anchor]:
        """The anchors with a KL term in the loss: the base scores only some of the generation batches."""
        return [] if self.args.kl_in == "reward" else self._scored(batch)

    def in_reward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """
        What `kl_in: reward` takes off the reward of each completion, shape `(B,)`: Σ coefficient · k1 over anchors and
        tokens, of the policy that sampled. `None` if the KL is in the loss.
        """
        if self.args.kl_in == "loss":
            return None
        old, mask = batch[logps_key("old")], completion_mask(batch)
        found = [
            anchor.coefficient * counted(old - batch[anchor.logps], mask).sum(1) for anchor in self._scored(batch)
        ]
        return torch.stack([torch.zeros(len(old), device=old.device), *found]).sum(0)

    def _scored(self, batch: Mapping[str, torch.Tensor]) -> list[Anchor]:
        return [
            anchor for anchor in self if anchor.coefficient != 0.0 and (anchor.name != "base" or anchor.logps in batch)
        ]

    def penalties(self, batch: Mapping[str, torch.Tensor], logps: torch.Tensor, level: str) -> dict[str, torch.Tensor]:
        """
        The per-token penalty of every anchor that acts on a batch, without its coefficient, shape `(B, T)` each: from
        the batch's `advantages`, `(B,)`, masks and anchors' log-probabilities, `(B, T)`, the policy's with gradient,
        and TRL's `importance_sampling_level`.
        """
        mask = completion_mask(batch)
        if self.args.drop_zero_rows:
            mask = mask * (batch["advantages"].unsqueeze(1) != 0.0)
        old = batch.get(logps_key("old"), logps.detach())
        logps, old = counted(logps, mask), counted(old, mask)
        ratio = None
        if self.args.use_bias_correction_kl:
            ratio = kl.importance_ratio(logps, old, mask, level)
        found = {}
        for anchor in self.acting(batch):
            anchor_logps = old if anchor.name == "old" else counted(batch[anchor.logps], mask)
            found[anchor.name] = kl.kl_penalty(logps, anchor_logps, self.args.kl_estimator, ratio, self.args.kl_clamp)
        return found

    def beyond_clamp(self, batch: Mapping[str, torch.Tensor], logps: torch.Tensor) -> torch.Tensor:
        """
        Which tokens' estimates, of any anchor that acts on a batch, lie beyond `kl_clamp`, shape `(B, T)`; arguments
        as in [`Anchors.penalties`].
        """
        beyond = torch.zeros_like(logps, dtype=torch.bool)
        for anchor in self:
            if anchor.coefficient != 0.0 and anchor.logps in batch:
                beyond |= kl.beyond_clamp(logps, batch[anchor.logps], self.args.kl_estimator, self.args.kl_clamp)
        return beyond

    def penalty(
        self, batch: Mapping[str, torch.Tensor], logps: torch.Tensor, level: str, weights: torch.Tensor
    ) -> Penalty | None:
        """
        Σ coefficient · penalty over anchors and tokens, or `None` if none acts; arguments as in [`Anchors.penalties`],
        and the weight of each token in the loss, shape `(B, T)`.
        """
        penalties = self.penalties(batch, logps, level)
        if not penalties:
            return None
        weighted = sum(self[name].coefficient * penalty for name, penalty in penalties.items())
        return Penalty(penalties, (weighted * weights).sum())

    @contextmanager
    def apart(self, name: str, apart: bool) -> Iterator[None]:
        """TRL's loss leaves out the KL to an anchor whose coefficient is 0: a context for a term that is ours."""
        anchor = self[name]
        coefficient = anchor.coefficient
        anchor.coefficient = 0.0 if apart else coefficient
        try:
            yield
        finally:
            anchor.coefficient = coefficient

    def means(
        self, penalties: Mapping[str, torch.Tensor], mask: torch.Tensor, total: Callable[[torch.Tensor], torch.Tensor]
    ) -> dict[str, float]:
        """
        The mean of every penalty over the tokens of all processes, over which `total` sums, by TRL's name for it.
        """
        found = {}
        for name, penalty in penalties.items():
            weighed, tokens = total(torch.stack([(penalty.detach() * mask).sum(), mask.sum().float()]))
            found[self[name].metric] = (weighed / tokens.clamp(min=1.0)).item()
        return found

    def row(self, step: int, row: Mapping[str, float]) -> None:
        """Keep the active anchor's KL for the next adaptation."""
        active = self.active
        if active is not None and active.record in row:
            self._kl_since_generation.append(row[active.record])

    def boundary(self, step: int) -> None:
        """Move the active coefficient towards `kl_target`, if there is one."""
        values, self._kl_since_generation = self._kl_since_generation, []
        if self.args.kl_target is None or not values:
            return
        self.active.coefficient = next_coefficient(
            self.active.coefficient, sum(values) / len(values), self.args.kl_target, len(values), self.args.kl_horizon
        )

    def state_dict(self) -> dict[str, Any]:
        coefficients = {anchor.key: anchor.coefficient for anchor in self}
        return {"coefficients": coefficients, "kl_since_generation": self._kl_since_generation}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        for anchor in self:
            if anchor.key not in changed and not switched_off(changed, "kl_target"):
                anchor.coefficient = state["coefficients"].get(anchor.key, anchor.coefficient)
        self._kl_since_generation = list(state["kl_since_generation"])
