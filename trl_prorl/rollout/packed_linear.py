"""
A linear layer of a merged copy on a CPU, its weights in the order in which they are read.

For a few rows a CPU multiplies by a large matrix two to four times as fast if oneDNN has reordered the matrix before,
and by a small one a quarter faster. `torch.compile` does the same with the weights of a frozen model.
"""

import torch


ROWS = 8  # of an input, for which oneDNN chooses the order; it serves any number


class PackedLinear(torch.nn.Module):
    """
    A linear layer for inference: the values of another, after a [`~PackedLinear.refresh`] or [`~PackedLinear.pack`].

    Args:
        layer (`torch.nn.Linear`): A layer that [`can_be_packed`] accepts.

    Attributes:
        bytes (`int`): Memory that it takes beside that layer.
    """

    def __init__(self, layer: torch.nn.Linear):
        super().__init__()
        object.__setattr__(self, "_layer", layer)  # not a module of the copy
        self._packed = self._of = None
        self.bytes = layer.weight.numel() * layer.weight.element_size()

    @property
    def weight(self) -> torch.Tensor:
        """That of the layer, of shape `(V, H)`."""
        return self._layer.weight

    def refresh(self) -> None:
        """Take over the weights if they have changed."""
        now = (self.weight.data_ptr(), self.weight._version)
        if now != self._of:
            self._of = now
            self.pack()

    @torch.no_grad()
    def pack(self) -> None:
        """Take over the weights."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The product of shape `(*, V)` for `hidden` of shape `(*, H)`."""
        return torch.ops.mkldnn._linear_pointwise(hidden, self._packed, self._layer.bias, "none", [], "")


def can_be_packed(layer: torch.nn.Module | None) -> bool:
    """Whether a layer is a plain linear one on a CPU for which torch has oneDNN's operators."""
    return (
        type(layer) is torch.nn.Linear
        and "forward" not in vars(layer)  # replaced, to cast
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and layer.weight.device.type == "cpu"
        and all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
        and (layer.weight.dtype == torch.float32 or packs_bf16() and layer.weight.dtype == torch.bfloat16)
    )


def packs_bf16() -> bool:
    """Whether this CPU multiplies in bf16."""
    return hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported") and torch.ops.mkldnn._is_mkldnn_bf16_supported()
