"""Dynamic sampling (DAPO, arXiv 2503.14476) and the watch of the signal."""

import functools
import logging
from collections.abc import Callable, Sequence

import torch
from datasets import Dataset

from ..advantages import UNGROUPED, all_equal
from ..kl import Batch, completion_mask
from ..parts import Event, Part, Row, make_event
from ..rollout import RolloutResult, groups_without_signal, select_own_rows
from ..run.log_files import NO_SIGNAL


def deciding_rewards(rewards: torch.Tensor, weights: torch.Tensor, group_size: int) -> torch.Tensor:
    """
    Return the rewards `(N,)` that decide whether a group is replaced: of each group's first function with a weight
    and a reward; NaN if there is none. Rewards have shape `(N, F)`, group by group, NaN if a function does not apply.
    """
    groups = rewards.view(-1, group_size, rewards.size(1))
    decides = (~groups.isnan()).any(dim=1) & (weights.to(rewards.device) != 0.0)
    first = decides.int().argmax(dim=1)  # the first of equal values
    index = first.view(-1, 1, 1).expand(-1, group_size, 1)
    deciders = groups.gather(2, index).squeeze(2)
    has_none = ~decides.any(dim=1, keepdim=True)
    return deciders.masked_fill(has_none, torch.nan).flatten()


def replace_groups(
    batch: Batch,
    others: Batch,
    places: Sequence[int],
    sources: Sequence[int],
    group_size: int,
    pad_token_id: int,
) -> dict[str, torch.Tensor]:
    """
    Replace groups of a batch (`places`) by groups of another (`sources`). Tensors `(N, …)` are padded: prompts on the
    left, completions on the right, token ids with `pad_token_id`, others with 0.
    """
    rows = torch.tensor([places, sources], dtype=torch.long)[..., None] * group_size + torch.arange(group_size)
    to, source = rows.flatten(1)
    merged = dict(batch)
    for name, mine in batch.items():
        theirs = others[name]
        if mine.dim() == 2:
            width = max(mine.size(1), theirs.size(1))
            fill = pad_token_id if name.endswith("_ids") else 0
            mine = widen(mine, width, fill, left=name.startswith("prompt"))
            theirs = widen(theirs, width, fill, left=name.startswith("prompt"))
        if mine.dim():
            merged[name] = mine.index_copy(0, to.to(mine.device), theirs[source.to(mine.device)].to(mine.dtype))
    return merged


