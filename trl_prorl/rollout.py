"""Results of sampling a generation batch, and its advantages."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from accelerate.utils import gather_object

from .advantages import OVER_BATCH, ROUNDING, UNGROUPED, all_equal, estimate
from .run.meter import Means


if TYPE_CHECKING:
    from .config import ProRLConfig


EQUAL_GROUPS = "frac_reward_zero_std"
TOKENS_SO_FAR = "num_tokens"  # TRL's metric, the sum over all batches and rounds


@dataclass
class SamplingCall:
    """
    A generation batch that TRL is making.

    Attributes:
        in_training (`bool`): False in an evaluation.
        reference_comes_later (`bool`): Whether the reference scores the finished batch, or in the loss.
        asks (`bool`): Whether TRL may ask for log-probabilities: not while a rollout or reward function runs.
        tool_masks (`list[list[int]]`, *optional*): 0 for tokens that no model sampled.
        result ([`RolloutResult`], *optional*): The result, once the rewards are computed.
    """

    in_training: bool
    reference_comes_later: bool
    asks: bool = True
    tool_masks: list[list[int]] | None = None
    result: "RolloutResult | None" = None

    @property
    def scores(self) -> bool:
        """Whether TRL's request for log-probabilities is for an anchor of the batch."""
        return self.in_training and self.asks

    @property
    def leaves_kl(self) -> bool:
        """Whether TRL need not score the reference."""
        return self.scores and self.reference_comes_later


