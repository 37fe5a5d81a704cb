"""KL terms of a loss: estimators, loss weights, the anchors' penalties and the adaptation to `kl_target`."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .anchors import ANCHORS, Anchor, OldPolicyAnchor
from .keys import switched_off
from .parts import Part, Row
from .supported import LOSS_TYPES


Batch = Mapping[str, torch.Tensor]  # tensors of a batch, by name


def completion_mask(batch: Batch) -> torch.Tensor:
    """Return 1 for each completion token that counts, `(B, T)`: neither padding nor written by a tool."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def has_advantage(batch: Batch) -> torch.Tensor:
    """Return whether each row has an advantage other than 0, `(B,)`; a subclass may have one for each token."""
    advantages = batch["advantages"]
    return (advantages != 0.0).view(len(advantages), -1).any(dim=1)


def zero_masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """
    Set values `(B, T)` to 0 at masked tokens. Not by a product: a masked exponential may be infinite, and 0 · ∞ is
    NaN.
    """
    return torch.where(mask.bool(), values, 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# KL estimators: values and, through autograd, gradients of the per-token reverse KL at the visited states,
# KL(π_θ(·|s) ‖ π_anchor(·|s)). The KL of whole sequences has one more term, through the states; no estimator contains
# it. In a loss the *gradient* matters. With samples from π_old and the per-token ratio r = exp(logπ_θ − logπ_old):
#
# | estimator | in the loss alone | multiplied by r ("bias correction") |
# |---|---|---|
# | k1 | zero expected gradient on-policy: refused | exact per token, on- and off-policy |
# | k2 | exact on-policy, biased off-policy | biased |
# | k3 | biased | exact per token, on- and off-policy |
#
# With a sequence-level ratio no estimator is exact. `kl_clamp` removes the gradient of the tokens beyond it. Values:
# J. Schulman, "Approximating KL Divergence" (2020, http://joschu.net/blog/kl-approx.html).
# `tests/objective/test_kl.py` checks gradients by enumerating all completions.


def kl_values(logps: torch.Tensor, anchor_logps: torch.Tensor, estimator: str = "k3") -> torch.Tensor:
    r"""
    Estimate the KL of each token. With \\( d = \log\pi_\theta - \log\pi_{anchor} \\): k1 = d, k2 = d²/2, k3 = exp(−d)
    − 1 + d.

    Args:
        logps, anchor_logps (`torch.Tensor` of shape `(B, T)`):
            Log-probabilities of the sampled tokens under the policy and under the anchor.
        estimator (`str`, *optional*, defaults to `"k3"`): One of [`KL_ESTIMATORS`].

    Returns `torch.Tensor` of shape `(B, T)`: In nats.
    """
    log_ratio = logps - anchor_logps
    match estimator:
        case "k1":
            return log_ratio
        case "k2":
            return 0.5 * log_ratio.square()
        case "k3":
            reverse = anchor_logps - logps
            return torch.exp(reverse) - reverse - 1  # in TRL's order of operations, for the same bits


def beyond_clamp(logps: torch.Tensor, anchor_logps: torch.Tensor, estimator: str, clamp: float) -> torch.Tensor:
    """
    Return whether each token's estimate is outside [−clamp, clamp], `(B, T)`. NaN is not outside, so it stays visible.
    """
    return kl_values(logps.detach(), anchor_logps.detach(), estimator).abs() > clamp


def kl_penalty(
    logps: torch.Tensor,
    anchor_logps: torch.Tensor,
    estimator: str,
    importance_ratio: torch.Tensor | None = None,
    clamp: float | None = None,
) -> torch.Tensor:
    """
    Compute the per-token penalty of a loss: the estimate, optionally clamped, optionally times the importance ratio.

    Args:
        logps (`torch.Tensor` of shape `(B, T)`): The policy's log-probabilities, with gradient.
        anchor_logps (`torch.Tensor` of shape `(B, T)`): The anchor's log-probabilities; detached.
        estimator (`str`): One of [`KL_ESTIMATORS`].
        importance_ratio (`torch.Tensor` of shape `(B, T)` or `(B, 1)`, *optional*):
            π_θ/π_old *with* gradient (TRL's `use_bias_correction_kl`).
        clamp (`float`, *optional*): Bound of the estimate, in nats.

    Returns `torch.Tensor` of shape `(B, T)`.

    A clamped token has no gradient, not even through its ratio: clamp · r alone would lower a lost token's probability
    further.
    """
    anchor_logps = anchor_logps.detach()
    if clamp is None:
        values = kl_values(logps, anchor_logps, estimator)
        return values if importance_ratio is None else values * importance_ratio
    bound = kl_values(logps.detach(), anchor_logps, estimator).clamp(-clamp, clamp)
    beyond = beyond_clamp(logps, anchor_logps, estimator, clamp)
    # `Tensor.clamp` would give NaN: its gradient of 0 times an exponential that overflowed
    logps_within = torch.where(beyond, anchor_logps, logps)
    values = torch.where(beyond, bound, kl_values(logps_within, anchor_logps, estimator))
    if importance_ratio is None:
        return values
    return values * torch.where(beyond, importance_ratio.detach(), importance_ratio)


def importance_ratio(logps: torch.Tensor, old_logps: torch.Tensor, mask: torch.Tensor, level: str) -> torch.Tensor:
    """
    Compute π_θ/π_old per token, `(B, T)`, or for `level="sequence"` its geometric mean over a sequence, `(B, 1)`
    (GSPO, arXiv 2507.18071), with gradient in θ. All arguments have shape `(B, T)`.
    """
    log_ratio = logps - old_logps.detach()
    match level:
        case "token":
            return torch.exp(log_ratio)
        case "sequence":
            tokens = mask.sum(-1, keepdim=True).clamp(min=1.0)
            mean = (log_ratio * mask).sum(-1, keepdim=True) / tokens
            return torch.exp(mean)


def gradient_bias(
    estimator: str, corrected: bool, level: str, on_policy: bool, clamp: float | None = None
) -> str | None:
    """
    Return why the penalty's expected gradient is not that of the per-token reverse KL; `None` if it is. `corrected`:
    multiplied by the importance ratio of this level. `on_policy`: π_θ = π_old in every evaluation.
    """
    exact = "kl_estimator: k3, use_bias_correction_kl: true, importance_sampling_level: token"
    if corrected and level == "sequence":
        return f"a sequence-level ratio makes no estimator unbiased; for an unbiased gradient set {exact}"
    if estimator == "k2" and corrected:
        return f"k2 times the importance ratio is biased on- and off-policy; for an unbiased gradient set {exact}"
    if estimator == "k2" and not on_policy:
        return f"k2 is unbiased on-policy only; for an unbiased gradient set {exact}"
    if estimator != "k2" and not corrected:
        return f"{estimator} without use_bias_correction_kl is biased; for an unbiased gradient set {exact}"
    return None if clamp is None else f"tokens whose KL exceeds kl_clamp={clamp} get no gradient from it"


# ---------------------------------------------------------------------------------------------------------------------
# TRL's loss types: every aggregation is a weighted sum over tokens, so penalties are normalised as TRL's own loss.


class Aggregation:
    """Aggregates a loss as TRL does. `accumulation`: micro-batches of an optimizer step; `None` in an evaluation."""

    def __init__(self, args, processes: int):
        self.args = args
        self.processes = processes

    def weights(self, batch: Batch, accumulation: float | None) -> torch.Tensor:
        """Return the [`token_weights`] `(B, T)` of a micro-batch."""
        args = self.args
        # As in TRL: tokens of the whole generation batch, scaled to the micro-batches of one optimizer step.
        window = batch["num_items_in_batch"].clamp(min=1.0) / self.processes
        if accumulation is not None:
            window = window * accumulation / args.steps_per_generation
        mask = completion_mask(batch)
        return token_weights(mask, args.loss_type, accumulation or 1.0, args.max_completion_length, window)

    def logged(self, term: torch.Tensor, accumulation: float | None) -> torch.Tensor:
        """Convert a scalar term of the loss to TRL's `policy_loss`: not yet divided by the accumulation."""
        is_divided = accumulation is not None and LOSS_TYPES[self.args.loss_type].aggregation != "window"
        return term * accumulation if is_divided else term


def token_weights(
    mask: torch.Tensor,
    loss_type: str,
    accumulation_steps: float = 1.0,
    max_completion_length: int | None = None,
    items_per_window: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """
    Compute weights w such that TRL's loss of a micro-batch is Σ w · per_token_loss.

    Args:
        mask (`torch.Tensor` of shape `(B, T)`): 1 for tokens that count.
        loss_type (`str`): One of [`~trl_prorl.supported.LOSS_TYPES`].
        accumulation_steps (`float`, *optional*): Micro-batches of one optimizer step; 1 in an evaluation.
        max_completion_length (`int`, *optional*): Divisor of `dr_grpo` (arXiv 2503.20783).
        items_per_window (`torch.Tensor` or `float`, *optional*):
            Tokens of one accumulation window on this process, for losses that average over the window.

    Returns `torch.Tensor` of shape `(B, T)`.
    """
    mask = mask.float()
    match LOSS_TYPES[loss_type].aggregation:
        case "row_mean":
            return mask / mask.sum(-1, keepdim=True).clamp(min=1.0) / mask.size(0) / accumulation_steps
        case "row_sum":
            return mask / mask.size(0) / accumulation_steps
        case "batch_mean":
            return mask / mask.sum().clamp(min=1.0) / accumulation_steps
        case "length":
            return mask / (mask.size(0) * max_completion_length) / accumulation_steps
        case "window":
            return mask / items_per_window


def without_ratio(batch: Batch) -> dict[str, torch.Tensor]:
    """
    Remove π_old for `loss_mode: no_ratio`: TRL then uses the policy itself, so the ratio is 1 with the gradient of the
    log-probability. TRL's off-policy mask still compares with the policy that sampled.
    """
    changed = dict(batch)
    old = changed.pop(OldPolicyAnchor.column, None)
    if old is not None:
        changed.setdefault("sampling_per_token_logps", old)
    return changed


# ---------------------------------------------------------------------------------------------------------------------
# KL terms of a run: coefficients, penalties of a batch, adaptation to `kl_target`


def next_coefficient(coefficient: float, kl: float, target: float, steps: int, horizon: float) -> float:
    """
    Return β · max(1 + clip(kl/target − 1, −0.2, 0.2) · steps/horizon, 0.5), KLs in nats per token (Ziegler et al.
    2019, arXiv 1909.08593, section 2.2). `steps` were done since the last call.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * max(1.0 + error * steps / horizon, 0.5)


class Anchors(Part):
    """All anchors of a run, in the order in which the primary one is chosen."""

    def __init__(self, args):
        self.args = args
        self.by_name: dict[str, Anchor] = {kind.name: kind(args) for kind in ANCHORS}
        self.begin()

    def begin(self) -> None:
        for anchor in self:
            anchor.begin()
        self._kl_since_generation: list[float | None] = []  # by optimizer step; `None` if not measured

    def __getitem__(self, name: str) -> Anchor:
        return self.by_name[name]

    def __iter__(self) -> Iterator[Anchor]:
        return iter(self.by_name.values())

    def make_models(self, models) -> None:
        for anchor in self:
            anchor.model = anchor.make_model(models)

    def to_score(self, batch: Batch, generation: int) -> list[Anchor]:
        """Return the anchors that must still score generation batch `generation`, from 0."""
        return [anchor for anchor in self if anchor.needs_scoring(generation) and anchor.column not in batch]

    @property
    def primary(self) -> Anchor | None:
        """The first anchor with a coefficient, which is logged and adapted."""
        for anchor in self:
            if anchor.is_on:
                return anchor
        return None

    def active(self, batch: Batch) -> list[Anchor]:
        """Return the anchors with a KL term in the loss of a batch."""
        if self.args.kl_in == "reward":
            return []
        return [anchor for anchor in self if anchor.acts_on(batch)]

    def in_reward(self, batch: Batch) -> torch.Tensor | None:
        """
        Return the deduction of `kl_in: reward` from each completion's reward, `(B,)`: Σ coefficient · k1 of the
        sampling policy, over anchors and tokens. `None` if the KL is in the loss.
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

    def beyond_clamp(self, batch: Batch, logps: torch.Tensor) -> torch.Tensor:
        """Return whether any active anchor's estimate of a token exceeds `kl_clamp`, `(B, T)`."""
        beyond = torch.zeros_like(logps, dtype=torch.bool)
        for anchor in self.active(batch):
            beyond |= beyond_clamp(logps, anchor.logps(batch, logps), self.args.kl_estimator, self.args.kl_clamp)
        return beyond

    def kls(self, batch: Batch, logps: torch.Tensor, level: str) -> dict[str, torch.Tensor]:
        """
        Compute the KL to each anchor that acts, as it enters the loss: `(B, T)` by the anchor's name.

        Args:
            batch (`Batch`): Advantages `(B,)`, masks and the anchors' log-probabilities `(B, T)`.
            logps (`torch.Tensor` of shape `(B, T)`): The policy's log-probabilities, with gradient.
            level (`str`): TRL's `importance_sampling_level`.
        """
        active = self.active(batch)
        if not active:
            return {}
        args = self.args
        mask = completion_mask(batch)  # (B, T)
        if args.drop_zero_rows:
            mask = mask * has_advantage(batch).unsqueeze(1)
        policy_logps = zero_masked(logps, mask)  # (B, T)
        ratio = None
        if args.use_bias_correction_kl:
            old_logps = zero_masked(self["old"].logps(batch, logps), mask)  # (B, T)
            ratio = importance_ratio(policy_logps, old_logps, mask.bool(), level)  # (B, T) or (B, 1)
        kls = {}
        for anchor in active:
            anchor_logps = zero_masked(anchor.logps(batch, logps), mask)  # (B, T)
            kls[anchor.name] = kl_penalty(policy_logps, anchor_logps, args.kl_estimator, ratio, args.kl_clamp)
        return kls

    def weighted_sum(self, kls: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return Σ coefficient · KL over anchors, `(B, T)`."""
        return sum(self[name].coefficient * kl for name, kl in kls.items())

    def on_row(self, step: int, row: Row) -> None:
        primary = self.primary
        if primary is not None:
            self._kl_since_generation.append(row.get(primary.kl_key))

    def on_generation(self, step: int) -> None:
        """Move the primary anchor's coefficient towards `kl_target`, if set."""
        if self.args.kl_target is None:
            self._kl_since_generation = []
            return
        values = [kl for kl in self._kl_since_generation if kl is not None]
        if not values:
            return  # `base_anchor_every`: these steps count when the KL is next measured
        mean = sum(values) / len(values)
        steps = len(self._kl_since_generation)
        self._kl_since_generation = []
        primary = self.primary
        primary.coefficient = next_coefficient(
            primary.coefficient, mean, self.args.kl_target, steps, self.args.kl_horizon
        )

    def state_dict(self) -> dict[str, Any]:
        coefficients = {anchor.key: anchor.coefficient for anchor in self}
        return {"coefficients": coefficients, "kl_since_generation": self._kl_since_generation}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        for anchor in self:
            if anchor.key not in changed and not switched_off(changed, "kl_target"):
                anchor.coefficient = state["coefficients"].get(anchor.key, anchor.coefficient)
        self._kl_since_generation = list(state["kl_since_generation"])
