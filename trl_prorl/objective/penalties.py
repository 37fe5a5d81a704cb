"""
The KL terms of a run: the coefficient of every anchor, the penalties of a batch, and `kl_target`'s adaptation.

Pure arithmetic on batches of log-probabilities. [`anchors`][`~trl_prorl.objective.anchors`] says what an anchor is,
[`kl`][`~trl_prorl.objective.kl`] how a KL is estimated.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..keys import switched_off
from ..parts import Part
from . import kl
from .anchors import ANCHORS, Anchor, OldPolicyAnchor
from .masks import completion_mask, zero_masked


def next_coefficient(coefficient: float, kl: float, target: float, steps: int, horizon: float) -> float:
    """
    Move a coefficient so that its KL approaches a target: β ← β · (1 + clip(kl/target − 1, −0.2, 0.2) ·
    steps/horizon), from Ziegler et al. 2019 (arXiv 1909.08593, section 2.2), but at least half of β.

    Args:
        coefficient (`float`): β.
        kl, target (`float`): In nats per token.
        steps (`int`): Optimizer steps since the last call.
        horizon (`float`): The steps in which a persistent error of 20 % or more moves β by about 20 %.

    Returns `float`: The new coefficient, which is positive.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * max(1.0 + error * steps / horizon, 0.5)


@dataclass(frozen=True)
class Penalty:
    """
    The KL terms of a micro-batch.

    Attributes:
        by_anchor (`dict[str, torch.Tensor]`):
            By its name, the penalty of each anchor that acts, without its coefficient, shape `(B, T)`.
        loss (`torch.Tensor`): The scalar that enters the loss.
    """

    by_anchor: dict[str, torch.Tensor]
    loss: torch.Tensor


