"""
Dynamic sampling (DAPO, arXiv 2503.14476): groups whose rewards are all equal teach nothing and are replaced.

The task's reward decides. A reward for the length differs for any two completions of unequal lengths; with it a group
without a single right answer would count as decided.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset

from ..objective.advantages import all_equal
from ..objective.masks import completion_mask
from ..parts import Part
from .outcome import Outcome, own_part, weighted_sum


def deciding(
    rewards: torch.Tensor, weights: torch.Tensor, group_size: int, functions: Sequence[int] | None = None
) -> torch.Tensor:
    """
    The rewards that decide whether a group is decided, shape `(N,)`, NaN where there is none: of rewards `(N, F)`,
    with groups of G contiguous and NaN where a function does not apply, and weights `(F,)`. The weighted sum of the
    `functions` decides; without these, in each group the first function that has a weight and a reward for any of its
    completions.
    """
    if functions is not None:
        return weighted_sum(rewards[:, list(functions)], weights[list(functions)])
    groups = rewards.view(-1, group_size, rewards.size(1))
    decides = (~groups.isnan()).any(dim=1) & (weights != 0.0)
    first = decides.int().argmax(dim=1)  # the first of equal values
    chosen = groups.gather(2, first.view(-1, 1, 1).expand(-1, group_size, 1)).squeeze(2)
    return chosen.masked_fill(~decides.any(dim=1, keepdim=True), torch.nan).flatten()


def named_functions(
    asked: Sequence[str] | None, names: Sequence[str], weights: Sequence[float] | None
) -> list[int] | None:
    """
    Indices of the reward functions that `dynamic_sampling_rewards` names; `None` if it names none. Raises
    `ValueError`: a named function does not exist, or none of them has a weight (`None`: 1 each).
    """
    if asked is None:
        return None
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise ValueError(
            f"dynamic_sampling_rewards={asked!r}: {unknown[0]!r} is no reward function. Name one of "
            f"{', '.join(names)}."
        )
    indices = [index for index, name in enumerate(names) if name in asked]
    if weights is not None and not any(weights[index] for index in indices):
        raise ValueError(
            f"dynamic_sampling_rewards={asked!r} with reward_weights={list(weights)!r}: what has no weight decides "
            "nothing. Name a function that has one."
        )
    return indices


def undecided(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """
    The groups in which no reward of `(N,)` differs from the others by more than rounding: bools of shape `(N / G,)`.
    """
    return all_equal(rewards.view(-1, group_size))


def put_groups(
    batch: Mapping[str, torch.Tensor],
    others: Mapping[str, torch.Tensor],
    places: Sequence[int],
    sources: Sequence[int],
    group_size: int,
    pad_token_id: int,
) -> dict[str, torch.Tensor]:
    """
    A batch in which groups of G rows give way (`places`) to groups of another batch (`sources`). Tensors have shape
    `(N, …)`; prompts are padded on the left, completions on the right, token ids with `pad_token_id` and everything
    else with 0.
    """

    def rows(groups: Sequence[int]) -> torch.Tensor:
        first = torch.tensor(groups, dtype=torch.long).unsqueeze(1) * group_size
        return (first + torch.arange(group_size)).flatten()

    merged = dict(batch)
    for name, mine in batch.items():
        theirs = others[name]
        if mine.dim() == 2:
            width = max(mine.size(1), theirs.size(1))
            fill = pad_token_id if name.endswith("_ids") else 0
            mine, theirs = (widened(tensor, width, fill, left=name.startswith("prompt")) for tensor in (mine, theirs))
        if mine.dim():
            merged[name] = mine.index_copy(0, rows(places).to(mine.device), theirs[rows(sources).to(mine.device)])
    return merged


def widened(tensor: torch.Tensor, width: int, fill: float, left: bool) -> torch.Tensor:
    """A tensor of shape `(N, T)`, padded to `(N, width)`."""
    missing = width - tensor.size(1)
    return torch.nn.functional.pad(tensor, (missing, 0) if left else (0, missing), value=fill)


@functools.lru_cache(maxsize=1)
def order_of_pass(count: int, seed: int, number: int) -> list[int]:
    """The indices of `count` rows in the random order of one pass over them."""
    generator = torch.Generator().manual_seed((seed + 1) * 1_000_003 + number)
    return torch.randperm(count, generator=generator).tolist()


def extra_rows(count: int, seed: int, drawn: int, number: int) -> list[int]:
    """The next indices of an endless supply of `count` rows, pass after pass, of which so many are `drawn` already."""
    places = (divmod(place, count) for place in range(drawn, drawn + number))
    return [order_of_pass(count, seed, which)[place] for which, place in places]


class DynamicSampling(Part):
    """
    Replaces undecided groups by groups of other prompts of the training set. Raises `ValueError`: the dataset is
    streamed, or a process holds parts of groups.
    """

    def __init__(self, args, accelerator, dataset, group_size: int, pad_token_id: int, names: Sequence[str], weights):
        if not isinstance(dataset, Dataset):
            raise ValueError("dynamic_sampling_rounds draws further prompts, which a streamed dataset does not allow.")
        part = args.per_device_train_batch_size * args.steps_per_generation
        if part % group_size:
            raise ValueError(
                f"dynamic_sampling_rounds={args.dynamic_sampling_rounds} replaces whole groups, and a process holds "
                f"{part} completions, not a multiple of num_generations={group_size}. Change "
                "per_device_train_batch_size or steps_per_generation."
            )
        self.rounds, self.seed = args.dynamic_sampling_rounds, args.seed
        self.accelerator, self.dataset = accelerator, dataset
        self.group_size, self.pad_token_id, self.weights = group_size, pad_token_id, weights
        self.functions = named_functions(args.dynamic_sampling_rewards, names, weights.tolist())
        self.begin()

    def begin(self) -> None:
        self._drawn = 0  # rows, by all processes

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self._drawn = state["drawn"]

    def sample(self, examples: list[dict], draw: Callable) -> tuple[dict[str, torch.Tensor], Outcome]:
        """
        Sample a generation batch for this process's rows, each G times, and sample again in the place of undecided
        groups. `draw` samples completions of rows, `again` in the further rounds, and returns a batch that no anchor
        has scored, and its outcome. So does this; tasks, interruptions and measurements are those of the first round,
        because its prompts are not selected.
        """
        size, process = self.group_size, self.accelerator.process_index
        batch, first = draw(examples)
        tokens, rounds = first.tokens, list(first.rounds)
        rewards = own_part(first.rewards, process, len(examples))
        replaced, generated = 0, 0
        for _ in range(self.rounds):
            places = self._undecided(rewards).nonzero().squeeze(1).tolist()
            # Processes generate and gather together, so all take part, each with as many groups as the process that
            # needs most.
            number = int(self.accelerator.gather(torch.tensor([len(places)], device=rewards.device)).max())
            if number == 0:
                break
            mine = self._drawn + process * number
            self._drawn += number * self.accelerator.num_processes
            indices = extra_rows(len(self.dataset), self.seed, mine, number)
            # Copies, because a rollout function writes its own columns into them, a value for each completion.
            others, outcome = draw([dict(self.dataset[index]) for index in indices for _ in range(size)], again=True)
            generated += number
            tokens = tokens + outcome.tokens
            rounds += outcome.rounds
            their_rewards = own_part(outcome.rewards, process, number * size)
            decided = (~self._undecided(their_rewards)).nonzero().squeeze(1).tolist()
            decided = decided[: len(places)]
            pairs = {"places": places[: len(decided)], "sources": decided, "group_size": size}
            rewards = put_groups({"rewards": rewards}, {"rewards": their_rewards}, **pairs, pad_token_id=0)["rewards"]
            batch = put_groups(batch, others, **pairs, pad_token_id=self.pad_token_id)
            replaced += len(decided)
        left = self._undecided(rewards).sum()
        counts = torch.stack([left.new_tensor(replaced), left.new_tensor(generated), left])
        names = ("groups_replaced", "groups_generated_again", "groups_undecided")
        measured = dict(zip(names, self.accelerator.reduce(counts, reduction="sum").tolist(), strict=True))
        batch["num_items_in_batch"] = self.accelerator.gather(completion_mask(batch).sum()).sum()
        outcome = Outcome(self.accelerator.gather(rewards), size, tokens, first.tasks, first.interrupted, rounds)
        outcome.measured = first.measured | measured
        return batch, outcome

    def _undecided(self, rewards: torch.Tensor) -> torch.Tensor:
        return undecided(
            deciding(rewards, self.weights.to(rewards.device), self.group_size, self.functions), self.group_size
        )
