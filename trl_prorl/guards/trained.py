"""
Checks that the trained parameters are those of the forward pass; otherwise a run looks like any other, and its weights
stay.
"""

import logging
import math

import torch
from accelerate.utils import DistributedType

from ..errors import RunError
from ..optimizer import configured_rates
from ..parts import Part
from ..upstream.modules import Parameters


logger = logging.getLogger(__name__)

# They update while gradients are computed, and keep none.
UPDATE_IN_BACKWARD = ("LayerWiseDummyOptimizer", "Lomo", "AdaLomo")
SAMPLED = 256  # compared entries of each parameter
FEW = 0.1  # below this share of changed entries, warn
TRAIN_FP32 = (
    "train fp32 weights (dtype: float32; with bf16: true the forward pass stays in bf16. TRL casts the adapter of a "
    "quantized model to bf16: in a script, set param.data = param.data.float() before train)"
)
EVERY = 100  # steps between compared updates, after the first ones


class TrainedCheck(Part):
    """
    Checks that the optimizer's parameters get gradients, and that updates change values.

    Gradients are checked at every update: a callback may switch or merge adapters. Values are compared for the first
    two updates with a gradient (LoRA's A has none at the first), and then every 100th: weights in bf16 grow, and
    learning rates fall, until an update is rounded away. If only some parameters do not train, it warns. Not checked:
    sharded weights, and optimizers that update in the backward pass.
    """

    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.optimizer: torch.optim.Optimizer | None = None
        self.begin()

    def begin(self) -> None:
        self.is_possible = self.accelerator.distributed_type not in (DistributedType.DEEPSPEED, DistributedType.FSDP)
        self.is_due = True  # whether to compare the next update
        self._compared = 0  # updates
        self._watched: list[torch.Tensor] = []  # the policy's log-probabilities, until their gradient is known
        self._has_signal = False
        self._before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # parameter, places, values there
        self._said: set[str] = set()

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer
        if type(optimizer).__name__ in UPDATE_IN_BACKWARD:
            self.is_possible = False
        rates = configured_rates(optimizer)
        if 0.0 in rates:
            zero = f"{rates.count(0.0)} of {len(rates)}"
            self._warn("rate", f"The learning rate is 0 in {zero} groups of parameters: they are not trained.")

    def watch(self, logps: torch.Tensor) -> None:
        """
        Record a micro-batch's log-probabilities. Raises [`~trl_prorl.errors.RunError`]: they depend on no trained
        parameter.
        """
        if not self.is_possible or not torch.is_grad_enabled():
            return
        if not logps.requires_grad:
            raise RunError(
                "nothing would be trained: the policy's log-probabilities depend on no trainable parameter. "
                "Activate the adapter that is trained (model.set_adapter(NAME)), unmerge it "
                "(model.unmerge_adapter()), or load it with is_trainable=True."
            )
        if self.is_due:
            logps.retain_grad()
            self._watched.append(logps)

    def on_backward(self, parameters: Parameters) -> None:
        """Raise [`~trl_prorl.errors.RunError`] if the loss has a gradient, but no parameter of the optimizer does."""
        if not self.is_possible:
            return
        watched = self._watched
        self._watched = []
        self._has_signal = any(map(_has_gradient, watched))
        trained = self._trained()
        reached = any(param.grad is not None for param in trained)
        if self._has_signal:
            reached = any(map(_has_gradient, trained))
        if not reached:
            raise self._none_reached(parameters, trained)
        self._warn_of_parts(parameters, trained)

    def _none_reached(self, parameters: Parameters, trained: list[torch.Tensor]) -> RunError:
        names = {param: name for name, param in parameters.items()}
        first = names.get(trained[0], "a tensor that is not in the model")
        others = [name for param, name in names.items() if _has_gradient(param)]
        reaches = f"; it reaches {others[0]}, which the optimizer does not have" if others else ""
        return RunError(
            f"nothing is trained: the loss has a gradient, and none reaches the {len(trained)} parameters of the "
            f"optimizer (the first is {first}){reaches}. The forward pass has to use what is trained: activate that "
            "adapter (model.set_adapter(NAME)), unmerge it, or make the optimizer of the model's own parameters."
        )

    def _warn_of_parts(self, parameters: Parameters, trained: list[torch.Tensor]) -> None:
        """Warn of gradients outside the optimizer and, at the first signal, of its parameters without one."""
        known = set(trained)
        outside = []
        unused = []
        for name, param in parameters.items():
            if param not in known and param.grad is not None:
                outside.append(name)
            if param in known and param.requires_grad and param.grad is None:
                unused.append(name)
        if outside:
            self._warn(
                "outside",
                f"{len(outside)} parameters get gradients, which count in the gradient norm, and the optimizer does "
                f"not have them ({outside[0]}): they are not trained. Give them to the optimizer, or freeze them.",
            )
        if unused and self._has_signal:
            self._warn(
                "unused",
                f"{len(unused)} of {len(trained)} parameters of the optimizer get no gradient, because the forward "
                f"pass does not use them ({unused[0]}): they are not trained.",
            )

    def _warn(self, kind: str, line: str) -> None:
        if kind not in self._said and self.accelerator.is_main_process:
            logger.warning(line)
        self._said.add(kind)

    def on_pre_optimizer_step(self, step: int, norm: float | None, rate: float) -> None:
        """Store values that the update changes. Not at a small learning rate: the update may be rounded away."""
        self._before = []
        overflows = norm is not None and not math.isfinite(norm)  # fp16's scaler skips the step
        groups = self.optimizer.param_groups
        first = groups[0]["lr"]
        group = max(groups, key=lambda group: group["lr"])
        factor = rate / first if first else 1.0  # of the warm-up after a reset
        rate = group["lr"] * factor
        is_slow = rate < group.get("initial_lr", rate) / 2
        if not self._has_signal or rate == 0.0 or overflows or is_slow:
            return
        for param in self._trained():
            if param.grad is not None:
                places = _compared_places(param.detach(), param.grad)
                self._before.append((param, places, param.detach().reshape(-1)[places]))

    def on_step_end(self, step: int, parameters: Parameters) -> None:
        """Raises [`~trl_prorl.errors.RunError`]: the first compared update has changed no parameter."""
        before = self._before
        self._before = []
        if before and not self.accelerator.optimizer_step_was_skipped:
            self._compare(step, before, parameters)
        if self._compared > 1:
            self.is_due = (step + 1) % EVERY == 0

    def _compare(
        self,
        step: int,
        before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
        parameters: Parameters,
    ) -> None:
        changes = [param.detach().reshape(-1)[places] != old for param, places, old in before]
        changed = any(bool(change.any()) for change in changes)
        if not changed and not self._compared:
            dtype = str(before[0][0].dtype).removeprefix("torch.")
            raise RunError(
                f"nothing is trained: step {step} changed none of {len(before)} parameters, although gradients reach "
                f"them. If learning_rate is too small for weights in {dtype}, raise it, or {TRAIN_FP32}."
            )
        self._compared += 1
        params = [param for param, _, _ in before]
        shares = [change[2:].float().mean().item() if len(change) > 2 else 1.0 for change in changes]
        coarse = (torch.bfloat16, torch.float16)
        few = [param for param, share in zip(params, shares, strict=True) if share < FEW and param.dtype in coarse]
        if few:
            names = {param: name for name, param in parameters.items()}
            self._warn(
                "rounded",
                f"Step {step} changed less than {FEW:.0%} of the weights of {len(few)} of {len(params)} parameters "
                f"({names.get(few[0], 'a tensor that is not in the model')}): an update of learning_rate="
                f"{self.optimizer.param_groups[0]['lr']:g} is rounded away in "
                f"{str(few[0].dtype).removeprefix('torch.')}. Raise it, or {TRAIN_FP32}.",
            )

    def _trained(self) -> list[torch.Tensor]:
        return [param for group in self.optimizer.param_groups for param in group["params"]]


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.grad is not None and bool(tensor.grad.any())


def _compared_places(param: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """
    Return places of a flattened parameter: its largest gradient, its smallest value with a gradient (a small update is
    not rounded away there), and some evenly spaced.
    """
    grad = grad.reshape(-1)
    sizes = param.reshape(-1).abs().masked_fill(grad == 0, torch.inf)
    evenly = torch.arange(0, len(grad), max(1, len(grad) // SAMPLED), device=grad.device)
    return torch.cat([grad.abs().argmax().reshape(1), sizes.argmin().reshape(1), evenly[grad[evenly] != 0]])
