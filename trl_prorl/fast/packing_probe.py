"""
Does a model give the same values and gradients in packed rows as in padded rows? A trial of the model itself, with a
few tokens, see [`~trl_prorl.fast.trial`].

[`why_not`][`~trl_prorl.fast.packing.why_not`] has a list of known troubles, including those that only long rows
show. This module asks any other model for numbers: log-probabilities of the same tokens, packed and as TRL pads them.
The lengths of the prompts differ so much that a model to which absolute positions matter betrays itself. The yardstick
is rounding, measured in two ways: on rows of equal length, one at a time and then all together with another kernel of
the same attention, which changes nothing else; and by the rounding of positions as high as padding makes them.

A layer may compute a right value and still lose the gradient of a bias, so one gradient of every kind of trainable
tensor is compared, too. Tensors are of one kind if their names differ in numbers alone: the biases of `q_proj` in all
layers, for example. The two last of a kind are compared, because a backward pass to them costs little, and that of the
last but one goes through the whole last layer.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .trial import first_line, tokens


# The allowance, in multiples of the effect of rounding. Of 29 architectures with random weights, in fp32, under bf16
# autocast and in bf16, packing changes at most 1.5 times as much where it is right, and at least 5.7 times where it is
# wrong (HunYuan V1; in fp32 400,000 times).
FACTOR = 4.0
# For each prompt, its length and those of its completions.
GROUPS = [(3, (6, 2)), (61, (5, 1)), (8, (4, 6))]
# The rows of equal length.
ROWS = 6
PROMPT = 6
COMPLETION = 6
TF32_UNIT = 2.0**-10

# Of gradients: one prompt with two completions, each token of which the model computes once in a packed row.
SHORT_PROMPT = 3
SHORT_COMPLETIONS = (2, 1)
# The largest relative difference that rounding explains, in units of the last place of the dtype. Of eight families
# with random weights, LoRA and full, it is at most 14 in fp32, 11 under bf16 autocast and 12 in bf16. A gradient that
# is lost differs by 100 %, which is 128 of them in bf16.
UNITS = 64
# What is certainly no rounding in fp32, where all that was measured is below a hundredth of it.
LEAST = 1e-3

Score = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def probe_values(
    model: torch.nn.Module, vocabulary: int, padded: Score, packed: Score, autocast: torch.dtype | None = None
) -> str | None:
    """
    Compare a model's values in packed and in padded rows.

    Args:
        model (`torch.nn.Module`): The policy, on trial.
        vocabulary (`int`): Number of the model's tokens.
        padded, packed (`Callable`): Score completions by this model: `input_ids` and `attention_mask` of shape
            `(B, P + C)`, prompts padded on the left and completions on the right, and C, to log-probabilities
            `(B, C)`.
        autocast (`torch.dtype`, *optional*): The dtype in which both compute, if it is not that of the weights.

    Returns `str` or `None`: Why packing is not supported, in one sentence; `None` if it changes no value.
    """
    device = next(model.parameters()).device
    name = type(model).__name__
    ids, mask, keep = unequal_rows(vocabulary)
    ids = ids.to(device)
    mask = mask.to(device)
    scored = mask[:, -keep:] == 1
    with torch.no_grad():
        try:
            as_padded = padded(ids, mask, keep)[scored]
            changes = rms(packed(ids, mask, keep)[scored] - as_padded)
            rounding = _rounding(padded, vocabulary, device, coarsest_unit(model, autocast))
        except Exception as error:  # of any kind, because the model's own code runs
            return f"{name} fails on a packed row ({first_line(error)})."
    # A rotation's angle at the last position is rounded by half a unit in the last place of the product of position
    # and frequency, which models compute in fp32 whatever their dtype. Padding moves a row to such positions, and
    # log-probabilities change by a relative amount of about this size.
    rounding = max(rounding, ids.shape[1] * torch.finfo(torch.float32).eps / 2 * rms(as_padded))
    if changes <= FACTOR * rounding:
        return None
    return (
        f"log-probabilities of {name} in packed rows differ from those in padded rows by {changes:.2g} nats per "
        f"token, and rounding explains {rounding:.2g}."
    )


def coarsest_unit(model: torch.nn.Module, autocast: torch.dtype | None) -> float:
    """Return the spacing of the numbers near 1 in the coarsest form in which a model computes."""
    dtypes = {param.dtype for param in model.parameters() if param.is_floating_point()}
    if autocast is not None:
        dtypes.add(autocast)
    units = [torch.finfo(dtype).eps for dtype in dtypes]
    on_cuda = next(model.parameters()).device.type == "cuda"
    if on_cuda and torch.float32 in dtypes and torch.backends.cuda.matmul.fp32_precision == "tf32":
        units.append(TF32_UNIT)  # what a product reads of fp32
    return max(units)


def unequal_rows(vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Make token ids and mask of the batch `GROUPS` as TRL pads it, and the width of its completions."""
    start = max(prompt for prompt, _ in GROUPS)
    keep = max(max(lengths) for _, lengths in GROUPS)
    rows = sum(len(lengths) for _, lengths in GROUPS)
    ids = tokens(rows * (start + keep), vocabulary).view(rows, -1)
    mask = torch.zeros(rows, start + keep).long()
    row = 0
    for prompt, lengths in GROUPS:
        ids[row : row + len(lengths), :start] = ids[row, :start].clone()
        for length in lengths:
            mask[row, start - prompt : start + length] = 1
            row += 1
    return ids, mask, keep


