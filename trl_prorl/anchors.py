"""
Anchors: the policies to which the trained policy's KL can be penalised, one class each.

| class | key | log-probabilities of | computed |
|---|---|---|---|
| `ReferenceAnchor` | `beta` | π_ref, which resets move | once per generation batch, or in every pass over it |
| `OldPolicyAnchor` | `beta_old` | π_old, which sampled the batch | by the loss, or once per generation batch |
| `BaseAnchor` | `beta_base` | the starting model | on every `base_anchor_every`-th generation batch |

Configuration and reports import this module, so it imports nothing slow.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch


class Anchor:
    """
    An anchor with its current coefficient.

    Attributes:
        name (`str`): Short name, in counts and times of `metrics.jsonl`.
        key (`str`): The key of [`ProRLConfig`] with its coefficient.
        words (`str`): Label in messages and tables.
        column (`str`): Key of its log-probabilities `(B, T)` in a batch.
        kl_key (`str`): Key of its KL in `metrics.jsonl`.
        measured_when (`str`), never_scored (`str`): When its KL is logged, and when its forwards are 0.
        scored_at (`str`): `"sampling"` (as TRL requests it), `"batch"` (finished) or `"loss"`.
        works_in_reward (`bool`): Whether `kl_in: reward` can use it.
        coefficient (`float`): Current value; 0 means no KL term.
        model ([`~trl_prorl.reference.Reference`] or [`~trl_prorl.reference.Policy`], *optional*): Its model.
    """

    name: str
    key: str
    words: str
    column: str
    kl_key: str
    measured_when: str
    never_scored: str
    scored_at: str = "batch"
    works_in_reward = True

    def __init__(self, args):
        self.args = args
        self.model = None
        self.set(getattr(args, self.key))

    def set(self, coefficient: float) -> None:
        """Set the value with which a training begins, and the current one."""
        self._start = coefficient
        self.begin()

    def begin(self) -> None:
        self.coefficient = self._start

    @property
    def is_on(self) -> bool:
        return self.coefficient != 0.0

    def make_model(self, models):
        raise NotImplementedError

    def needs_scoring(self, generation: int) -> bool:
        """Return whether its model must score a generation batch (counted from 0) if TRL did not."""
        return self.is_on

    def acts_on(self, batch: Mapping[str, "torch.Tensor"]) -> bool:
        return self.is_on

    def logps(self, batch: Mapping[str, "torch.Tensor"], policy_logps: "torch.Tensor") -> "torch.Tensor":
        """Return its log-probabilities of a batch, `(B, T)`. The policy's may have a gradient."""
        return batch[self.column]


class ReferenceAnchor(Anchor):
    """TRL's own anchor: a frozen model that resets move."""

    name = "ref"
    key = "beta"
    words = "the reference"
    column = "ref_per_token_logps"
    kl_key = "kl_ref"
    measured_when = "`beta` > 0"
    never_scored = "in B and plain"

    def make_model(self, models):
        return models.make_reference() if self.is_on else None

    def needs_scoring(self, generation: int) -> bool:
        return self.args.beta != 0.0 and self.scored_at == "batch"

    @property
    def scored_at(self) -> str:
        return "batch" if self.args.ref_compute == "cached" else "loss"


class OldPolicyAnchor(Anchor):
    """
    π_old, the policy that sampled the batch, for TRL's ratio and `beta_old`. Sources of its log-probabilities
    ([`ProRLConfig.old_logps_source`]):

    | source | when | how |
    |---|---|---|
    | `"policy"` | every batch is trained on once, by one update | the policy's own, of the same pass |
    | `"first_pass"` | `reuse_old_logps`, and no update within the first pass | the loss keeps the policy's |
    | `"forward"` | else | a forward pass of the policy right after sampling |
    """

    name = "old"
    key = "beta_old"
    words = "π_old"
    column = "old_per_token_logps"
    kl_key = "kl_old"
    measured_when = "batches that are trained on after an update"
    never_scored = "with `reuse_old_logps`, where possible"
    works_in_reward = False  # the KL is 0 when a batch is sampled

    def make_model(self, models):
        return models.make_policy()  # before the first update on its samples

    def needs_scoring(self, generation: int) -> bool:
        return self.args.old_logps_source == "forward"

    @property
    def scored_at(self) -> str:
        if self.args.old_logps_source == "first_pass":
            return "loss"
        return "sampling" if self.args.corrects_sampler else "batch"

    def logps(self, batch, policy_logps):
        """Without the column no update was done, so the policy is π_old."""
        old_logps = batch.get(self.column)
        return policy_logps.detach() if old_logps is None else old_logps


class BaseAnchor(Anchor):
    """The starting model, on every `base_anchor_every`-th generation batch."""

    name = "base"
    key = "beta_base"
    words = "the starting model"
    column = "base_per_token_logps"
    kl_key = "kl_base"
    measured_when = "`beta_base`, on the batches it scores"
    never_scored = "without `beta_base`"

    def make_model(self, models):
        return models.make_initial_policy(self.name) if self.is_on else None

    def needs_scoring(self, generation: int) -> bool:
        return self.model is not None and generation % self.args.base_anchor_every == 0

    def acts_on(self, batch) -> bool:
        return self.is_on and self.column in batch


# In the order in which the primary one is chosen.
ANCHORS: tuple[type[Anchor], ...] = (ReferenceAnchor, OldPolicyAnchor, BaseAnchor)
ANCHOR_KEYS = tuple(anchor.key for anchor in ANCHORS)
