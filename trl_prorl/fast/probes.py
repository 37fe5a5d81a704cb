"""
Comparisons of a model's own numbers on a few tokens: functions that return a sentence, or `None`. A trial of a family
(trial.py) and the tests of the listed families make them.

[`packing_obstacle`] compares log-probabilities of the same tokens, packed and as TRL pads them. The lengths of the
prompts differ so much that a model to which absolute positions matter betrays itself. The yardstick is rounding,
measured in two ways: on rows of equal length, one at a time and then all together with another kernel of the same
attention, which changes nothing else; and by the rounding of positions as high as padding makes them. A layer may
compute a right value and still lose the gradient of a bias, so one gradient of every kind of trainable tensor is
compared, too. Tensors are of one kind if their names differ in numbers alone: the biases of `q_proj` in all layers,
for example. The two last of a kind are compared, because a backward pass to them costs little, and that of the last
but one goes through the whole last layer.

[`try_samples`] compares a few greedy tokens and their log-probabilities with those of `generate`.
"""

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from peft import PeftModel
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from ..cli.model_defaults import plain_generation_config
from ..cli.prompts import pad_left
from ..errors import first_line
from .compact import cache_among, cache_obstacle, compact_sample, contiguous_states
from .lean_lora import lean_layers
from .packing import packed_logps
from .recording import RecordingError


# -------------------------------------------------------------------------------------------------- packed groups

# The allowance, in multiples of the effect of rounding. Of 29 architectures with random weights, in fp32, under bf16
# autocast and in bf16, packing changes at most 1.5 times as much where it is right, and at least 5.7 times where it is
# wrong (HunYuan V1; in fp32 400,000 times).
FACTOR = 4.0
# For each prompt, its length and those of its completions.
GROUPS = [(3, (6, 2)), (61, (5, 1)), (8, (4, 6))]
# The rows of equal length: six prompts with one completion each.
EQUAL_GROUPS = [(6, (6,))] * 6
TF32_UNIT = 2.0**-10

# Of gradients: one prompt with two completions, each token of which the model computes once in a packed row.
SHORT_GROUPS = [(3, (2, 1))]
# The largest relative difference that rounding explains, in units of the last place of the dtype. Of eight families
# with random weights, LoRA and full, it is at most 14 in fp32, 11 under bf16 autocast and 12 in bf16. A gradient that
# is lost differs by 100 %, which is 128 of them in bf16.
GRADIENT_UNITS = 64
# What is certainly no rounding in fp32, where all that was measured is below a hundredth of it.
MIN_ALLOWED = 1e-3

Score = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def packing_obstacle(
    model: torch.nn.Module,
    padded: Score,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
    dtype: torch.dtype | None = None,
) -> str | None:
    """
    Compare a model's values and gradients in packed and in padded rows, with lean LoRA layers.

    Args:
        model (`torch.nn.Module`): The model, of which every parameter that is trained has a gradient.
        padded (`Callable`): Scores completions by this model as TRL does: `input_ids` and `attention_mask` of shape
            `(B, P + C)`, prompts padded on the left and completions on the right, and C, to log-probabilities
            `(B, C)`.
        autocast (`Callable`, *optional*): Makes the context in which both compute.
        dtype (`torch.dtype`, *optional*): The dtype of that context, if it is not that of the weights.

    Returns `str` or `None`: Why packing is not supported, in one sentence; `None` if it changes only rounding.
    """

    def packed(*rows) -> torch.Tensor:
        with lean_layers(model):  # as in the run, if it packs
            return packed_logps(model, *rows, autocast=autocast)[0]

    try:
        unit = coarsest_unit(model, dtype)
        return compare_values(model, padded, packed, unit) or compare_gradients(model, padded, packed, unit)
    except Exception as error:  # of any kind, because the model's own code runs
        return f"{type(model).__name__} fails on a packed row ({first_line(error)})."


@torch.no_grad()
def compare_values(model: torch.nn.Module, padded: Score, packed: Score, unit: float) -> str | None:
    """Compare log-probabilities of unequal rows; `unit` is that of [`coarsest_unit`]."""
    ids, mask, keep = padded_batch(GROUPS, model)
    scored = mask[:, -keep:] == 1
    as_padded = padded(ids, mask, keep)[scored]
    changes = rms(packed(ids, mask, keep)[scored] - as_padded)
    # A rotation's angle at the last position is rounded by half a unit in the last place of the product of position
    # and frequency, which models compute in fp32 whatever their dtype. Padding moves a row to such positions, and
    # log-probabilities change by a relative amount of about this size.
    of_positions = ids.shape[1] * torch.finfo(torch.float32).eps / 2 * rms(as_padded)
    rounding = max(measure_rounding(model, padded, unit), of_positions)
    if changes <= FACTOR * rounding:
        return None
    return (
        f"log-probabilities of {type(model).__name__} in packed rows differ from those in padded rows by "
        f"{changes:.2g} nats per token, and rounding explains {rounding:.2g}."
    )