def rms(values: torch.Tensor) -> float:
    return values.double().square().mean().sqrt().item()


def _rounding(padded: Score, vocabulary: int, device: torch.device, unit: float) -> float:
    """
    Measure the change in rows of equal length when they are computed together, in nats per token. `unit` is that of
    [`coarsest_unit`].
    """
    ids = tokens(ROWS * (PROMPT + COMPLETION), vocabulary).view(ROWS, -1).to(device)
    mask = torch.ones_like(ids)
    singles = zip(ids.split(1), mask.split(1), strict=True)
    alone = torch.cat([padded(one_ids, one_mask, COMPLETION) for one_ids, one_mask in singles])
    # A kernel that computes a row of a batch exactly like a single row shows no rounding (CPUs in bf16).
    with sdpa_kernel(SDPBackend.MATH):
        together = padded(ids, mask, COMPLETION)
    # At least half a unit in the last place of the log-probabilities themselves.
    return max(rms(together - alone), unit / 2 * rms(alone))


def probe_gradients(
    model: torch.nn.Module, vocabulary: int, padded: Score, packed: Score, autocast: torch.dtype | None = None
) -> str | None:
    """
    Compare the gradients of a model's trainable tensors in packed and in padded rows. Weights, `.grad` and
    `requires_grad` are afterwards what they were before.

    Args:
        model, vocabulary, padded, packed, autocast: As for [`probe_values`], with gradient.

    Returns `str` or `None`: Why packing is not supported, in one sentence, or `None` if the gradients agree.
    """
    params = last_of_each_kind(model)
    if not params:
        return None
    device = next(model.parameters()).device
    with torch.enable_grad(), fill_zeros(params):
        try:
            expected = compute_gradients(padded, params, vocabulary, device)
            found = compute_gradients(packed, params, vocabulary, device)
        except Exception as error:  # of any kind, because the model's own code runs
            return f"the gradients of {type(model).__name__} in a packed row cannot be tested ({first_line(error)})."
    return first_difference(found, expected, coarsest_unit(model, autocast))


def last_of_each_kind(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Find the two last trainable tensors of each kind, by name."""
    kinds: dict[str, list[str]] = {}
    trained = {name: param for name, param in model.named_parameters() if param.requires_grad}
    for name in trained:
        kind = re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
        kinds.setdefault(kind, []).append(name)
    last = {}
    for names in kinds.values():
        for name in names[-2:]:
            last[name] = trained[name]
    return last


@contextmanager
def fill_zeros(params: dict[str, torch.nn.Parameter]) -> Iterator[None]:
    """
    Make small numbers of tensors that are 0 everywhere while this lasts: the factor A of a new LoRA adapter gets no
    gradient while B is 0.
    """
    empty = [param for param in params.values() if not param.detach().any()]
    with torch.no_grad():
        for param in empty:
            waves = torch.arange(1, param.numel() + 1, device=param.device).sin().mul_(0.01)
            param.copy_(waves.view(param.shape))
    try:
        yield
    finally:
        with torch.no_grad():
            for param in empty:
                param.zero_()


def compute_gradients(
    score: Score, params: dict[str, torch.nn.Parameter], vocabulary: int, device: torch.device
) -> dict[str, torch.Tensor | None]:
    """Compute the gradients of a sum of log-probabilities in which every token has a weight of its own, by name."""
    width = SHORT_PROMPT + max(SHORT_COMPLETIONS)
    ids = tokens(len(SHORT_COMPLETIONS) * width, vocabulary).view(len(SHORT_COMPLETIONS), width)
    ids[:, :SHORT_PROMPT] = ids[0, :SHORT_PROMPT].clone()
    mask = torch.ones_like(ids)
    for row, length in enumerate(SHORT_COMPLETIONS):
        mask[row, SHORT_PROMPT + length :] = 0
    logps = score(ids.to(device), mask.to(device), max(SHORT_COMPLETIONS))
    weights = torch.linspace(1.0, 2.0, logps.numel(), device=logps.device).view(logps.shape)
    found = torch.autograd.grad((logps * weights).sum(), list(params.values()), allow_unused=True)
    return dict(zip(params, found, strict=True))


def first_difference(
    found: dict[str, torch.Tensor | None], expected: dict[str, torch.Tensor | None], unit: float
) -> str | None:
    """
    Describe the first gradient that is lost, or that differs from the expected one by more than rounding. `unit` is
    that of [`coarsest_unit`]. Returns a sentence, or `None`.
    """
    largest = max((size(gradient) for gradient in expected.values()), default=0.0)
    allowed = max(LEAST, UNITS * unit)
    for name, right in expected.items():
        mine = found[name]
        if size(right) == 0.0 and size(mine) == 0.0:
            continue
        if size(mine) == 0.0:
            return f"{name} gets no gradient from packed rows, but one from padded rows."
        if right is None:
            return f"{name} gets a gradient from packed rows, but none from padded rows."
        difference = size(mine - right)
        # A gradient much smaller than the others may be the rest of large parts, which rounding does not cancel.
        if not difference <= max(allowed * size(right), unit * largest):
            share = difference / max(size(right), torch.finfo(torch.float32).tiny)
            return (
                f"the gradient of {name} in packed rows differs from that in padded rows by {share:.2g} of its size, "
                f"and rounding explains {allowed:.2g}."
            )
    return None


def size(gradient: torch.Tensor | None) -> float:
    """Compute the norm of a gradient, 0 for one that is missing."""
    return 0.0 if gradient is None else gradient.float().norm().item()
