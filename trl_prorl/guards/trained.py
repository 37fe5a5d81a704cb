"""Is what is trained what the forward pass uses? Otherwise a run looks like any other, and its weights stay."""

import torch

from ..errors import RunError
from ..parts import Part
from ..upstream.modules import Parameters, is_sharded


CURE = "Activate the adapter that is trained (model.set_adapter), unmerge it, or load it with is_trainable=True."
# They update while gradients are computed, and keep none.
UPDATE_IN_BACKWARD = ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo")


class TrainedCheck(Part):
    """
    Checks that gradients reach the optimizer's parameters. Not with FSDP, DeepSpeed and optimizers that keep none.
    """

    def __init__(self, accelerator):
        self.is_possible = not is_sharded(accelerator)
        self.optimizer: torch.optim.Optimizer | None = None

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer
        self.is_possible = self.is_possible and type(optimizer).__name__ not in UPDATE_IN_BACKWARD

    def watch(self, logps: torch.Tensor) -> None:
        """Raise [`~trl_prorl.errors.RunError`] for log-probabilities that depend on no trained parameter."""
        if self.is_possible and torch.is_grad_enabled() and not logps.requires_grad:
            raise RunError(f"nothing would be trained: the forward pass uses no trainable parameter. {CURE}")

    def on_backward(self, parameters: Parameters) -> None:
        groups = self.optimizer.param_groups
        is_reached = any(param.grad is not None for group in groups for param in group["params"])
        if self.is_possible and not is_reached:
            raise RunError(f"nothing is trained: no gradient reaches a parameter of the optimizer. {CURE}")
