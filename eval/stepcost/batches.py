"""Batches of random tokens whose lengths are a task's."""

import argparse
import json
import random
from pathlib import Path


FOLDER = Path(__file__).parent.parent  # GSM8K's lengths are of its texts, `instructions`' of SmolLM2's samples


class Batches:
    """Prompts and completions of random tokens, the same for every arm; the lengths are drawn from a histogram."""

    def __init__(self, args: argparse.Namespace, scale: float, fixed: int | None = None):
        self.args, self.scale, self.fixed = args, scale, fixed
        self.histogram = lengths(args.task)

    def draw(self, number: int) -> tuple[list[list[int]], list[list[int]]]:
        """Prompt ids and completion ids of the generation batch of this number, a row per completion."""
        source, args = random.Random(number), self.args
        prompts, completions = [], []
        for _ in range(args.prompts):
            length = (args.template if args.task == "gsm8k" else 0) + self._length(source, "question")
            prompt = [source.randrange(3, 250) for _ in range(length)]
            for _ in range(args.num_generations):
                prompts.append(prompt)
                count = self.fixed or max(1, round(self.scale * self._length(source, "answer")))
                completions.append([source.randrange(3, 250) for _ in range(min(count, args.longest))])
        return prompts, completions

    def _length(self, source: random.Random, what: str) -> int:
        counts = self.histogram[what]
        return source.choices(range(len(counts)), weights=counts)[0]


def lengths(task: str) -> dict[str, list[int]]:
    """Of a task's prompts (`question`) and completions (`answer`) how many have so many tokens."""
    return json.loads((FOLDER / f"{task}_lengths.json").read_text())


def mean_answer(task: str) -> float:
    """Tokens of a completion on average."""
    counts = lengths(task)["answer"]
    return sum(number * count for number, count in enumerate(counts)) / sum(counts)
