"""
Does a model give the same values in packed rows as in padded rows? A test on the model itself, with a few tokens.

[`why_not`][`~trl_prorl.scoring.packing.why_not`] has a list of known troubles, including those that only long rows
show. This module asks any other model for numbers: log-probabilities of the same tokens, packed and as TRL pads them.
The lengths of the prompts differ so much that a model to which absolute positions matter betrays itself. The yardstick
is rounding, measured in two ways: on rows of equal length, one at a time and then all together with another kernel of
the same attention, which changes nothing else; and by the rounding of positions as high as padding makes them.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


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

Score = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def probe(
    model: torch.nn.Module, vocabulary: int, padded: Score, packed: Score, autocast: torch.dtype | None = None
) -> str | None:
    """
    Compare a model's values in packed and in padded rows. The model is in evaluation mode during the test; it is left
    unchanged, and no random number is drawn.

    Args:
        model (`torch.nn.Module`): The policy, whole and on its devices.
        vocabulary (`int`): Number of the model's tokens.
        padded, packed (`Callable`): Score completions by this model: `input_ids` and `attention_mask` of shape
            `(B, P + C)`, prompts padded on the left and completions on the right, and C, to log-probabilities
            `(B, C)`.
        autocast (`torch.dtype`, *optional*): The dtype in which both compute, if it is not that of the weights.

    Returns `str` or `None`: Why packing is refused, in one sentence; `None` if it changes no value.
    """
    device = next(model.parameters()).device
    name = type(model).__name__
    with torch.no_grad(), torch.random.fork_rng(devices=on_gpu(device)), evaluation_mode(model):
        try:
            ids, mask, keep = unequal_rows(vocabulary)
            ids = ids.to(device)
            mask = mask.to(device)
            scored = mask[:, -keep:] == 1
            as_padded = padded(ids, mask, keep)[scored]
            changes = rms(packed(ids, mask, keep)[scored] - as_padded)
            rounding = _rounding(padded, vocabulary, device, coarsest_unit(model, autocast))
            # A rotation's angle at the last position is rounded by half a unit in the last place of the product of
            # position and frequency, which models compute in fp32 whatever their dtype. Padding moves a row to such
            # positions, and log-probabilities change by a relative amount of about this size.
            rounding = max(rounding, ids.shape[1] * torch.finfo(torch.float32).eps / 2 * rms(as_padded))
        except Exception as error:  # of any kind, because the model's own code runs
            return f"{name} fails on a packed row ({first_line(error)})."
    if changes <= FACTOR * rounding:
        return None
    return (
        f"log-probabilities of {name} in packed rows differ from those in padded rows by {changes:.2g} nats a token, "
        f"and rounding explains {rounding:.2g}."
    )


def first_line(error: Exception) -> str:
    """Return the kind of an error and the beginning of its message, without a full stop."""
    lines = str(error).strip().splitlines()
    line = lines[0][:160].rstrip(".") if lines else ""
    return f"{type(error).__name__}: {line}"


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


def tokens(number: int, vocabulary: int) -> torch.Tensor:
    """Spread ids over the vocabulary like multiples of the golden ratio over a circle: no two neighbours are alike."""
    places = torch.arange(1, number + 1, dtype=torch.float64) * ((math.sqrt(5) - 1) / 2)
    return (places.frac() * vocabulary).long().clamp(max=vocabulary - 1)


def rms(values: torch.Tensor) -> float:
    return values.double().square().mean().sqrt().item()


def _rounding(padded: Score, vocabulary: int, device: torch.device, unit: float) -> float:
    """
    Measure the change in rows of equal length when they are computed together, in nats a token. `unit` is that of
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


def on_gpu(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and restore each module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