@dataclass
class RolloutResult:
    """
    Results of sampling besides the batch.

    N completions of all processes, G per prompt, F reward functions.

    Attributes:
        rewards (`torch.Tensor` of shape `(N, F)`): NaN if a function does not apply.
        group_size (`int`): G.
        tokens (`torch.Tensor`): Sampled tokens of this process's completions: also truncated ones, not a tool's or
            forced ones.
        tasks (`list[str | None]`): By completion.
        interrupted (`list[bool]`): By completion: whether it was asked for its answer; empty without interruptions.
        rounds (`list[torch.Tensor]`): Rewards of every round of sampling.
        correct (`list[bool]`): Verdicts by completion; empty without a verifier.
        seconds (`float`): Time of all reward functions.
        measured (`dict[str, float]`): Its entries in `metrics.jsonl`.
        trl_metrics (`dict[str, float]`): TRL's metrics of the batch.
        counts (`dict[str, int]`): Rows in one of these means, if not all.
    """

    rewards: torch.Tensor
    group_size: int
    tokens: torch.Tensor
    tasks: list[str | None]
    interrupted: list[bool]
    rounds: list[torch.Tensor] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    seconds: float = 0.0
    measured: dict[str, float] = field(default_factory=dict)
    trl_metrics: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_rewards(
        cls,
        rewards: torch.Tensor,
        group_size: int,
        examples: list[dict],
        completion_ids: list[list[int]],
        tool_masks: list[list[int]] | None,
        correct: list[bool],
        seconds: float,
    ) -> "RolloutResult":
        """
        Make it from TRL's `_calculate_rewards`: rewards `(N, F)` and verdicts of all processes, the rest of this one.

        `tool_masks` are 0 for tokens that no model sampled; a completion mask would lack truncated completions.
        Columns `task` and `interrupted` with another meaning are ignored.
        """
        lengths = [len(ids) for ids in completion_ids] if tool_masks is None else [sum(mask) for mask in tool_masks]
        tasks = [example.get("task") for example in examples]
        interrupted = [example.get("interrupted") for example in examples]
        result = cls(
            rewards=rewards,
            group_size=group_size,
            tokens=torch.tensor(sum(lengths), device=rewards.device),
            tasks=gather_object([task if isinstance(task, str) else None for task in tasks]),
            interrupted=gather_object([is_cut for is_cut in interrupted if isinstance(is_cut, bool)]),
            rounds=[rewards],
            correct=list(correct),
            seconds=seconds,
        )
        result.measured = result.measurements()
        return result

    def join(
        self, further: "Sequence[RolloutResult]", rewards: torch.Tensor, measured: Mapping[str, float]
    ) -> "RolloutResult":
        """
        Join further rounds of dynamic sampling to this first one.

        Tokens and seconds are those of all rounds. Every other field is the first round's, which has no prompts
        selected by their rewards.

        Args:
            further (`Sequence[RolloutResult]`): The further rounds.
            rewards (`torch.Tensor` of shape `(N, F)`): Rewards of the batch, after groups were replaced.
            measured (`Mapping[str, float]`): Entries of `metrics.jsonl` in addition to those of the first round.
        """
        rounds = [self, *further]
        return replace(
            self,
            rewards=rewards,
            rounds=[batch for result in rounds for batch in result.rounds],
            tokens=sum(result.tokens for result in rounds),
            seconds=sum(result.seconds for result in rounds),
            measured=self.measured | measured,
            trl_metrics=self.trl_metrics | {TOKENS_SO_FAR: rounds[-1].trl_metrics[TOKENS_SO_FAR]},
        )

    def measurements(self) -> dict[str, float]:
        """
        Return entries of `metrics.jsonl`. `pass_rate/TASK` needs a verifier: no reward says what its maximum is. A
        task that the first function leaves to another has no `reward/TASK`.
        """
        first = self.rewards[:, 0]
        values = {}
        for task in sorted({name for name in self.tasks if name is not None}):
            places = [place for place, name in enumerate(self.tasks) if name == task]
            rewards = first[places]
            rewards = rewards[~rewards.isnan()]
            if len(rewards):  # the first reward function may belong to another task
                values[f"reward/{task}"] = rewards.mean().item()
                self.counts[f"reward/{task}"] = len(rewards)
            if self.correct:
                passes = [self.correct[place] for place in places]
                values[f"pass_rate/{task}"] = sum(passes) / len(passes)
                self.counts[f"pass_rate/{task}"] = len(passes)
        if self.correct:
            values["accuracy"] = sum(self.correct) / len(self.correct)
        if self.interrupted:
            values["interrupted_fraction"] = sum(self.interrupted) / len(self.interrupted)
        return values

    def keep_metrics(self, trl_metrics: dict[str, float], weights: torch.Tensor, aggregation: str) -> None:
        """
        Keep TRL's metrics, and count the rows of its means.

        TRL's share of equal groups is replaced: unless `scale_rewards` is `"group"` or `"none"`, it compares standard
        deviations of the batch.
        """
        self.trl_metrics = {name: value for name, value in trl_metrics.items() if name != EQUAL_GROUPS}
        if self.group_size > 1:
            groups = groups_without_signal(self.rewards, self.group_size, weights, aggregation)
            self.trl_metrics[EQUAL_GROUPS] = groups.float().mean().item()
        rows = len(self.rewards)
        ended = round(rows * (1.0 - trl_metrics.get("completions/clipped_ratio", 0.0)))
        for kind in ("mean", "min", "max"):
            self.counts[f"completions/{kind}_terminated_length"] = ended
        if "tools/call_frequency" in trl_metrics:
            self.counts["tools/failure_frequency"] = round(rows * trl_metrics["tools/call_frequency"])

    def means(self, values: Mapping[str, float]) -> Means:
        """Return values as means, each over its number of rows."""
        means = Means()
        for name, value in values.items():
            means.add(name, value, self.counts.get(name, len(self.rewards)))
        return means

    def count_scored(self, names: Sequence[str]) -> None:
        missing = self.rewards.isnan()
        unscored, *missing_by_function = (
            torch.cat([missing.all(dim=1, keepdim=True), missing], dim=1).sum(dim=0).tolist()
        )
        total = len(self.rewards)
        self.counts["reward"] = self.counts["reward_std"] = total - unscored
        for name, count in zip(names, missing_by_function, strict=True):
            self.counts[f"rewards/{name}/mean"] = self.counts[f"rewards/{name}/std"] = total - count

    def columns(self, process: int, count: int) -> dict[str, torch.Tensor]:
        """
        Return columns to shuffle with one process's batch: `rewards` `(count, F)` and `group` `(count,)`, numbered
        over all processes.
        """
        numbers = torch.arange(len(self.rewards), device=self.rewards.device) // self.group_size
        return {
            "rewards": select_own_rows(self.rewards, process, count),
            "group": select_own_rows(numbers, process, count),
        }

    def unbounded(self) -> torch.Tensor:
        """Return whether each row's group has an infinite reward, `(N,)`."""
        rows = self.rewards.isinf().any(dim=1)
        groups = rows.view(-1, self.group_size).any(dim=1)
        return groups.repeat_interleave(self.group_size)


