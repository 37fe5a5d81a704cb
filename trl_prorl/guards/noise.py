"""
Is a policy's forward random in training mode? A KL would not be 0 where it should be, and a reused log-probability
would belong to another network.
"""

import torch

from ..cli.dropout import WHY, find_dropout, own_random_state, training_mode
from ..errors import InputError
from ..fast.comparison import coarsest_unit, mean_difference, mixed_dtype, own_logps
from ..upstream.modules import checkpointing_off


LENGTH = 64  # of the row that is compared: the first tokens of the vocabulary
# Bound on the mean difference of log-probabilities of two equal forwards, in nats per token: some kernels sum in any
# order.
ROUNDING = 1e-4


@torch.no_grad()
def find_noise(policy: torch.nn.Module, accelerator) -> str | None:
    """
    Return a sentence if two forwards of a row differ, or if a module has a dropout rate: a new adapter's changes
    nothing before the first update. Random states and modes are restored.
    """
    dropout = find_dropout(policy)
    if dropout is not None:
        return dropout
    tokens = list(range(min(LENGTH, policy.get_input_embeddings().weight.size(0))))
    with own_random_state(), checkpointing_off(policy.modules()), training_mode(policy), accelerator.autocast():
        first = own_logps(policy, tokens, tokens, 1.0)
        second = own_logps(policy, tokens, tokens, 1.0)
    difference = mean_difference(first, second)
    limit = max(ROUNDING, coarsest_unit(policy, mixed_dtype(accelerator)))
    if not difference > limit:  # NaN is another guard's
        return None
    return (
        f"the policy is random in training mode: two forwards of a row differ by {difference:.2g} nats per token. "
        f"{WHY} Load the model without what is random (dropout, jitter: model_init_kwargs), and remove hooks and "
        "neftune_noise_alpha."
    )


def refuse_noise(noise: str) -> None:
    raise InputError(noise)
