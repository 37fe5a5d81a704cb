"""What [`ProRLTrainer`] does about NaN and infinity: find the first, say where, stop or leave the step out."""

import math
from contextlib import contextmanager

import torch
from accelerate.utils import gather_object

from .errors import NonFiniteError
from .rollout.rewards import shown
from .run.finite import all_finite, first_nonfinite


class FiniteMixin:
    """Part of [`ProRLTrainer`]: checks of loss, gradients and weights."""

    def _look_for_nonfinite(self, loss: torch.Tensor, inputs, logps: torch.Tensor) -> None:
        """Note the first tensor of this micro-batch that is not finite; what follows from it is settled by all processes
        together, before the update."""
        if self._nonfinite is not None or all_finite([loss, *(total for _, total in self.meter.named_sums("kl_"))]):
            return
        mask = self._mask(inputs).bool()
        named = {
            "advantages (a reward is not finite)": inputs["advantages"],
            **{
                f"log-probabilities of {whose}": values.masked_fill(~mask, 0.0)
                for whose, values in (
                    ("the old policy", inputs.get("old_per_token_logps")),
                    ("the reference", inputs.get("ref_per_token_logps")),
                    ("the base", inputs.get("base_per_token_logps")),
                    ("the policy", logps),
                )
                if values is not None
            },
            **dict(self.meter.named_sums("kl_")),
        }
        self._note_nonfinite(first_nonfinite(named) or "loss", inputs)

    @contextmanager
    def _sampling_watched(self, inputs):
        try:
            yield
        except RuntimeError as error:
            if "probability tensor contains" not in str(error):  # what torch says of NaN while it samples
                raise
            prompts = list(dict.fromkeys(shown(example.get("prompt")) for example in inputs))
            found = {"tensor": "probabilities of the next token, while sampling,", "prompts": prompts}
            step = self.state.global_step + 1
            self._log_event(
                {"event": "nonfinite", "step_requested": step, "step_applied": step, "action": "stop", **found}
            )
            raise NonFiniteError(self._nonfinite_message(step, found)) from error

    def _note_nonfinite(self, tensor: str, inputs=None) -> None:
        prompts = []
        if inputs is not None:
            texts = self.processing_class.batch_decode(inputs["prompt_ids"], skip_special_tokens=True)
            prompts = list(dict.fromkeys(texts))
        self._nonfinite = {"tensor": tensor, "prompts": prompts}

    def _clip_grad_norm(self, model):
        self._look_at_gradients(model)
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model, grad_norm=None):
        if grad_norm is None:
            self._look_at_gradients(model)
        norm = super()._get_grad_norm(model, grad_norm)
        if self._nonfinite is None and self.accelerator.scaler is None and not math.isfinite(norm):
            self._note_nonfinite("gradient norm")
        self._settle_nonfinite()
        return norm

    def _look_at_gradients(self, model) -> None:
        """Before they are clipped, which spreads NaN from one to all. An AMP scaler sees to its own."""
        if self._nonfinite is not None or self.accelerator.scaler is not None:
            return
        gradients = {name: param.grad for name, param in model.named_parameters() if param.grad is not None}
        if not all_finite(gradients.values()):
            self._note_nonfinite(f"gradient of {first_nonfinite(gradients)}")

    def _settle_nonfinite(self) -> None:
        """Stop, or leave this update out, on every process if any has found something."""
        found, self._nonfinite = self._nonfinite, None
        if self.accelerator.num_processes > 1:
            found = next((theirs for theirs in gather_object([found]) if theirs is not None), None)
        if found is None:
            return
        step = self.state.global_step + 1
        self._log_event(
            {
                "event": "nonfinite",
                "step_requested": step,
                "step_applied": step,
                "action": self.args.nonfinite,
                **found,
            }
        )
        if self.args.nonfinite == "stop":
            raise NonFiniteError(self._nonfinite_message(step, found))
        self._nonfinite_skips += 1
        for group in self.optimizer.param_groups:
            for param in group["params"]:
                param.grad = None  # an optimizer passes over what has no gradient, weight decay included

    def _nonfinite_message(self, step: int, found: dict) -> str:
        prompts = ", ".join(shown(prompt) for prompt in found["prompts"][:3])
        more = f" and {len(found['prompts']) - 3} more" if len(found["prompts"]) > 3 else ""
        batch = f" in a batch with the prompts {prompts}{more}" if prompts else ""
        return (
            f"NaN or infinity at step {step}: {found['tensor']}{batch}. The run stops before the update; its last "
            "checkpoint is kept. Lower learning_rate or the coefficient of the KL, or set nonfinite: skip to leave such "
            "steps out."
        )

    def _check_weights(self) -> None:
        trained = {name: param for name, param in self.model.named_parameters() if param.requires_grad}
        if all_finite(trained.values()):
            return
        found = {"tensor": f"weights {first_nonfinite(trained)}", "prompts": []}
        step = self.state.global_step
        self._log_event(
            {"event": "nonfinite", "step_requested": step, "step_applied": step, "action": "stop", **found}
        )
        raise NonFiniteError(
            f"NaN or infinity at step {step}: {found['tensor']} after the update. The run stops; its last checkpoint is "
            "kept. Lower learning_rate."
        )
