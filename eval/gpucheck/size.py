"""How much a part does: at a GPU's size, or in seconds of a CPU."""

import argparse
import math
import time
from dataclasses import dataclass

from trl_prorl.eval.stepcost.options import parse


@dataclass(frozen=True)
class Size:
    """
    Attributes:
        name (`str`): `"card"` or `"cpu"`.
        device (`str`): `"cuda"` or `"cpu"`.
        small (`str`): Shape of the models whose numbers are compared, a key of `SHAPES`.
        shapes (`tuple[str, ...]`): Shapes of the models whose cost is measured.
        settings (`tuple[tuple[float, int], ...]`): Of the cost: completions as multiples of gold answers, and μ.
        prompts, completions (`int`): Of a batch whose cost is measured.
        longest (`int`): Where completions are cut.
        rounds (`int`): After the one that warms up.
        thorough (`bool`): Whether every combination is tried; otherwise one of each kind.
        ends (`float`): On `time.monotonic`: after it a part begins no further measurement.
    """

    name: str
    device: str
    small: str
    shapes: tuple[str, ...]
    settings: tuple[tuple[float, int], ...]
    prompts: int
    completions: int
    longest: int
    rounds: int
    thorough: bool
    ends: float = math.inf

    @property
    def on_card(self) -> bool:
        return self.device == "cuda"

    @property
    def no_time(self) -> str | None:
        """Why nothing further is measured in this part, in a few words, or `None`."""
        return "no time was left in this part" if time.monotonic() > self.ends else None

    def arguments(self, **changes) -> argparse.Namespace:
        """What `eval.stepcost` takes, with some of it changed."""
        args = parse(["--device", self.device])
        own = {"prompts": self.prompts, "num_generations": self.completions, "micro_batch": self.completions}
        vars(args).update(own | {"longest": self.longest, "rounds": self.rounds} | changes)
        return args


CARD = Size(
    name="card",
    device="cuda",
    small="small",
    shapes=("qwen2.5-0.5b", "qwen2.5-1.5b"),
    settings=((1.0, 2), (4.0, 2), (1.0, 4)),  # the last of the smallest shape alone
    prompts=4,
    completions=8,
    longest=2048,
    rounds=3,
    thorough=True,
)
CPU = Size(
    name="cpu",
    device="cpu",
    small="tiny",
    shapes=("tiny",),
    settings=((1.0, 2),),
    prompts=2,
    completions=4,
    longest=12,
    rounds=1,
    thorough=False,
)
SIZES = {size.name: size for size in (CARD, CPU)}