def weighted_sum(rewards: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum rewards `(N, F)` with weights `(F,)` to `(N,)`; NaN if no function gave one."""
    weighted = rewards * weights.to(rewards.device)
    return weighted.nansum(dim=1).masked_fill(rewards.isnan().all(dim=1), math.nan)


def select_own_rows(gathered: torch.Tensor, process: int, count: int) -> torch.Tensor:
    return gathered[process * count :][:count]


def keep_groups_together(permutation: torch.Tensor, size: int, rows: int) -> torch.Tensor:
    """
    Reorder a permutation of B rows so that rows of a group are adjacent within each share.

    TRL's permutation still decides which rows an update uses. Packing then finds each prompt in as few micro-batches
    as possible.

    Args:
        permutation (`torch.Tensor` of shape `(B,)`): Of rows with contiguous groups.
        size (`int`): Completions per group. If it does not divide B, parts of groups move together.
        rows (`int`): Rows per share: consecutive pieces of the permutation.

    Returns:
        `torch.Tensor` of shape `(B,)`: Groups of a share are in order of their first row.
    """
    size = math.gcd(size, len(permutation))
    ordered = []
    for share in permutation.split(rows):
        groups: dict[int, list[int]] = {}
        for row in share.tolist():
            groups.setdefault(row // size, []).append(row)
        for members in groups.values():
            ordered += sorted(members)
    return torch.tensor(ordered)


def set_advantages(
    advantages: torch.Tensor,
    result: RolloutResult,
    weights: torch.Tensor,
    process: int,
    args: "ProRLConfig",
    logged: deque,
    penalties: torch.Tensor | None = None,
) -> None:
    """
    Replace advantages as configured; those of groups with an infinite reward become NaN.

    Args:
        advantages (`torch.Tensor` of shape `(B,)`): Of this process, changed in place.
        result ([`~trl_prorl.rollout.RolloutResult`]): Rewards of all processes.
        weights (`torch.Tensor` of shape `(F,)`): Of the reward functions.
        process (`int`): Index of this process.
        args ([`~trl_prorl.ProRLConfig`]): `advantage_estimator`, `drop_zero_rows`, `multi_objective_aggregation`.
        logged (`collections.deque`): Those of TRL's table of completions, newest last; also replaced.
        penalties (`torch.Tensor` of shape `(N,)`, *optional*): Of all processes, subtracted from the rewards.
    """
    count = len(advantages)
    estimator = args.advantage_estimator
    if estimator is not None:
        rewards = combined_rewards(result.rewards, weights, penalties)
        estimates = estimate(rewards, result.group_size, estimator)
        advantages.copy_(select_own_rows(estimates, process, count))
        replace_logged(logged, result, weights, estimator, rewards, penalties)
    if args.drop_zero_rows and estimator not in UNGROUPED:
        # TRL's advantage in a group of equal rewards is only nearly 0.
        equal = groups_without_signal(result.rewards, result.group_size, weights, args.multi_objective_aggregation)
        equal = equal.repeat_interleave(result.group_size)
        advantages.masked_fill_(select_own_rows(equal, process, count), 0.0)
    # TRL silently zeroes the advantages of a group with an infinite reward; the guard sees NaN.
    unbounded = result.unbounded()
    if estimator is None:
        over_batch = args.scale_rewards == "batch" or args.multi_objective_aggregation == "normalize_then_sum"
    else:
        over_batch = estimator in OVER_BATCH
    if over_batch and unbounded.any():  # mean and deviation of the batch are infinite
        unbounded = torch.ones_like(unbounded)
    advantages.masked_fill_(select_own_rows(unbounded, process, count), math.nan)


def combined_rewards(rewards: torch.Tensor, weights: torch.Tensor, penalties: torch.Tensor | None) -> torch.Tensor:
    combined = weighted_sum(rewards, weights)
    if penalties is None:
        return combined
    return combined - penalties


def replace_logged(
    logged: deque,
    result: RolloutResult,
    weights: torch.Tensor,
    estimator: str,
    batch: torch.Tensor,
    penalties: torch.Tensor | None,
) -> None:
    """
    Replace the newest advantages in TRL's table, which has the rows of all rounds of dynamic sampling. `batch`: the
    batch's rewards, with which an estimator compares.
    """
    rewards = torch.cat(result.rounds)
    if penalties is not None and len(penalties) != len(rewards):
        penalties = None  # they are of the batch alone, without the rows of other rounds
    newest = combined_rewards(rewards, weights, penalties)[-logged.maxlen :]
    for _ in range(min(len(logged), len(newest))):
        logged.pop()
    logged.extend(estimate(newest, result.group_size, estimator, batch).tolist())


def groups_without_signal(
    rewards: torch.Tensor, group_size: int, weights: torch.Tensor, aggregation: str
) -> torch.Tensor:
    """Return whether the [`compared_rewards`] of each group are equal, `(N / G,)`."""
    return all_equal(compared_rewards(rewards, group_size, weights, aggregation).view(-1, group_size))


def compared_rewards(rewards: torch.Tensor, group_size: int, weights: torch.Tensor, aggregation: str) -> torch.Tensor:
    """
    Combine rewards `(N, F)` to the `(N,)` that TRL's `multi_objective_aggregation` compares within a group. With
    `"normalize_then_sum"` they are sums of advantages, so they are 0 in a group whose rewards cancel out.
    """
    if aggregation == "sum_then_normalize":
        return weighted_sum(rewards, weights)
    weights = weights.to(rewards.device)
    normalized = [estimate(column, group_size, "group_normalized") for column in rewards.unbind(dim=1)]
    combined = (torch.stack(normalized, dim=1) * weights).sum(dim=1)
    return combined.masked_fill(combined.abs() <= ROUNDING * weights.abs().sum(), 0.0)
