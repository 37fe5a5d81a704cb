"""
What a step asks of a device, at any depth: from the table of counts that the tests keep.

The cases named `recipe` are counted at two depths, and a line through both gives any other. The bytes of a token grow
with its cache and with the vocabulary, and from that follows how often it reads or writes both.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


Rows = Mapping[tuple[str, str, str], Mapping[str, int]]  # by model, arm and stage
DEPTHS = (2, 4)
FORWARDS = 2  # of a batch that is scored, in the counted cases
SAMPLED_ROWS = 16  # in the counted cases
RECIPE_MODEL = {  # of the counted cases named `recipe`
    "initializer_range": 0.45,  # so that the others leave an end no probability in 64 tokens, too
    "vocab_size": 384,  # whole blocks of `rollout.draw.BLOCK`, as Qwen2.5's
    "hidden_size": 48,
    "num_attention_heads": 12,  # in the groups of Qwen2.5-1.5B
    "num_key_value_heads": 2,
    "head_dim": 32,  # so that the cache of a token outweighs its mask
}
CACHE_BYTES = 2 * 2 * RECIPE_MODEL["num_key_value_heads"] * RECIPE_MODEL["head_dim"]  # of a token and a layer, in bf16
MORE_TOKENS = 1024  # of the other vocabulary
TOKENS_BETWEEN_LOOKS = 16  # `CHECK_EVERY` of rollout/compact.py: at the others the host does not wait


class Line(NamedTuple):
    """A count that grows with the layers."""

    constant: float
    per_layer: float

    def at(self, layers: int) -> float:
        return self.constant + self.per_layer * layers


@dataclass(frozen=True)
class Arm:
    """
    Names a row of the predictions.

    Attributes:
        name (`str`): In the tables.
        counted (`str`): The counted case.
        scored (`tuple[str, ...]`): The cases whose scoring of a batch it does.
        is_ours (`bool`): Whether it packs and samples compactly, from a merged copy.
        has_reference (`bool`): Whether a second adapter is kept.
    """

    name: str
    counted: str
    scored: tuple[str, ...] = ()
    is_ours: bool = True
    has_reference: bool = False


ARMS = (
    Arm("TRL with a reference", "TRL, control", ("TRL, plain", "TRL, control"), is_ours=False),
    Arm("plain", "plain"),
    Arm("control", "control", ("control",)),
    Arm("A", "A", ("A",), has_reference=True),
    Arm("B", "B"),
)


def read_counts(path: Path) -> Rows:
    """Read the table that the tests keep."""
    _, *lines = path.read_text().splitlines()
    rows = {}
    for row in csv.DictReader(lines):
        key = (row.pop("model"), row.pop("arm"), row.pop("stage"))
        rows[key] = {name: int(count) for name, count in row.items()}
    return rows


@dataclass(frozen=True)
class Counts:
    """Computes an arm's counts at any depth from the table."""

    table: Rows
    arm: Arm

    def line(self, column: str, *stages: str, arm: str | None = None) -> Line:
        """Draw a line through the counts at two depths; of several stages through their mean."""
        means = []
        for layers in DEPTHS:
            found = [
                self.table[f"recipe, {layers} layers", arm or self.arm.counted, stage][column] for stage in stages
            ]
            means.append(sum(found) / len(found))
        per_layer = (means[1] - means[0]) / (DEPTHS[1] - DEPTHS[0])
        return Line(means[0] - per_layer * DEPTHS[0], per_layer)

    def token(self, column: str) -> Line:
        return self.line(column, "token")

    def batch(self, column: str) -> Line:
        """What a generation batch asks beside its tokens and its scoring."""
        return self.line(column, "batch")

    def micro_batch(self, column: str) -> Line:
        return self.line(column, "micro-batch, first", "micro-batch, later")

    def step(self, column: str) -> Line:
        """The optimizer's fused kernels are as many at any depth."""
        return Line(self.table["LoRA bf16", self.arm.counted, "step"][column], 0.0)

    def scorings(self, column: str) -> list[Line]:
        """A forward of each kind with which a batch is scored."""
        lines = [self.line(column, "scoring", arm=arm) for arm in self.arm.scored]
        return [Line(line.constant / FORWARDS, line.per_layer / FORWARDS) for line in lines]

    @property
    def cache_passes(self) -> int:
        """How often a token reads or writes the whole cache: by how much its bytes grow when it is one longer."""
        per_layer = self.line("bytes", "token, one longer").per_layer
        return round(per_layer / SAMPLED_ROWS / CACHE_BYTES)

    @property
    def logit_bytes(self) -> int:
        """Bytes that a token reads and writes for each logit of a row: by how much they grow with the vocabulary."""
        sampler = "plain" if self.arm.is_ours else "TRL, plain"
        less, more = (
            self.table[model, sampler, "token"]["bytes"]
            for model in ("recipe, 2 layers", f"recipe, 2 layers, {MORE_TOKENS} tokens more")
        )
        of_head = 2 * RECIPE_MODEL["hidden_size"]
        return round(((more - less) / MORE_TOKENS - of_head) / SAMPLED_ROWS)

    def token_waits(self) -> float:
        if self.arm.is_ours:
            return 1 / TOKENS_BETWEEN_LOOKS
        return self.token("waits").constant