class Anchors(Part):
    """Every anchor of a run, in the order in which `kl_target` looks for the active one."""

    def __init__(self, args):
        self.args = args
        self.by_name: dict[str, Anchor] = {kind.name: kind(args) for kind in ANCHORS}
        self.begin()

    def begin(self) -> None:
        for anchor in self:
            anchor.begin()
        self._kl_since_generation: list[float] = []

    def __getitem__(self, name: str) -> Anchor:
        return self.by_name[name]

    def __iter__(self) -> Iterator[Anchor]:
        return iter(self.by_name.values())

    def make_models(self, models) -> None:
        """Make the model of every anchor, by [`~trl_prorl.scoring.references.AnchorModels`]."""
        for anchor in self:
            anchor.model = anchor.make_model(models)

    def to_score(self, batch: Mapping[str, torch.Tensor], generation: int) -> list[Anchor]:
        """Return the anchors that still have to score a finished generation batch, which is counted from 0."""
        return [anchor for anchor in self if anchor.needs_scoring(generation) and anchor.column not in batch]

    @property
    def active(self) -> Anchor | None:
        """Return the first anchor with a coefficient, which is logged and adapted."""
        for anchor in self:
            if anchor.is_on:
                return anchor
        return None

    def acting(self, batch: Mapping[str, torch.Tensor]) -> list[Anchor]:
        """Return the anchors with a KL term in the loss of a batch."""
        if self.args.kl_in == "reward":
            return []
        return [anchor for anchor in self if anchor.acts_on(batch)]

    def in_reward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """
        Compute what `kl_in: reward` takes off the reward of each completion, shape `(B,)`: Σ coefficient · k1 over
        anchors and tokens, of the policy that sampled. Returns `None` if the KL is in the loss.
        """
        if self.args.kl_in == "loss":
            return None
        mask = completion_mask(batch)
        sampler_logps = batch[OldPolicyAnchor.column]
        terms = [torch.zeros(len(sampler_logps), device=sampler_logps.device)]
        for anchor in self:
            if anchor.acts_on(batch):
                log_ratio = zero_masked(sampler_logps - batch[anchor.column], mask)
                terms.append(anchor.coefficient * log_ratio.sum(1))
        return torch.stack(terms).sum(0)

    def penalties(self, batch: Mapping[str, torch.Tensor], logps: torch.Tensor, level: str) -> dict[str, torch.Tensor]:
        """
        Compute the per-token penalty of every anchor that acts on a batch, without its coefficient.

        Args:
            batch (`Mapping[str, torch.Tensor]`):
                Advantages `(B,)`, masks `(B, T)` and the anchors' log-probabilities `(B, T)`.
            logps (`torch.Tensor` of shape `(B, T)`): The policy's log-probabilities, with gradient.
            level (`str`): TRL's `importance_sampling_level`.

        Returns `dict[str, torch.Tensor]`: By the anchor's name, shape `(B, T)` each.
        """
        mask = completion_mask(batch)
        if self.args.drop_zero_rows:
            has_advantage = batch["advantages"].unsqueeze(1) != 0.0
            mask = mask * has_advantage
        mask = mask.bool()
        policy_logps = zero_masked(logps, mask)
        ratio = None
        if self.args.use_bias_correction_kl:
            old_logps = zero_masked(self["old"].logps(batch, logps), mask)
            ratio = kl.importance_ratio(policy_logps, old_logps, mask, level)
        penalties = {}
        for anchor in self.acting(batch):
            anchor_logps = zero_masked(anchor.logps(batch, logps), mask)
            penalties[anchor.name] = kl.kl_penalty(
                policy_logps, anchor_logps, self.args.kl_estimator, ratio, self.args.kl_clamp
            )
        return penalties

    def beyond_clamp(self, batch: Mapping[str, torch.Tensor], logps: torch.Tensor) -> torch.Tensor:
        """
        Find the tokens whose estimates, of any anchor that acts on a batch, lie beyond `kl_clamp`, shape `(B, T)`;
        arguments as in [`Anchors.penalties`].
        """
        beyond = torch.zeros_like(logps, dtype=torch.bool)
        for anchor in self:
            if anchor.is_on and anchor.column in batch:
                beyond |= kl.beyond_clamp(logps, batch[anchor.column], self.args.kl_estimator, self.args.kl_clamp)
        return beyond

    def penalty(
        self, batch: Mapping[str, torch.Tensor], logps: torch.Tensor, level: str, weights: torch.Tensor
    ) -> Penalty | None:
        """
        Compute the KL terms of a micro-batch: Σ coefficient · penalty over anchors and tokens; arguments as in
        [`Anchors.penalties`], and the weight of each token in the loss, shape `(B, T)`. Returns `None` if no anchor
        acts.
        """
        penalties = self.penalties(batch, logps, level)
        if not penalties:
            return None
        weighted = sum(self[name].coefficient * penalty for name, penalty in penalties.items())
        return Penalty(penalties, (weighted * weights).sum())

    def means(
        self, penalties: Mapping[str, torch.Tensor], mask: torch.Tensor, total: Callable[[torch.Tensor], torch.Tensor]
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """
        Average every penalty over the tokens of all processes, over which `total` sums. Returns the means and their
        tokens by the anchor's metric, scalars on the device.
        """
        means = {}
        for name, penalty in penalties.items():
            penalty_here = (penalty.detach() * mask).sum()
            tokens_here = mask.sum().float()
            penalty_sum, tokens = total(torch.stack([penalty_here, tokens_here]))
            metric = self[name].metric
            means[metric] = (penalty_sum / tokens.clamp(min=1.0), tokens)
        return means

    def row(self, step: int, row: Mapping[str, float]) -> None:
        """Keep the active anchor's KL for the next adaptation."""
        active = self.active
        if active is not None and active.kl_key in row:
            self._kl_since_generation.append(row[active.kl_key])

    def boundary(self, step: int) -> None:
        """Move the active coefficient towards `kl_target`, if there is one."""
        values = self._kl_since_generation
        self._kl_since_generation = []
        if self.args.kl_target is None or not values:
            return
        mean = sum(values) / len(values)
        active = self.active
        active.coefficient = next_coefficient(
            active.coefficient, mean, self.args.kl_target, len(values), self.args.kl_horizon
        )

    def state_dict(self) -> dict[str, Any]:
        coefficients = {anchor.key: anchor.coefficient for anchor in self}
        return {"coefficients": coefficients, "kl_since_generation": self._kl_since_generation}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        for anchor in self:
            if anchor.key not in changed and not switched_off(changed, "kl_target"):
                anchor.coefficient = state["coefficients"].get(anchor.key, anchor.coefficient)
        self._kl_since_generation = list(state["kl_since_generation"])
