"""Checks that a tokenizer is complete and fits its model: no library compares a vocabulary with the embedding."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import InputError


def load_tokenizer(source: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """Raises [`InputError`]: it has no vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    check_tokenizer(tokenizer)
    return tokenizer


def check_tokenizer(tokenizer: Any, rows: int | None = None) -> None:
    """Raise [`InputError`] for a tokenizer without a vocabulary, or with one that exceeds the embedding's rows."""
    vocabulary = tokenizer.get_vocab()
    if set(vocabulary) <= {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens, "\u2581"}:
        raise InputError(f"the tokenizer of {tokenizer.name_or_path} has no vocabulary: tokenizer.json is missing.")
    used = {tokenizer.pad_token_id, tokenizer.eos_token_id, *tokenizer("").input_ids} - {None}
    if rows is not None and max(used) >= rows:
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path} has the token {max(used)}, the model {rows} rows."
        )


def embedding_rows(config: PreTrainedConfig) -> int | None:
    return getattr(config.get_text_config(), "vocab_size", None)
