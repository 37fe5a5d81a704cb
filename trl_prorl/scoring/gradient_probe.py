"""
Does a model get the same gradients from packed rows as from padded rows? A test on the model itself, with few tokens.

[`packing_probe`][`~trl_prorl.scoring.packing_probe`] compares values. A layer may compute a right value and still lose
the gradient of a bias, so this module compares one gradient of every kind of trainable tensor. Tensors are of one kind
if their names differ in numbers alone: the biases of `q_proj` in all layers, for example. The two last of a kind are
compared, because a backward pass to them costs little, and that of the last but one goes through the whole last layer.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .packing_probe import Score, coarsest_unit, evaluation_mode, first_line, on_gpu, tokens


# One prompt with two completions, each token of which the model computes once in a packed row.
PROMPT = 3
COMPLETIONS = (2, 1)
# The largest relative difference that rounding explains, in units of the last place of the dtype. Of eight families
# with random weights, LoRA and full, it is at most 14 in fp32, 11 under bf16 autocast and 12 in bf16. A gradient that
# is lost differs by 100 %, which is 128 of them in bf16.
UNITS = 64
# What is certainly no rounding in fp32, where all that was measured is below a hundredth of it.
LEAST = 1e-3


def probe_gradients(
    model: torch.nn.Module, vocabulary: int, padded: Score, packed: Score, autocast: torch.dtype | None = None
) -> str | None:
    """
    Compare the gradients of a model's trainable tensors in packed and in padded rows. Weights, `.grad`,
    `requires_grad`, modes and random states are afterwards what they were before.

    Args:
        model (`torch.nn.Module`): The policy, whole and on its devices.
        vocabulary (`int`): Number of the model's tokens.
        padded, packed (`Callable`): Log-probabilities with gradient, as in
            [`~trl_prorl.scoring.packing_probe.probe`].
        autocast (`torch.dtype`, *optional*): The dtype in which both compute, if it is not that of the weights.

    Returns `str` or `None`: Why packing is refused, in one sentence, or `None` if the gradients agree.
    """
    params = last_of_each_kind(model)
    if not params:
        return None
    device = next(model.parameters()).device
    with (
        torch.enable_grad(),
        torch.random.fork_rng(devices=on_gpu(device)),
        evaluation_mode(model),
        fill_zeros(params),
    ):
        try:
            expected = compute_gradients(padded, params, vocabulary, device)
            found = compute_gradients(packed, params, vocabulary, device)
        except Exception as error:  # of any kind, because the model's own code runs
            return f"the gradients of {type(model).__name__} in a packed row cannot be tried ({first_line(error)})."
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
    width = PROMPT + max(COMPLETIONS)
    ids = tokens(len(COMPLETIONS) * width, vocabulary).view(len(COMPLETIONS), width)
    ids[:, :PROMPT] = ids[0, :PROMPT].clone()
    mask = torch.ones_like(ids)
    for row, length in enumerate(COMPLETIONS):
        mask[row, PROMPT + length :] = 0
    logps = score(ids.to(device), mask.to(device), max(COMPLETIONS))
    weights = torch.linspace(1.0, 2.0, logps.numel(), device=logps.device).view(logps.shape)
    found = torch.autograd.grad((logps * weights).sum(), list(params.values()), allow_unused=True)
    return dict(zip(params, found, strict=True))


def first_difference(
    found: dict[str, torch.Tensor | None], expected: dict[str, torch.Tensor | None], unit: float
) -> str | None:
    """
    Describe the first gradient that is lost, or that differs from the expected one by more than rounding. `unit` is
    that of [`~trl_prorl.scoring.packing_probe.coarsest_unit`]. Returns a sentence, or `None`.
    """
    largest = max((size(gradient) for gradient in expected.values()), default=0.0)
    allowed = max(LEAST, UNITS * unit)
    for name, right in expected.items():
        mine = found[name]
        if size(right) == 0.0 and size(mine) == 0.0:
            continue
        if size(mine) == 0.0:
            return f"{name} gets no gradient from packed rows, and gets one from padded rows."
        if right is None:
            return f"{name} gets a gradient from packed rows, and gets none from padded rows."
        difference = size(mine - right)
        # A gradient that is small beside the others may be the rest of large parts, which rounding does not cancel.
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