def measure_rounding(model: torch.nn.Module, padded: Score, unit: float) -> float:
    """Measure the change in rows of equal length when they are computed together, in nats per token."""
    ids, mask, keep = padded_batch(EQUAL_GROUPS, model)
    singles = zip(ids.split(1), mask.split(1), strict=True)
    alone = torch.cat([padded(one_ids, one_mask, keep) for one_ids, one_mask in singles])
    # A kernel that computes a row of a batch exactly like a single row shows no rounding (CPUs in bf16).
    with sdpa_kernel(SDPBackend.MATH):
        together = padded(ids, mask, keep)
    # At least half a unit in the last place of the log-probabilities themselves.
    return max(rms(together - alone), unit / 2 * rms(alone))


def mixed_dtype(accelerator) -> torch.dtype | None:
    """Return the dtype of the autocast of an [`~accelerate.Accelerator`]; `None` without one."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)


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


def padded_batch(
    groups: list[tuple[int, tuple[int, ...]]], model: torch.nn.Module
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """
    Make token ids and mask of a batch as TRL pads it, on the model's device, and the width of its completions.
    `groups` has for each prompt its length and those of its completions.
    """
    start = max(prompt for prompt, _ in groups)
    keep = max(max(lengths) for _, lengths in groups)
    rows = sum(len(lengths) for _, lengths in groups)
    ids = tokens(rows * (start + keep), vocabulary_of(model)).view(rows, -1)
    mask = torch.zeros_like(ids)
    row = 0
    for prompt, lengths in groups:
        ids[row : row + len(lengths), :start] = ids[row, :start].clone()
        for length in lengths:
            mask[row, start - prompt : start + length] = 1
            row += 1
    device = next(model.parameters()).device
    return ids.to(device), mask.to(device), keep


def tokens(number: int, vocabulary: int) -> torch.Tensor:
    """Spread ids over the vocabulary like multiples of the golden ratio over a circle: no two neighbours are alike."""
    places = torch.arange(1, number + 1, dtype=torch.float64) * ((math.sqrt(5) - 1) / 2)
    return (places.frac() * vocabulary).long().clamp(max=vocabulary - 1)


def vocabulary_of(model: torch.nn.Module) -> int:
    """Return the size of a model's vocabulary."""
    return model.get_input_embeddings().weight.shape[0]


def rms(values: torch.Tensor) -> float:
    return values.double().square().mean().sqrt().item()


def compare_gradients(model: torch.nn.Module, padded: Score, packed: Score, unit: float) -> str | None:
    """Compare gradients of every kind of trainable tensor; `.grad` stays what it was."""
    params = last_of_each_kind(model)
    if not params:
        return None
    expected = compute_gradients(padded, params, model)
    found = compute_gradients(packed, params, model)
    return first_difference(found, expected, unit)


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


@torch.enable_grad()
def compute_gradients(
    score: Score, params: dict[str, torch.nn.Parameter], model: torch.nn.Module
) -> dict[str, torch.Tensor | None]:
    """Compute the gradients of a sum of log-probabilities in which every token has a weight of its own, by name."""
    logps = score(*padded_batch(SHORT_GROUPS, model))
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
    allowed = max(MIN_ALLOWED, GRADIENT_UNITS * unit)
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


# --------------------------------------------------------------------------------------------- compact generation

PROMPTS = (3, 9, 8, 4)  # tokens of each; after the first completions have ended, two prompts are left
COPIES = (0, 0, 1, 2, 2, 3)
LONGEST = 8  # tokens of a completion
ENDING = 3  # tokens of those that end early
# By how many units in the last place of the largest logit a log-probability may differ. With two pretrained models in
# bf16 rounding is up to 0.8 of them, and a token at a wrong position or place 30 and more.
UNITS = 4
SMALLEST = 1e-3  # nats that may differ in any dtype


class SomeEnd(StoppingCriteria):
    """Ends the rows whose prompt's last token is in the first half of the vocabulary, after `ENDING` tokens."""

    def __init__(self, width: int, vocabulary: int):
        self.width = width
        self.vocabulary = vocabulary

    def __call__(self, input_ids, scores, **kwargs):
        ends = input_ids[:, self.width - 1] < self.vocabulary // 2
        return ends & (input_ids.shape[1] >= self.width + ENDING)


