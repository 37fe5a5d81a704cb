"""Is what is trained what the forward pass uses? Otherwise a run looks like any other, and its weights stay."""

import torch

from ..errors import RunError
from ..parts import Part
from ..upstream.modules import Parameters


CURE = "Activate the adapter that is trained (model.set_adapter), unmerge it, or load it with is_trainable=True."


class TrainedCheck(Part):
    """Checks that gradients reach the optimizer's parameters, and that the first update with one changes values."""

    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.optimizer: torch.optim.Optimizer | None = None
        self.is_due = True
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer

    def watch(self, logps: torch.Tensor) -> None:
        """Raise [`~trl_prorl.errors.RunError`] for log-probabilities that depend on no trained parameter."""
        if torch.is_grad_enabled() and not logps.requires_grad:
            raise RunError(f"nothing would be trained: the forward pass uses no trainable parameter. {CURE}")

    def _reached(self) -> list[torch.Tensor]:
        return [param for group in self.optimizer.param_groups for param in group["params"] if param.grad is not None]

    def on_backward(self, parameters: Parameters) -> None:
        if not self._reached():
            raise RunError(f"nothing is trained: no gradient reaches a parameter of the optimizer. {CURE}")

    def on_pre_optimizer_step(self, step: int, norm: float | None, rate: float) -> None:
        if self.is_due and norm and rate > 0.0:
            self._before = [(param, param.detach().clone()) for param in self._reached()]

    def on_step_end(self, step: int, parameters: Parameters) -> None:
        before, self._before = self._before, []
        if before and not self.accelerator.optimizer_step_was_skipped:
            self.is_due = False
            if all(torch.equal(param, old) for param, old in before):
                raise RunError(f"nothing is trained: step {step} changed no weight. Raise learning_rate, or use fp32.")
