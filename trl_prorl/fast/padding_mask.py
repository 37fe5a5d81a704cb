"""A mask of the padding before each prompt that is made once for all tokens of a generation."""

import torch
from transformers.cache_utils import DynamicLayer

from .cache_rows import RoomyLayer, Selection, cache_among
from .prefix_attention import ALIGNMENT


class PaddingMask:
    """
    Masks the padding before each prompt, for one query of every row. Transformers creates such a mask for every
    token, checks first whether there is padding, which waits for the device, and SDPA converts its booleans to numbers
    in every layer.

    Args:
        attention_mask (`torch.Tensor` of shape `(P, L)`): 1 where a token is no padding.
        rows (`torch.LongTensor` of shape `(R,)`): Which of its rows, each as often as it stands there.
        length (`int`): Tokens of a row in all.
        dtype (`torch.dtype`): That of the products: a GPU's kernel refuses another than the queries'.
    """

    def __init__(self, attention_mask: torch.Tensor, rows: torch.Tensor, length: int, dtype: torch.dtype):
        is_padding = attention_mask[rows] == 0
        self._has_padding = is_padding.any(dim=1).tolist()
        width = length + -length % ALIGNMENT  # a GPU's kernel would copy a mask of other strides in every layer
        self._to_add = torch.zeros((len(rows), 1, 1, width), dtype=dtype, device=attention_mask.device)
        self._to_add[:, 0, 0, : is_padding.shape[1]].masked_fill_(is_padding, -torch.inf)

    def of(self, length: int) -> torch.Tensor | None:
        """Return what is added to the scores of `length` tokens, `(R, 1, 1, L)`; `None` if no row has padding."""
        return self._to_add[..., :length] if any(self._has_padding) else None

    def close_up(self, selection: Selection) -> None:
        """Keep some rows."""
        self._to_add = self._to_add[selection.rows]
        self._has_padding = [self._has_padding[row] for row in selection.kept]


def attends_plainly(model, model_kwargs: dict) -> bool:
    """
    Return whether a model needs of its mask only which tokens of a row are padding, in the form in which SDPA adds it:
    every layer attends to all tokens before it, and positions are given.
    """
    config = model.config
    cache = cache_among(model_kwargs)
    return (
        type(model).__module__.startswith("transformers.")
        and config.get_text_config() is config
        and config._attn_implementation == "sdpa"
        and getattr(config, "rope_parameters", None) is not None
        and set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
        and not getattr(config, "sliding_window", None)
        and all(type(layer) in (RoomyLayer, DynamicLayer) for layer in cache.layers)  # the latter holds nothing
        and model_kwargs.get("position_ids") is not None
    )
