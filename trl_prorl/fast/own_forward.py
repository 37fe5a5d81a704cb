"""Log-probabilities of a policy's own forward, and the bound on other scores' rounding."""

import inspect
from collections.abc import Callable

import torch
from peft import PeftModel

from ..upstream.modules import unwrap_adapter


# Bound on the mean difference of log-probabilities, in nats per token: in fp32, and in units of the last place of a
# coarser dtype. A deep bf16 model scored in one batch is 0.03 to 0.05 (4 to 6 units) off its token-by-token values; a
# token at a wrong position is off by tenths of a nat and more.
EXACT = 1e-3
UNITS = 12
TF32_UNIT = 2.0**-10


def rows_padded_right(
    prompt: list[int], completions: list[list[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make ids and mask `(R, P + T)` of rows of one prompt."""
    width = max(map(len, completions))
    ids = [[*prompt, *completion, *[0] * (width - len(completion))] for completion in completions]
    mask = [[1] * (len(prompt) + len(completion)) + [0] * (width - len(completion)) for completion in completions]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def plain_model(policy: torch.nn.Module) -> Callable:
    """Return the forward without Accelerate's autocast: rounding in the head would hide a difference."""
    if isinstance(policy, PeftModel):
        return policy.get_base_model()
    return getattr(policy, "_original_forward", policy)


def own_logps(
    policy: torch.nn.Module, prompt: list[int], completions: list[list[int]], temperature: float
) -> list[torch.Tensor]:
    """Return log-probabilities `(T,)` of completions by the policy's plain forward, in fp32."""
    device = next(policy.parameters()).device
    ids, mask = rows_padded_right(prompt, completions, device)
    width = ids.shape[1] - len(prompt)
    base = unwrap_adapter(policy)
    takes_few = "logits_to_keep" in inspect.signature(type(base).forward).parameters
    few = {"logits_to_keep": width + 1} if takes_few else {}
    logits = plain_model(policy)(input_ids=ids, attention_mask=mask, use_cache=False, **few).logits
    logps = (logits[:, -width - 1 : -1].float() / temperature).log_softmax(-1)
    labels = ids[:, len(prompt) :, None].to(logps.device)
    logps = logps.gather(-1, labels)[..., 0]
    return [row[: len(completion)] for row, completion in zip(logps, completions, strict=True)]


def mean_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return (found.float() - expected.to(found.device).float()).abs().mean().item()


def allowed(policy: torch.nn.Module, autocast: torch.dtype | None) -> float:
    """Return the bound on rounding, in nats per token."""
    is_quantised = not all(param.is_floating_point() for param in policy.parameters())
    unit = coarsest_unit(policy, torch.bfloat16 if is_quantised else autocast)
    return max(EXACT, UNITS * unit)


def coarsest_unit(model: torch.nn.Module, autocast: torch.dtype | None) -> float:
    """Return the spacing near 1 in the coarsest dtype of a model's products."""
    dtypes = {param.dtype for param in model.parameters() if param.is_floating_point()}
    if autocast is not None:
        dtypes.add(autocast)
    units = [torch.finfo(dtype).eps for dtype in dtypes]
    on_cuda = next(model.parameters()).device.type == "cuda"
    if on_cuda and torch.float32 in dtypes and torch.backends.cuda.matmul.fp32_precision == "tf32":
        units.append(TF32_UNIT)  # what a product reads of fp32
    return max(units)


def mixed_dtype(accelerator) -> torch.dtype | None:
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
