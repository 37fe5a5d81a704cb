"""
What a run does about NaN and infinity: find the first, say where it is, and stop before the update or leave it out.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object

from ..errors import NonFiniteError
from ..objective.anchors import completion_mask
from ..parts import Part
from ..rollout.rewards import shown
from .finite import all_finite, first_nonfinite


# In torch's messages for NaN while it samples. A GPU reports the assertion alone, and computes no more afterwards.
NO_DISTRIBUTION = ("probability tensor contains", "device-side assert")
# Names of the tensors, in the order in which one is computed from another.
WHOSE = {
    "old_per_token_logps": "the old policy",
    "ref_per_token_logps": "the reference",
    "base_per_token_logps": "the base",
}


class FiniteGuard(Part):
    """
    Looks at loss, gradients and weights.

    Args:
        action (`str`):
            `nonfinite`: `"stop"` or `"skip"`.
        accelerator ([`~accelerate.Accelerator`]):
            Processes settle together; an AMP scaler looks at the gradients itself.
        log_event (`Callable`):
            Takes an event of the record.
        decode (`Callable`):
            Texts of token ids of shape `(B, P)`.
    """

    def __init__(
        self, action: str, accelerator, log_event: Callable[[dict], None], decode: Callable[[torch.Tensor], list[str]]
    ):
        self.action, self.accelerator, self.log_event, self.decode = action, accelerator, log_event, decode
        self.begin()

    def begin(self) -> None:
        self._found: dict[str, Any] | None = None  # in this step
        self.skips = 0

    def state_dict(self) -> dict[str, Any]:
        return {"skips": self.skips}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self.skips = state["skips"]

    @contextmanager
    def sampling(self, examples: list[dict], step: int) -> Iterator[None]:
        """The generation for optimizer step `step`, in which torch refuses to sample from NaN."""
        try:
            yield
        except RuntimeError as error:
            if not any(words in str(error) for words in NO_DISTRIBUTION):
                raise
            prompts = list(dict.fromkeys(shown(example.get("prompt")) for example in examples))
            unsure = "" if NO_DISTRIBUTION[0] in str(error) else " (or an index: the GPU reports an assertion alone)"
            found = {"tensor": f"probabilities of the next token{unsure}, while sampling,", "prompts": prompts}
            self._log(step, "stop", found)
            raise NonFiniteError(self._message(step, found)) from error

    def look_at_loss(self, loss, batch, logps, sums: list[tuple[str, torch.Tensor]]) -> None:
        """
        Note the first tensor of a micro-batch that is not finite; all processes settle the matter together before the
        update.

        Args:
            loss (`torch.Tensor`):
                A scalar.
            batch (`Mapping[str, torch.Tensor]`):
                The micro-batch.
            logps (`torch.Tensor` of shape `(B, T)`):
                The policy's.
            sums (`list[tuple[str, torch.Tensor]]`):
                Sums over tokens of the KLs of the step, by name.
        """
        if self._found is not None or all_finite([loss, *(total for _, total in sums)]):
            return
        mask = completion_mask(batch).bool()
        scored = {whose: batch.get(key) for key, whose in WHOSE.items()} | {"the policy": logps}
        named = {"advantages (a reward is not finite)": batch["advantages"]}
        named |= {
            f"log-probabilities of {whose}": values.masked_fill(~mask, 0.0)
            for whose, values in scored.items()
            if values is not None
        }
        self._note(first_nonfinite(named | dict(sums)) or "loss", batch)

    def look_at_gradients(self, model) -> None:
        """Look at the gradients before they are clipped, which spreads NaN from one to all."""
        if self._found is not None or self.accelerator.scaler is not None:
            return
        gradients = {name: param.grad for name, param in model.named_parameters() if param.grad is not None}
        if not all_finite(gradients.values()):
            self._note(f"gradient of {first_nonfinite(gradients)}")

    def settle(self, norm: float, step: int, optimizer) -> None:
        """
        Stop before update `step`, or leave it out, on every process if any of them has found something.

        Raises:
            [`~trl_prorl.errors.NonFiniteError`]: naming the tensor, the step and the prompts.
        """
        if self._found is None and self.accelerator.scaler is None and not math.isfinite(norm):
            self._note("gradient norm")
        found, self._found = self._found, None
        if self.accelerator.num_processes > 1:
            found = next((theirs for theirs in gather_object([found]) if theirs is not None), None)
        if found is None:
            return
        self._log(step, self.action, found)
        if self.action == "stop":
            raise NonFiniteError(self._message(step, found))
        self.skips += 1
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = None  # an optimizer passes over a parameter without gradient, weight decay included

    def check_weights(self, model, step: int) -> None:
        """
        Look at the weights after update `step`.

        Raises:
            [`~trl_prorl.errors.NonFiniteError`]: a trained weight is not finite.
        """
        trained = {name: param for name, param in model.named_parameters() if param.requires_grad}
        if all_finite(trained.values()):
            return
        found = {"tensor": f"weights {first_nonfinite(trained)}", "prompts": []}
        self._log(step, "stop", found)
        raise NonFiniteError(
            f"NaN or infinity at step {step}: {found['tensor']} after the update. The run stops; its last checkpoint "
            "is kept. Lower learning_rate."
        )

    def _note(self, tensor: str, batch=None) -> None:
        texts = self.decode(batch["prompt_ids"]) if batch is not None else []
        self._found = {"tensor": tensor, "prompts": list(dict.fromkeys(texts))}

    def _log(self, step: int, action: str, found: dict) -> None:
        self.log_event({"event": "nonfinite", "step_requested": step, "step_applied": step, "action": action, **found})

    @staticmethod
    def _message(step: int, found: dict) -> str:
        prompts = ", ".join(shown(prompt) for prompt in found["prompts"][:3])
        more = f" and {len(found['prompts']) - 3} more" if len(found["prompts"]) > 3 else ""
        batch = f" in a batch with the prompts {prompts}{more}" if prompts else ""
        return (
            f"NaN or infinity at step {step}: {found['tensor']}{batch}. The run stops before the update; its last "
            "checkpoint is kept. Lower learning_rate or the coefficient of the KL, or set nonfinite: skip to leave "
            "such steps out."
        )