def try_samples(model: PreTrainedModel | PeftModel, replays: bool = False) -> str | None:
    """Return what [`compare_with_generate`] returns, or that it fails."""
    try:
        return compare_with_generate(model, replays)
    except RecordingError:  # after which the GPU may be unusable
        raise
    except Exception as error:  # of whatever kind: the model's own code runs
        return f"{type(model).__name__} fails during compact generation ({first_line(error)})."


@torch.no_grad()
def compare_with_generate(model: PreTrainedModel | PeftModel, replays: bool) -> str | None:
    """Compare greedy completions of compact sampling, and their log-probabilities, with those of `generate`."""
    name = type(model).__name__
    vocabulary = vocabulary_of(model)
    device = next(model.parameters()).device
    prompts = tokens(sum(PROMPTS), vocabulary).split(PROMPTS)
    ids, mask = (part.to(device) for part in pad_left([prompt.tolist() for prompt in prompts], 0))
    copies = torch.tensor(COPIES, device=device)
    stops = StoppingCriteriaList([SomeEnd(ids.shape[1], vocabulary)])
    settings = {"max_new_tokens": LONGEST, "do_sample": False, "pad_token_id": 0, "disable_compile": True}
    settings["eos_token_id"] = vocabulary  # which no token has, so that completions end as `lengths` says
    with plain_generation_config(model), contiguous_states(model):
        theirs = model.generate(
            input_ids=ids[copies],
            attention_mask=mask[copies],
            generation_config=GenerationConfig(**settings, return_dict_in_generate=True, output_scores=True),
            stopping_criteria=stops,
        )
        obstacle = cache_obstacle(cache_among(theirs))
        if obstacle is not None:
            return f"{name}: {obstacle}"
        mine = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=GenerationConfig(**settings),
            stopping_criteria=stops,
            custom_generate=compact_sample,
            copies=copies,
            logps_at=1.0,
            replays=replays,
            trial=True,
        )
    if replays and not mine.recorded:
        return f"attention or cache of {name} is not plain."
    ends = ids[copies, -1] < vocabulary // 2
    lengths = torch.where(ends, ENDING, LONGEST)
    scores = torch.stack(theirs.scores, dim=1).float()
    # Layers of integers compute in bf16 or fp16, whatever the others' dtype.
    is_quantised = not all(param.is_floating_point() for param in model.parameters())
    unit = coarsest_unit(model, torch.bfloat16 if is_quantised else None)
    samples = (mine.ids[:, ids.shape[1] :], theirs.sequences[:, ids.shape[1] :])
    found = largest_difference(*samples, mine.logps, scores, lengths, unit)
    return None if found is None else f"samples of {name} differ from those of generate {found}."


def largest_difference(
    mine: torch.Tensor,
    theirs: torch.Tensor,
    logps: torch.Tensor,
    scores: torch.Tensor,
    lengths: torch.Tensor,
    unit: float,
) -> str | None:
    """
    Find the largest difference between the log-probabilities of two greedy completions, up to the first token in which
    they differ: that one must be as probable as the other.

    Args:
        mine, theirs (`torch.LongTensor` of shape `(R, T)`): Completions of compact sampling and of `generate`.
        logps (`torch.Tensor` of shape `(R, T)`): Log-probabilities of mine.
        scores (`torch.Tensor` of shape `(R, T, V)`): Logits of theirs.
        lengths (`torch.LongTensor` of shape `(R,)`): Tokens of each completion.
        unit (`float`): That of [`coarsest_unit`].

    Returns:
        `str` or `None`: The difference, and the token, where rounding does not explain it.
    """
    if mine.shape != theirs.shape:
        return "in their number of tokens"
    expected = scores.log_softmax(-1)
    of_mine = expected.gather(2, mine[..., None])[..., 0]
    of_theirs = expected.gather(2, theirs[..., None])[..., 0]
    differs = torch.maximum((logps - of_mine).abs(), (of_theirs - of_mine).abs())
    allowed = (UNITS * unit * scores.abs().amax(-1)).clamp(min=SMALLEST)
    is_other = (mine != theirs).long()
    before_second = is_other.cumsum(1) - is_other == 0  # the first other token, and all before it
    compared = before_second & (torch.arange(mine.shape[1], device=mine.device) < lengths[:, None])
    wrong = compared & ~(differs <= allowed)
    if not wrong.any():
        return None
    place = int(wrong.any(dim=0).long().argmax())
    return f"by {differs[:, place][wrong[:, place]].max().item():.2g} nats in token {place + 1}"
