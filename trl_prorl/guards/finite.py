"""NaN and infinity: whether there is one, and in which tensor it came up first."""

import math
from collections.abc import Iterable, Mapping

import torch


@torch.no_grad()
def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether every value of every tensor is finite; one transfer from the device in all."""
    # Of a sharded parameter, this process's part.
    local = [getattr(tensor, "_local_tensor", tensor).detach() for tensor in tensors]
    local = [tensor for tensor in local if tensor.is_floating_point() and tensor.numel()]
    # The largest absolute value cannot overflow as a sum of squares can, and NaN wins every comparison.
    return math.isfinite(torch.nn.utils.get_total_norm(local, norm_type=math.inf))


def first_nonfinite(named: Mapping[str, torch.Tensor | None]) -> str | None:
    """The name of the first tensor that holds NaN or infinity, in the mapping's order."""
    for name, tensor in named.items():
        if tensor is not None and not all_finite([tensor]):
            return name
    return None
