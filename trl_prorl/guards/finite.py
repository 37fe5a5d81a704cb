"""NaN and infinity: find the first one, and stop before the update or skip it."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..anchors import ANCHORS
from ..errors import NonFiniteError
from ..kl import Batch, completion_mask, zero_masked
from ..parts import Event, MicroBatch, Part, Row
from ..run.folder import first_of_processes
from ..run.log_files import NONFINITE
from ..text import quoted
from ..upstream.modules import Parameters


# In torch's messages for NaN while sampling. A GPU reports only the assertion, and computes nothing afterwards.
NO_DISTRIBUTION = ("probability tensor contains", "device-side assert")


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


def first_nonfinite(named: Mapping[str, torch.Tensor | None]) -> str | None:
    for name, tensor in named.items():
        if tensor is not None and not all_finite([tensor]):
            return name
    return None


class PendingCheck(NamedTuple):
    """
    A micro-batch on the device: `logps` `(B, T)`, the sums of its KLs, and the [`largest_value`] of loss and sums.
    """

    largest: torch.Tensor
    batch: Batch
    logps: torch.Tensor
    kl_sums: dict[str, torch.Tensor]


class FiniteGuard(Part):
    """
    Checks loss, gradients and weights, and acts by `nonfinite`, on all processes alike. An AMP scaler checks the
    gradients itself.
    """

    remembers = ("skips",)

    def __init__(self, args, accelerator, meter, recorder, decoder):
        self.action = args.nonfinite
        self.bounds_kl = args.kl_clamp is not None
        self.accelerator = accelerator
        self.meter = meter
        self.recorder = recorder
        self.decoder = decoder
        self.optimizer = None
        self._found: dict[str, Any] | None = None
        self._skipped: Event | None = None
        self._pending: list[PendingCheck] = []
        self.skips = 0

    def optimizer_made(self, optimizer) -> None:
        self.optimizer = optimizer

    @contextmanager
    def sampling(self, examples: list[dict], step: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not any(words in str(error) for words in NO_DISTRIBUTION):
                raise
            prompts = list(dict.fromkeys(quoted(example.get("prompt")) for example in examples))
            unsure = "" if NO_DISTRIBUTION[0] in str(error) else " (or an index error: the GPU does not tell which)"
            finding = {"tensor": f"next-token probabilities{unsure} while sampling,", "prompts": prompts}
            raise self._stop(step, finding) from error

    def on_loss(self, micro_batch: MicroBatch) -> None:
        """One transfer from the device per step covers all micro-batches and the gradients."""
        # `kl_clamp` bounds an overflowing KL; the loss still shows a log-probability that is not finite.
        kl_sums = {} if self.bounds_kl else self.meter.newest_sums("kl_")
        largest = largest_value([micro_batch.loss, *kl_sums.values()])
        self._pending.append(PendingCheck(largest, micro_batch.batch, micro_batch.logps, kl_sums))

    def _name_first(self, unread: PendingCheck) -> str:
        batch = unread.batch
        mask = completion_mask(batch)
        # In the order of computation.
        tensors = {"advantages (a reward is NaN or infinite)": batch["advantages"]}
        for anchor in ANCHORS:
            if anchor.column in batch:
                tensors[f"log-probabilities of {anchor.words}"] = zero_masked(batch[anchor.column], mask)
        tensors["log-probabilities of the policy"] = zero_masked(unread.logps, mask)
        tensors.update(unread.kl_sums)
        return first_nonfinite(tensors) or "loss"

    def on_backward(self, parameters: Parameters) -> None:
        """Find the first tensor of a step that is not finite, before clipping spreads NaN to all gradients."""
        unread_before = self._pending
        self._pending = []
        largest = [unread.largest for unread in unread_before]
        gradients = {}
        if self.accelerator.scaler is None:
            gradients = {name: param.grad for name, param in parameters.items() if param.grad is not None}
        if gradients:
            largest.append(largest_value(gradients.values()))
        are_finite = [math.isfinite(value) for value in torch.stack(largest).tolist()]
        for unread, is_finite in zip(unread_before, are_finite, strict=False):
            if not is_finite:
                self._note(self._name_first(unread), unread.batch)
                return
        if gradients and not are_finite[-1]:
            self._note(f"gradient of {first_nonfinite(gradients)}")

    def on_pre_optimizer_step(self, step: int, norm: float | None, rate: float) -> None:
        """Stop before update `step`, or skip it. Raises [`~trl_prorl.errors.NonFiniteError`]."""
        is_known = norm is not None and self.accelerator.scaler is None
        if self._found is None and is_known and not math.isfinite(norm):
            self._note("gradient norm")
        finding = self._found
        self._found = None
        if self.accelerator.num_processes > 1:
            finding = first_of_processes(finding)
        if finding is None:
            return
        if self.action == "stop":
            raise self._stop(step, finding)
        self._skipped = self._make_event(step, "skip", finding)
        self.skips += 1
        self.optimizer.zero_grad()  # no update without gradient, not even weight decay

    def on_step_end(self, step: int, parameters: Parameters) -> None:
        """Raises [`~trl_prorl.errors.NonFiniteError`]: a trained weight is not finite."""
        with self.meter.timer.stage("meter"):
            trained = {name: param for name, param in parameters.items() if param.requires_grad}
            if all_finite(trained.values()):
                return
        finding = {"tensor": f"weights {first_nonfinite(trained)}", "prompts": []}
        self.recorder.on_event(self._make_event(step, "stop", finding))
        raise NonFiniteError(
            f"NaN or infinity at step {step}: {finding['tensor']} after the update. The run stops and keeps its last "
            "checkpoint. Lower learning_rate."
        )

    def _note(self, tensor: str, batch=None) -> None:
        ids = batch["prompt_ids"] if batch is not None else []
        texts = self.decoder.batch_decode(ids, skip_special_tokens=True)
        self._found = {"tensor": tensor, "prompts": list(dict.fromkeys(texts))}

    def on_row(self, step: int, row: Row) -> Event | None:
        event = self._skipped
        self._skipped = None
        return event

    @staticmethod
    def _make_event(step: int, action: str, finding: dict) -> Event:
        return {"event": NONFINITE, "step_requested": step, "step_applied": step, "action": action, **finding}

    def _stop(self, step: int, finding: dict) -> NonFiniteError:
        self.recorder.on_event(self._make_event(step, "stop", finding))
        prompts = ", ".join(quoted(prompt) for prompt in finding["prompts"][:3])
        more = f" and {len(finding['prompts']) - 3} more" if len(finding["prompts"]) > 3 else ""
        batch = f" in a batch with the prompts {prompts}{more}" if prompts else ""
        return NonFiniteError(
            f"NaN or infinity at step {step}: {finding['tensor']}{batch}. The run stops before this update and keeps "
            "its last checkpoint. Lower learning_rate or the KL coefficient, or set nonfinite: skip to skip such "
            "updates."
        )
