"""Prompts and completions as lists of token ids, before and after they are a batch."""

import torch
from trl.trainer.utils import pad as trl_pad


def find_distinct(prompts: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Return the distinct prompts in order of first occurrence, and every prompt's index among them."""
    places: dict[tuple[int, ...], int] = {}
    copies = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
    return [list(prompt) for prompt in places], copies


def pad_left(prompts: list[list[int]], pad: int, multiple: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Make token ids and attention mask of shape `(P, W)`."""
    ids = [torch.tensor(prompt) for prompt in prompts]
    masks = [torch.ones_like(prompt) for prompt in ids]
    on_left = {"padding_side": "left", "pad_to_multiple_of": multiple or None}
    return trl_pad(ids, pad, **on_left), trl_pad(masks, 0, **on_left)


def cut_at_end(ids: list[int], ends: set[int]) -> list[int]:
    """Cut tokens after the first of `ends`."""
    for place, token in enumerate(ids):
        if token in ends:
            return ids[: place + 1]
    return ids
