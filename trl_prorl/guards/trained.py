"""Is what is trained what the forward pass uses? Otherwise a run looks like any other, and its weights stay."""

import logging

import torch

from ..errors import RunError
from ..parts import Part
from ..upstream.modules import Parameters, is_sharded


logger = logging.getLogger(__name__)

CURE = "Activate the adapter that is trained (model.set_adapter), unmerge it, or load it with is_trainable=True."
SAMPLED = 256  # compared entries of each parameter
# They update while gradients are computed, and keep none.
UPDATE_IN_BACKWARD = ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo")


class TrainedCheck(Part):
    """
    Checks that gradients reach the optimizer's parameters, and warns if the first update with one changes none of
    some entries. Not with FSDP, DeepSpeed and optimizers that keep no gradients.
    """

    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.is_possible = not is_sharded(accelerator)
        self.optimizer: torch.optim.Optimizer | None = None
        self.is_due = True
        self._before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # parameter, places, values there

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer
        self.is_possible = self.is_possible and type(optimizer).__name__ not in UPDATE_IN_BACKWARD

    def watch(self, logps: torch.Tensor) -> None:
        """Raise [`~trl_prorl.errors.RunError`] for log-probabilities that depend on no trained parameter."""
        if self.is_possible and torch.is_grad_enabled() and not logps.requires_grad:
            raise RunError(f"nothing would be trained: the forward pass uses no trainable parameter. {CURE}")

    def _reached(self) -> list[torch.Tensor]:
        return [param for group in self.optimizer.param_groups for param in group["params"] if param.grad is not None]

    def on_backward(self, parameters: Parameters) -> None:
        if self.is_possible and not self._reached():
            raise RunError(f"nothing is trained: no gradient reaches a parameter of the optimizer. {CURE}")

    def on_pre_optimizer_step(self, step: int, norm: float | None, rate: float) -> None:
        if self.is_possible and self.is_due and norm and rate > 0.0:
            self._before = [sample_entries(param) for param in self._reached()]

    def on_step_end(self, step: int, parameters: Parameters) -> None:
        before = self._before
        self._before = []
        if not before or self.accelerator.optimizer_step_was_skipped:
            return
        self.is_due = False
        has_changed = any(not torch.equal(param.detach().reshape(-1)[places], old) for param, places, old in before)
        if not has_changed and self.accelerator.is_main_process:
            logger.warning(
                "Step %d changed none of the compared weights: its update may be rounded away. Raise learning_rate or "
                "train in fp32.",
                step,
            )


@torch.no_grad()
def sample_entries(param: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a parameter, places in it, and their values: its largest gradient, and some evenly spaced."""
    gradient = param.grad.reshape(-1)
    evenly = torch.arange(0, len(gradient), max(1, len(gradient) // SAMPLED), device=gradient.device)
    places = torch.cat([gradient.abs().argmax().reshape(1), evenly])
    return param, places, param.detach().reshape(-1)[places]
