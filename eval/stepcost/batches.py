"""Batches of random tokens whose lengths are GSM8K's."""

import argparse
import json
import random
from pathlib import Path


LENGTHS = Path(__file__).parent.with_name("gsm8k_lengths.json")


class Batches:
    """Prompts and completions of random tokens, the same for every arm; the lengths are drawn from a histogram."""

    def __init__(self, args: argparse.Namespace, scale: float, fixed: int | None = None):
        self.args, self.scale, self.fixed = args, scale, fixed
        self.histogram = json.loads(LENGTHS.read_text())

    def draw(self, number: int) -> tuple[list[list[int]], list[list[int]]]:
        """Prompt ids and completion ids of the generation batch of this number, a row per completion."""
        source, args = random.Random(number), self.args
        prompts, completions = [], []
        for _ in range(args.prompts):
            length = args.template + self._length(source, "question")
            prompt = [source.randrange(3, 250) for _ in range(length)]
            for _ in range(args.num_generations):
                prompts.append(prompt)
                count = self.fixed or max(1, round(self.scale * self._length(source, "answer")))
                completions.append([source.randrange(3, 250) for _ in range(min(count, args.longest))])
        return prompts, completions

    def _length(self, source: random.Random, what: str) -> int:
        counts = self.histogram[what]
        return source.choices(range(len(counts)), weights=counts)[0]


def mean_answer() -> float:
    """Tokens of a gold answer on average."""
    counts = json.loads(LENGTHS.read_text())["answer"]
    return sum(number * count for number, count in enumerate(counts)) / sum(counts)
