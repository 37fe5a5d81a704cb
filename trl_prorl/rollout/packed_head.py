"""
The LM head of a merged copy on a CPU, its weights in the order in which they are read.

For a few rows a CPU multiplies by a large matrix two to four times as fast if oneDNN has reordered the matrix before.
`torch.compile` does the same with the weights of a frozen model.
"""

import torch


ROWS = 8  # of an input, for which oneDNN chooses the order; it serves any number


class PackedHead(torch.nn.Module):
    """
    A linear layer for inference: the values of the policy's head, after a [`~PackedHead.refresh`].

    Args:
        head (`torch.nn.Linear`):
            A head that [`can_be_packed`] accepts.

    Attributes:
        bytes (`int`):
            Memory that it takes beside the policy's head.
    """

    def __init__(self, head: torch.nn.Linear):
        super().__init__()
        object.__setattr__(self, "_head", head)  # not a module of the copy
        self._packed = self._of = None
        self.bytes = head.weight.numel() * head.weight.element_size()

    @property
    def weight(self) -> torch.Tensor:
        """The policy's own, of shape `(V, H)`."""
        return self._head.weight

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the weights if they have changed."""
        now = (self.weight.data_ptr(), self.weight._version)
        if now != self._of:
            self._packed, self._of = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS), now

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of shape `(*, V)` for `hidden` of shape `(*, H)`."""
        return torch.ops.mkldnn._linear_pointwise(hidden, self._packed, None, "none", [], "")


def can_be_packed(head: torch.nn.Module | None) -> bool:
    """Whether a head is a plain linear layer in float32 on a CPU for which torch has oneDNN's operators."""
    return (
        type(head) is torch.nn.Linear
        and "forward" not in vars(head)  # replaced, to cast
        and head.bias is None
        and head.weight.device.type == "cpu"
        and head.weight.dtype == torch.float32
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
