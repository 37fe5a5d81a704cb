"""The outcome of sampling a generation batch: rewards by function, tokens, tasks, interruptions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from accelerate.utils import gather_object


@dataclass
class Outcome:
    """
    The results of sampling beside the batch itself. N is the number of completions of all processes, F that of reward
    functions.

    Attributes:
        rewards (`torch.Tensor` of shape `(N, F)`):
            NaN where a function does not apply.
        tokens (`torch.Tensor`):
            Tokens of this process's completions, truncated ones included; the trainer takes off those that no model
            sampled.
        tasks (`list[str | None]`):
            Name of each completion's task, N of them.
        interrupted (`list[bool]`):
            Whether each completion was interrupted and asked for its answer; empty if none ever is.
        rounds (`list[torch.Tensor]`):
            The rewards of every round of sampling, in order.
        correct (`list[bool]`):
            The verifier's verdicts, N of them; empty without a verifier.
    """

    rewards: torch.Tensor
    tokens: torch.Tensor
    tasks: list[str | None]
    interrupted: list[bool]
    rounds: list[torch.Tensor] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)

    @classmethod
    def of(
        cls, rewards: torch.Tensor, examples: list[dict], completion_ids: list[list[int]], correct: list[bool] = ()
    ) -> "Outcome":
        """
        The outcome from the arguments and the result of TRL's `_calculate_rewards`.

        Args:
            rewards (`torch.Tensor` of shape `(N, F)`):
                The rewards, gathered from all processes.
            examples (`list[dict]`):
                This process's rows, one a completion. Columns `task` and `interrupted` of another meaning are ignored.
            completion_ids (`list[list[int]]`):
                This process's completions. A completion mask would lack the tokens that `mask_truncated_completions`
                keeps out of the loss.
            correct (`list[bool]`, *optional*):
                The verifier's verdicts, gathered from all processes.
        """
        tasks, interrupted = ([example.get(name) for example in examples] for name in ("task", "interrupted"))
        return cls(
            rewards=rewards,
            tokens=torch.tensor(sum(map(len, completion_ids)), device=rewards.device),
            tasks=gather_object([name if isinstance(name, str) else None for name in tasks]),
            interrupted=gather_object([is_cut for is_cut in interrupted if isinstance(is_cut, bool)]),
            rounds=[rewards],
            correct=list(correct),
        )

    def measurements(self) -> dict[str, float]:
        """
        The entries of the record: by task, the mean reward and the share with the full reward of 1; the share of
        correct completions; the interruptions.
        """
        first, values = self.rewards[:, 0], {}
        for task in sorted({name for name in self.tasks if name is not None}):
            rewards = first[[place for place, name in enumerate(self.tasks) if name == task]]
            rewards = rewards[~rewards.isnan()]
            if len(rewards):  # the first reward function may belong to another task
                values[f"reward/{task}"] = rewards.mean().item()
                values[f"pass_rate/{task}"] = (rewards >= 1.0).float().mean().item()
        if self.correct:
            values["gold"] = sum(self.correct) / len(self.correct)
        if self.interrupted:
            values["interrupted_fraction"] = sum(self.interrupted) / len(self.interrupted)
        return values

    def rows(self, process: int, count: int, group_size: int) -> dict[str, torch.Tensor]:
        """
        What a batch holds of one process's rows, so that it stays with them when they are shuffled: `rewards` of shape
        `(count, F)`, and `group` of shape `(count,)`, the number of each row's group among those of all processes.
        """
        numbers = torch.arange(len(self.rewards), device=self.rewards.device) // group_size
        return {name: own_part(rows, process, count) for name, rows in (("rewards", self.rewards), ("group", numbers))}

    def unbounded(self, group_size: int) -> torch.Tensor:
        """The rows of groups with an infinite reward, bools of shape `(N,)`."""
        groups = self.rewards.isinf().any(dim=1).view(-1, group_size).any(dim=1)
        return groups.repeat_interleave(group_size)


def weighted_sum(rewards: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """
    One reward a completion from the rewards of all functions.

    Args:
        rewards (`torch.Tensor` of shape `(N, F)`):
            NaN where a function does not apply.
        weights (`torch.Tensor` of shape `(F,)`):
            TRL's `reward_weights`.

    Returns:
        `torch.Tensor` of shape `(N,)`: NaN where no function gave a reward.
    """
    weighted = rewards * weights.to(rewards.device)
    return weighted.nansum(dim=1).masked_fill(rewards.isnan().all(dim=1), math.nan)


def own_part(gathered: torch.Tensor, process: int, count: int) -> torch.Tensor:
    """The `count` rows of one process in a tensor gathered from all processes."""
    return gathered[process * count :][:count]


def written_by_others(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """
    Number of completion tokens that no model sampled: a tool's, or forced ones. Those of completions that
    `mask_truncated_completions` leaves out are not known any more, and not counted.
    """
    mask = batch["completion_mask"]
    return (mask * (1 - batch["tool_mask"])).sum() if "tool_mask" in batch else mask.new_zeros(())
