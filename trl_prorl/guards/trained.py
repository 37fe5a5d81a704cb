"""Is what is trained what the forward pass uses? Otherwise a run looks like any other, and its weights stay."""

import logging

import torch

from ..errors import RunError
from ..parts import Part
from ..upstream.modules import Parameters, is_sharded


logger = logging.getLogger(__name__)

SAMPLED = 8  # compared entries of each parameter
# They update while gradients are computed, and keep none.
UPDATE_IN_BACKWARD = ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo")


class TrainedCheck(Part):
    """
    Checks that gradients reach the optimizer's parameters, and warns if the first update with one changes none of some
    entries. Not with FSDP, DeepSpeed and optimizers that keep no gradients.
    """

    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.optimizer: torch.optim.Optimizer | None = None
        self.is_possible = False
        self.is_due = True
        self._before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # parameter, places, values there

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer
        keeps_gradients = type(optimizer).__name__ not in UPDATE_IN_BACKWARD
        self.is_possible = keeps_gradients and not is_sharded(self.accelerator)

    def _reached(self) -> list[torch.Tensor]:
        return [param for group in self.optimizer.param_groups for param in group["params"] if param.grad is not None]

    def on_backward(self, parameters: Parameters) -> None:
        """Raise [`~trl_prorl.errors.RunError`] if the optimizer's parameters have no gradient."""
        if self.is_possible and not self._reached():
            raise RunError(
                "nothing is trained: no gradient reaches a parameter of the optimizer. Activate the adapter that is "
                "trained (model.set_adapter), unmerge it, or load it with is_trainable=True."
            )

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


def sample_entries(param: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a parameter, the places of its largest gradients, and its values there."""
    sizes = param.grad.reshape(-1).abs()
    places = sizes.topk(min(SAMPLED, len(sizes))).indices
    return param, places, param.detach().reshape(-1)[places]
