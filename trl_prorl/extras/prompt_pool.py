"""
Prompt pool with memory: prompts rest if they are solved or their last group gave no gradient.

Sources: ScaleRL (arXiv 2510.13786) and Olmo 3 (arXiv 2512.13961) drop solved prompts; prime-rl keeps pools by
difficulty. Here a prompt is sampled again after its rest, which detects forgetting and retries hard prompts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from ..advantages import all_equal
from ..parts import Part
from ..rollout import RolloutResult
from .dynamic_sampling import deciding_rewards


DECAY = 0.5  # weight of earlier groups in the pass rate
LONGEST_REST = 8  # passes
LAST = 2**62  # added to a turn: after all others


@dataclass(frozen=True)
class Memory:
    """
    A sampled prompt: decayed mean pass rate (`None` without a verifier), consecutive groups that caused a rest, and
    the number of drawn groups at which its rest ends.
    """

    rate: float | None
    rests: int
    due: int


def update_memory(
    earlier: Memory | None, passed: float | None, is_equal: bool, drawn: int, prompts: int, retire: float
) -> Memory:
    """
    Update a prompt's memory (`None`: never sampled) after a group with the share `passed` of correct completions and
    rewards that are equal or not. `drawn`: groups drawn so far; `prompts`: size of the training set; `retire`: pass
    rate of a solved prompt.
    """
    rate = passed
    rests = 0
    if earlier is not None:
        rests = earlier.rests
        if earlier.rate is not None and passed is not None:
            rate = DECAY * earlier.rate + (1.0 - DECAY) * passed
    is_solved = rate is not None and rate >= retire
    if not is_solved and not is_equal:
        return Memory(rate, rests=0, due=drawn)
    passes = min(2**rests, LONGEST_REST)
    return Memory(rate, rests + 1, due=drawn + passes * prompts)


class PromptPool(Part):
    """
    Draws the prompts of each generation batch, the same on all processes. Raises `ValueError`: the dataset is
    streamed.
    """

    def __init__(self, args, accelerator, dataset, group_size: int, weights: torch.Tensor):
        if not isinstance(dataset, Dataset):
            raise ValueError(
                "prompt_pool=True selects prompts of the training set, which a streaming dataset does not support. "
                "Load the dataset without streaming, or set prompt_pool: false."
            )
        self.retire = args.prompt_pool_retire
        self.accelerator = accelerator
        self.dataset = dataset
        self.group_size = group_size
        self.weights = weights
        order = torch.arange(len(dataset))
        if args.shuffle_dataset:
            order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(args.seed))
        self.places = order.argsort().numpy()  # by prompt, as `due`
        self.drawn = 0  # groups, of all processes
        self.memories: dict[int, Memory] = {}
        self.solved = 0  # prompts
        self.due = np.full(len(self.places), -1)  # -1 is unseen
        self._asked: set[int] = set()  # prompts of the batch, which may have further rounds

    def take(self, number: int) -> list[int]:
        """
        Return the next prompts: unseen ones, then by due time, each in the order; those already asked in this batch
        come last. None is returned twice unless all are.
        """
        turns = self.due * len(self.due) + self.places
        turns[list(self._asked)] += LAST
        first = np.argpartition(turns, min(number, len(turns)) - 1)[:number]
        return np.resize(first[np.argsort(turns[first])], number).tolist()

    def sample(self, draw: Callable, examples: list[dict], again: bool = False):
        """Sample a generation batch in place of `examples`, as [`DynamicSampling.sample`] does."""
        count = len(examples)
        groups = count * self.accelerator.num_processes // self.group_size
        if not again:
            self._asked = set()
        prompts = self.take(groups)
        self._asked.update(prompts)
        asked = [index for index in prompts for _ in range(self.group_size)]
        own = asked[count * self.accelerator.process_index :][:count]
        # Each completion has a row of its own: a rollout function adds columns, and an environment may change lists.
        rows = [self.dataset[index] for index in own]
        batch, result = draw(rows, again=again)
        result.measured.update(self.observe(prompts, result))
        return batch, result

    def observe(self, prompts: list[int], result: RolloutResult) -> dict[str, float]:
        """Remember results of all processes' prompts (indices); return columns of `metrics.jsonl`."""
        size = self.group_size
        deciders = deciding_rewards(result.rewards, self.weights, size)
        equal = all_equal(deciders.view(-1, size)).tolist()
        unscored = deciders.isnan().view(-1, size).all(dim=1).tolist()
        self.drawn += len(prompts)
        for which, index in enumerate(prompts):
            if unscored[which]:  # no information; others come first
                earlier = self.memories.get(index) or Memory(None, 0, due=0)
                self.memories[index] = replace(earlier, due=max(earlier.due, self.drawn))
                self.due[index] = self.memories[index].due
                continue
            verdicts = result.correct[which * size :][:size]
            passed = sum(verdicts) / size if verdicts else None
            earlier = self.memories.get(index)
            memory = update_memory(earlier, passed, equal[which], self.drawn, len(self.due), self.retire)
            self.memories[index] = memory
            self.due[index] = memory.due
            self.solved += self._is_solved(memory) - self._is_solved(earlier)
        measured = {
            "groups_with_signal": 1.0 - sum(equal) / len(equal),
            "prompts_unseen": 1.0 - len(self.memories) / len(self.due),
            "prompts_resting": np.count_nonzero(self.due > self.drawn) / len(self.due),
        }
        if result.correct:
            measured["prompts_solved"] = self.solved / len(self.due)
        return measured

    def _is_solved(self, memory: Memory | None) -> bool:
        return memory is not None and memory.rate is not None and memory.rate >= self.retire

    def state_dict(self) -> dict[str, Any]:
        known = [[index, memory.rate, memory.rests, memory.due] for index, memory in self.memories.items()]
        return {"drawn": self.drawn, "prompts": known}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        """In a changed data set, all prompts are unseen."""
        self.drawn = state["drawn"]
        if "rows of the training set" in changed:
            return
        self.memories = {index: Memory(*values) for index, *values in state["prompts"]}
        self.due[list(self.memories)] = [memory.due for memory in self.memories.values()]
        self.solved = sum(map(self._is_solved, self.memories.values()))
