"""How many tokens a step computes: as TRL pads them, and what is left if nothing is computed twice."""

from trl_prorl.launch.prompts import find_distinct


def count_tokens(
    prompts: list[list[int]], completions: list[list[int]], micro_batch: int, iterations: int
) -> dict[str, tuple[int, int]]:
    """
    Count the tokens of one generation batch that pass through the model, for each part of a step.

    TRL computes rows of the widest prompt and the longest completion, in every part. What is left has no padding, each
    prompt once per forward, and no row after its end; the old policy's log-probabilities come from the first update.

    Args:
        prompts (`list[list[int]]`): A prompt for every completion; those of a group are equal.
        completions (`list[list[int]]`): The completions.
        micro_batch (`int`): Completions per forward with gradient.
        iterations (`int`): Updates of the batch.

    Returns:
        `dict[str, tuple[int, int]]`: TRL's tokens and those that are left, for `generation`, `old policy` (a forward),
        `reference` (a forward) and `update` (a forward and a backward pass).
    """
    rows = len(prompts)
    padded = rows * (max(map(len, prompts)) + max(map(len, completions)))
    written = sum(map(len, completions))

    def prompt_tokens(some: list[list[int]]) -> int:
        return sum(map(len, find_distinct(some)[0]))

    micro_batches = [prompts[first : first + micro_batch] for first in range(0, rows, micro_batch)]
    update = written + sum(map(prompt_tokens, micro_batches))
    return {
        "generation": (padded - rows, prompt_tokens(prompts) + written - rows),  # the last token is not read
        "old policy": (padded if iterations > 1 else 0, 0),
        "reference": (padded, prompt_tokens(prompts) + written),
        "update": (iterations * padded, iterations * update),
    }
