"""The operations that a step needs, by hand: what it needs, not what an implementation spends on padding."""

from typing import NamedTuple

from trl_prorl.eval.stepcost.shapes import SHAPES


class Work(NamedTuple):
    """
    Operations of one forward over a batch, a multiplication and an addition counted as two.

    Attributes:
        body (`int`): Of all layers, for every prompt once and for every completion.
        head (`int`): Of the output layer, for the completions' tokens.
    """

    body: int
    head: int

    @property
    def forward(self) -> int:
        return self.body + self.head


def work(shape: str, prompts: list[list[int]], completions: list[list[int]]) -> Work:
    """
    The work of one forward.

    Args:
        shape (`str`): A key of `SHAPES`.
        prompts (`list[list[int]]`): Ids, a row per completion; equal prompts follow one another and count once.
        completions (`list[list[int]]`): Ids.
    """
    hidden, layers, heads, key_values, intermediate, vocabulary = SHAPES[shape]
    size = hidden // heads
    weights = layers * hidden * (2 * hidden + 2 * key_values * size + 3 * intermediate)
    tokens = pairs = 0
    last: list[int] | None = None
    for prompt, completion in zip(prompts, completions, strict=True):
        if prompt is not last:
            tokens += len(prompt)
            pairs += len(prompt) * (len(prompt) + 1) // 2  # a token and each that it sees
            last = prompt
        tokens += len(completion)
        pairs += len(completion) * len(prompt) + len(completion) * (len(completion) + 1) // 2
    attention = 4 * pairs * layers * heads * size
    return Work(2 * tokens * weights + attention, 2 * sum(map(len, completions)) * hidden * vocabulary)


def update(one: Work, lora: bool) -> int:
    """
    Operations of an update: a forward, and in the backward once as many for the gradients of activations and, if all
    weights are trained, once more for theirs. LoRA's own are left out.
    """
    return one.forward * (2 if lora else 3)
