"""Memory that a growing LoRA adapter takes later in a run, which its first steps do not show."""

import math

import torch

from trl_prorl.adapters.growth import factors_of
from trl_prorl.resets.optimizer_state import inner_of


def largest_rank(rank: int, every: int, step: int, largest: int, max_steps: int, steps_per_generation: float) -> int:
    """
    The rank at the end of a run: a growth requested at a step is applied at the next generation boundary, and requests
    between two boundaries are one growth.

    Args:
        rank (`int`): The adapter's, at the beginning.
        every, step, largest (`int`): `lora_growth_every`, `lora_growth_step` and `lora_growth_max_rank`.
        max_steps (`int`): Optimizer steps of the run.
        steps_per_generation (`float`): Optimizer steps from one generation to the next; below 1, several a step.
    """
    if not every or rank >= largest:
        return rank
    generation = max(1, steps_per_generation)
    boundaries = {math.ceil(asked / generation) * generation for asked in range(every, max_steps, every)}
    growths = sum(boundary < max_steps for boundary in boundaries)
    return min(rank + growths * step, largest)


def bytes_of_growth(trainer, rank: int) -> int:
    """
    Bytes by which adapters, gradients, frozen copies and optimizer state grow until a rank.

    All of them are proportional to the rank, so that the present bytes tell the later ones.

    Args:
        trainer ([`~trl_prorl.ProRLTrainer`]): After an optimizer step, with a [`~trl_prorl.adapters.growing.Growth`].
        rank (`int`): The later rank.
    """
    growth = trainer.parts["growth"]
    states = inner_of(trainer.optimizer).state
    total = 0
    for factor in factors_of(growth.policy):
        weight = factor.linear.weight
        tensors = [weight, *(state for state in states.get(weight, {}).values() if torch.is_tensor(state))]
        copies = [weight] if weight.requires_grad else []  # its gradient
        if factor.adapter == "default":
            copies += [copy[factor.name] for copy in growth.copies]
        total += sum(tensor.nbytes for tensor in tensors + copies if tensor.dim())
    return round(total * (rank / growth.rank - 1))