def complete_columns(batch: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    """
    Give both batches a `tool_mask` if one has it: a rollout function may return `env_mask` in some calls only.
    """
    if "tool_mask" in batch or "tool_mask" in others:
        for columns in (batch, others):
            columns.setdefault("tool_mask", torch.ones_like(columns["completion_mask"]))


def widen(tensor: torch.Tensor, width: int, fill: float, left: bool) -> torch.Tensor:
    missing = width - tensor.size(1)
    sides = (missing, 0) if left else (0, missing)
    return torch.nn.functional.pad(tensor, sides, value=fill)


@functools.lru_cache(maxsize=1)
def shuffle_pass(count: int, seed: int, number: int) -> list[int]:
    generator = torch.Generator().manual_seed((seed + 1) * 1_000_003 + number)
    return torch.randperm(count, generator=generator).tolist()


def next_rows(count: int, seed: int, drawn: int, number: int) -> list[int]:
    """Return the next `number` indices of shuffled passes over `count` rows, after `drawn` earlier ones."""
    places = (divmod(place, count) for place in range(drawn, drawn + number))
    return [shuffle_pass(count, seed, which)[place] for which, place in places]


class DynamicSampling(Part):
    """
    Replaces groups with equal rewards. Raises `ValueError`: a streamed dataset, or a process with parts of groups.
    """

    remembers = ("drawn",)

    def __init__(self, args, accelerator, dataset, group_size: int, pad_token_id: int, weights: torch.Tensor):
        if not isinstance(dataset, Dataset):
            raise ValueError(
                "dynamic_sampling_rounds samples additional prompts, which a streaming dataset does not support. "
                "Load the dataset without streaming."
            )
        rows = args.per_device_train_batch_size * args.steps_per_generation
        if rows % group_size:
            raise ValueError(
                f"dynamic_sampling_rounds={args.dynamic_sampling_rounds} replaces whole groups, so each process "
                f"needs a multiple of num_generations={group_size} completions, not {rows}. Change "
                "per_device_train_batch_size or steps_per_generation."
            )
        self.rounds = args.dynamic_sampling_rounds
        self.seed = args.seed
        self.accelerator = accelerator
        self.dataset = dataset
        self.group_size = group_size
        self.pad_token_id = pad_token_id
        self.weights = weights
        self.drawn = 0  # rows, by all processes

    def sample(self, examples: list[dict], draw: Callable) -> tuple[dict[str, torch.Tensor], RolloutResult]:
        """
        Sample a generation batch, and replacements. `examples` are this process's rows, G times each. `draw` samples
        completions of rows, with `again` in further rounds. Both return a batch that no anchor has scored, and its
        result.
        """
        size = self.group_size
        process = self.accelerator.process_index
        batch, first = draw(examples)
        further = []
        rewards = select_own_rows(first.rewards, process, len(examples))
        replaced = 0
        generated = 0
        for _ in range(self.rounds):
            places = self._find_undecided(rewards).nonzero().flatten().tolist()
            # Processes generate and gather together, so each takes part with the largest number of groups.
            needed = torch.tensor([len(places)], device=rewards.device)
            number = int(self.accelerator.gather(needed).max())
            if number == 0:
                break
            first_row = self.drawn + process * number
            self.drawn += number * self.accelerator.num_processes
            indices = next_rows(len(self.dataset), self.seed, first_row, number)
            # Copies: a rollout function adds its own columns, with a value per completion.
            rows = [dict(self.dataset[index]) for index in indices for _ in range(size)]
            others, result = draw(rows, again=True)
            further.append(result)
            generated += number
            their_rewards = select_own_rows(result.rewards, process, number * size)
            sources = (~self._find_undecided(their_rewards)).nonzero().flatten().tolist()[: len(places)]
            places = places[: len(sources)]
            replaced += len(sources)
            batch["rewards"] = rewards
            others["rewards"] = their_rewards
            complete_columns(batch, others)
            batch = replace_groups(batch, others, places, sources, size, self.pad_token_id)
            rewards = batch.pop("rewards")
        left = self._find_undecided(rewards).sum()
        counts = torch.stack([left.new_tensor(replaced), left.new_tensor(generated), left])
        names = ("groups_replaced", "groups_generated_again", "groups_undecided")
        measured = dict(zip(names, self.accelerator.reduce(counts, reduction="sum").tolist(), strict=True))
        batch["num_items_in_batch"] = self.accelerator.gather(completion_mask(batch).sum()).sum()
        return batch, first.join(further, self.accelerator.gather(rewards), measured)

    def _find_undecided(self, rewards: torch.Tensor) -> torch.Tensor:
        deciders = deciding_rewards(rewards, self.weights, self.group_size)
        return all_equal(deciders.view(-1, self.group_size))


# Signal watch: no gradient if all completions of a prompt get the same reward.


logger = logging.getLogger(__name__)

PATIENCE = 20  # generation batches
EQUAL = "in every group all completions got the same reward, so the rewards give no gradient"
INSPECT = (
    "Look at the completions (log_completions: true), the rewards they get, and the pass rate (trl-prorl preflight)."
)
ALL_TRUNCATED = (
    "mask_truncated_completions=True left out of the loss every completion that could give a gradient, because it was "
    "cut at max_completion_length"
)
RAISE = "Raise max_completion_length, or set mask_truncated_completions: false."


class SignalWatch(Part):
    """
    Warns after `PATIENCE` consecutive generation batches without signal, and each time their number has doubled: a
    completion in the loss from a group with different rewards.
    """

    remembers = ("silent", "truncated")

    def __init__(self, args, accelerator, weights: torch.Tensor, group_size: int):
        self.args = args
        self.accelerator = accelerator
        self.weights = weights
        self.group_size = group_size
        self.silent = 0  # newest batches in a row without signal
        self.truncated = 0  # silent because of `mask_truncated_completions`
        self._is_due = False

    def on_batch(self, batch: Batch) -> None:
        counts = completion_mask(batch).any(dim=1)
        rewards, counts = self.accelerator.gather((batch["rewards"], counts))
        self.observe(rewards, counts)

    def observe(self, rewards: torch.Tensor, counts: torch.Tensor) -> None:
        """Observe rewards `(N, F)`; `counts` `(N,)`: whether a completion has tokens in the loss."""
        size = self.group_size
        if self.args.advantage_estimator in UNGROUPED:
            size = len(rewards)
        silent = groups_without_signal(rewards, size, self.weights, self.args.multi_objective_aggregation)
        differs = ~silent.repeat_interleave(size)
        if (counts & differs).any():
            self.silent = 0
            self.truncated = 0
        else:
            self.silent += 1
            self.truncated += int(differs.any() or not counts.any())
        doublings = self.silent / PATIENCE
        self._is_due = doublings >= 1 and doublings.is_integer() and int(doublings).bit_count() == 1

    def on_row(self, step: int, row: Row) -> Event | None:
        if not self._is_due:
            return None
        self._is_due = False
        if self.args.learns_from_teacher and self.truncated < self.silent:
            return None
        self.warn(step)
        return make_event(NO_SIGNAL, step, step, self._explain()[0], self.silent, PATIENCE)

    def warn(self, step: int) -> None:
        logger.warning("No signal in %d generation batches up to step %d: %s. %s", self.silent, step, *self._explain())

    def _explain(self) -> tuple[str, str]:
        """Return the reason for the missing signal, and the cure."""
        return (ALL_TRUNCATED, RAISE) if self.truncated == self.silent else (EQUAL, INSPECT)
