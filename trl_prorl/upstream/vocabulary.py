"""Checks that a tokenizer has a vocabulary: without its file transformers makes one, and prompts lose their text."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..errors import InputError


def load_tokenizer(source: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """Raises [`InputError`]: it has no vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    if set(tokenizer.get_vocab()) <= {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens, "\u2581"}:
        raise InputError(f"the tokenizer of {source} has no vocabulary: tokenizer.json is missing.")
    return tokenizer
