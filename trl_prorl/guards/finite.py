"""NaN and infinity: find the first one, and stop before the update or skip it."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from ..anchors import ANCHORS
from ..errors import NonFiniteError
from ..kl import Batch, completion_mask, kl_values, zero_masked
from ..parts import Event, MicroBatch, Part, Row
from ..run.folder import first_of_processes
from ..run.log_files import NONFINITE
from ..text import quoted
from ..upstream.modules import Parameters


# Beginnings of torch's messages for NaN while sampling. A GPU reports only the assertion, and computes nothing
# afterwards.
SAMPLING_ERRORS = ("probability tensor contains", "device-side assert")
PROBABILITIES = "next-token probabilities while sampling (or, on a GPU, an index error)"


@torch.no_grad()
def largest_value(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the largest absolute value, a scalar in double precision on the device."""
    # Of a sharded parameter, this process's part.
    local = [getattr(tensor, "_local_tensor", tensor).detach() for tensor in tensors]
    local = [tensor for tensor in local if tensor.is_floating_point() and tensor.numel()]
    # Unlike a sum of squares, the largest absolute value cannot overflow, and NaN wins every comparison.
    return torch.nn.utils.get_total_norm(local, norm_type=math.inf).double()


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    return math.isfinite(largest_value(tensors))


def first_nonfinite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Return the name of the first tensor with NaN or infinity."""
    return next((name for name, tensor in tensors.items() if not all_finite([tensor])), None)


class FiniteGuard(Part):
    """
    Checks loss, gradients and weights, and acts by `nonfinite`, on all processes alike. An AMP scaler checks the
    gradients itself.
    """

    remembers = ("skips",)

    def __init__(self, args, accelerator, meter, recorder, decoder):
        self.action = args.nonfinite
        self.accelerator = accelerator
        self.meter = meter
        self.recorder = recorder
        self.decoder = decoder
        self.optimizer = None
        self.skips = 0
        # Of the step's micro-batches: loss, batch and log-probabilities.
        self._micro_batches: list[tuple[torch.Tensor, Batch, torch.Tensor]] = []
        self._finding: tuple[str, list[str]] | None = None  # tensor and prompts
        self._skipped: Event | None = None

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer

    @contextmanager
    def sampling(self, examples: list[dict], step: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not any(message in str(error) for message in SAMPLING_ERRORS):
                raise
            prompts = [quoted(example.get("prompt")) for example in examples]
            raise self._stop(step, PROBABILITIES, list(dict.fromkeys(prompts))) from error

    def on_loss(self, micro_batch: MicroBatch) -> None:
        """One transfer from the device per step covers all micro-batches and the gradients."""
        self._micro_batches.append((micro_batch.loss.detach().double(), micro_batch.batch, micro_batch.logps))

    def on_backward(self, parameters: Parameters) -> None:
        """Find the first tensor of a step that is not finite, before clipping spreads NaN to all gradients."""
        micro_batches = self._micro_batches
        self._micro_batches = []
        largest = [loss for loss, _, _ in micro_batches]
        gradients = {}
        if self.accelerator.scaler is None:
            gradients = {name: param.grad for name, param in parameters.items() if param.grad is not None}
        if gradients:
            largest.append(largest_value(gradients.values()))
        are_finite = torch.stack(largest).isfinite().tolist()
        for is_finite, (_, batch, logps) in zip(are_finite, micro_batches, strict=False):
            if not is_finite:
                tensor = first_nonfinite(loss_inputs(batch, logps)) or "loss"
                prompts = self.decoder.batch_decode(batch["prompt_ids"], skip_special_tokens=True)
                self._finding = (tensor, list(dict.fromkeys(prompts)))
                return
        if not all(are_finite):
            self._finding = (f"gradient of {first_nonfinite(gradients)}", [])

    def on_pre_optimizer_step(self, step: int, norm: float | None, rate: float) -> None:
        """Stop before update `step`, or skip it. Raises [`~trl_prorl.errors.NonFiniteError`]."""
        finding = self._finding
        self._finding = None
        if self.accelerator.num_processes > 1:
            finding = first_of_processes(finding)
        if finding is None:
            return
        if self.action == "stop":
            raise self._stop(step, *finding)
        self._skipped = make_nonfinite_event(step, "skip", *finding)
        self.skips += 1
        self.optimizer.zero_grad()  # no update without gradient, not even weight decay

    def on_step_end(self, step: int, parameters: Parameters) -> None:
        """Raises [`~trl_prorl.errors.NonFiniteError`]: a trained weight is not finite."""
        with self.meter.timer.stage("meter"):
            trained = {name: param for name, param in parameters.items() if param.requires_grad}
            if all_finite(trained.values()):
                return
        raise self._stop(step, f"weights {first_nonfinite(trained)}", [])

    def on_row(self, step: int, row: Row) -> Event | None:
        event = self._skipped
        self._skipped = None
        return event

    def _stop(self, step: int, tensor: str, prompts: list[str]) -> NonFiniteError:
        self.recorder.on_event(make_nonfinite_event(step, "stop", tensor, prompts))
        examples = ", ".join(map(quoted, prompts[:3]))
        batch = f" in a batch with the prompts {examples}" if prompts else ""
        return NonFiniteError(
            f"NaN or infinity at step {step}: {tensor}{batch}. The run stops and keeps its last checkpoint. Lower "
            "learning_rate or the KL coefficient, or set nonfinite: skip to skip updates whose loss or gradient is "
            "not finite."
        )


def loss_inputs(batch: Batch, logps: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what a loss is computed from, in the order of computation, without masked tokens."""
    mask = completion_mask(batch)
    anchors = [anchor for anchor in ANCHORS if anchor.column in batch]
    tensors = {"advantages (a reward is NaN or infinite)": batch["advantages"]}
    for anchor in anchors:
        tensors[f"log-probabilities of {anchor.words}"] = zero_masked(batch[anchor.column], mask)
    tensors["log-probabilities of the policy"] = zero_masked(logps, mask)
    for anchor in anchors:
        tensors[anchor.kl_key] = zero_masked(kl_values(logps, batch[anchor.column]), mask)
    return tensors


def make_nonfinite_event(step: int, action: str, tensor: str, prompts: list[str]) -> Event:
    return {
        "event": NONFINITE,
        "step_requested": step,
        "step_applied": step,
        "action": action,
        "tensor": tensor,
        "prompts": prompts,
    }
