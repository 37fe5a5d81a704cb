"""
Is what is trained what the forward pass uses? At the first update whose loss has a gradient, a gradient has to reach a
parameter of the optimizer, and the update has to change one. Otherwise a run logs losses, gradient norms and rewards
like any other, and its weights stay.
"""

import math

import torch
from accelerate.utils import DistributedType

from .errors import RunError
from .parts import Part


# They update while gradients are computed, and keep none.
UPDATE_IN_BACKWARD = ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo")


class TrainedCheck(Part):
    """
    Checks one update, and once more after a resume. Weights that DeepSpeed or FSDP shards are not checked, nor
    optimizers that update in the backward pass.

    Args:
        accelerator ([`~accelerate.Accelerator`]): The run's.
    """

    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.optimizer: torch.optim.Optimizer | None = None
        self.begin()

    def begin(self) -> None:
        self.is_due = self.accelerator.distributed_type not in (DistributedType.DEEPSPEED, DistributedType.FSDP)
        self._watched: list[torch.Tensor] = []  # the policy's log-probabilities, until their gradient is known
        self._has_signal = False
        self._before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # parameter, places, values there
        self._is_slow = False  # whether the learning rate of this update is far below that of the schedule

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer
        if type(optimizer).__name__ in UPDATE_IN_BACKWARD:
            self.is_due = False

    def watch(self, logps: torch.Tensor) -> None:
        """
        Take the policy's log-probabilities of a micro-batch, before the backward pass.

        Raises:
            [`~trl_prorl.errors.RunError`]: They depend on no parameter that is trained.
        """
        if not self.is_due or not torch.is_grad_enabled():
            return
        if not logps.requires_grad:
            raise RunError(
                "nothing would be trained: the policy's log-probabilities depend on no trainable parameter. "
                "Activate the adapter that is trained (model.set_adapter(NAME)), or load it with is_trainable=True."
            )
        logps.retain_grad()
        self._watched.append(logps)

    def gradients(self, model) -> None:
        """
        Look for a gradient of the parameters of the optimizer.

        Raises:
            [`~trl_prorl.errors.RunError`]: The loss has a gradient, and none reaches them.
        """
        watched = self._watched
        self._watched = []
        self._has_signal = any(logps.grad is not None and bool(logps.grad.any()) for logps in watched)
        if not self._has_signal:
            return
        trained = self._trained()
        if any(param.grad is not None and bool(param.grad.any()) for param in trained):
            return
        names = {param: name for name, param in model.named_parameters()}
        first = names.get(trained[0], "a tensor that is not in the model")
        others = [name for param, name in names.items() if param.grad is not None and bool(param.grad.any())]
        reaches = f"; it reaches {others[0]}, which the optimizer does not have" if others else ""
        raise RunError(
            f"nothing is trained: the loss has a gradient, and none reaches the {len(trained)} parameters of the "
            f"optimizer (the first is {first}){reaches}. The forward pass has to use what is trained: activate that "
            "adapter (model.set_adapter(NAME)), or make the optimizer of the model's own parameters."
        )

    def before_update(self, step: int, norm: float | None, rate: float) -> None:
        """Keep values that an update changes; none if the step is skipped, which leaves no gradient."""
        self._before = []
        overflows = norm is not None and not math.isfinite(norm)  # the scaler of fp16 skips the step
        if not self._has_signal or rate == 0.0 or overflows:
            return
        self._is_slow = rate < self.optimizer.param_groups[0].get("initial_lr", rate) / 2
        for param in self._trained():
            if param.grad is not None:
                places = _likely_to_change(param.detach(), param.grad)
                self._before.append((param, places, param.detach().reshape(-1)[places]))

    def update(self, step: int, model) -> None:
        """Raise [`~trl_prorl.errors.RunError`]: the update has changed no parameter."""
        before = self._before
        self._before = []
        if not before or self.accelerator.optimizer_step_was_skipped:
            return
        changed = any(bool((param.detach().reshape(-1)[places] != old).any()) for param, places, old in before)
        if not changed and self._is_slow:  # in a warm-up or at the end of a decay an update may be rounded away
            return
        if not changed:
            dtype = str(before[0][0].dtype).removeprefix("torch.")
            raise RunError(
                f"nothing is trained: step {step} changed none of {len(before)} parameters, although gradients reach "
                f"them. If learning_rate is too small for weights in {dtype}, raise it, or train fp32 weights (dtype: "
                "float32; with bf16: true the forward pass stays in bf16)."
            )
        self.is_due = False
        self._has_signal = False

    def _trained(self) -> list[torch.Tensor]:
        return [param for group in self.optimizer.param_groups for param in group["params"]]


def _likely_to_change(param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """
    Return two places of a flattened parameter: that of its largest gradient, and that of its smallest value with a
    gradient, which even a small update does not round away.
    """
    grad = grad.reshape(-1)
    sizes = param.reshape(-1).abs().masked_fill(grad == 0, torch.inf)
    return torch.stack([grad.abs().argmax(), sizes.argmin()])
