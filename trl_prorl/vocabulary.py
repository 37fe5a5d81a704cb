"""
A tokenizer is whole, and fits its model. transformers makes up one of special tokens alone if the file of the
vocabulary is missing, and no library compares a vocabulary with the rows of the embedding.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .errors import InputError
from .text import cut


CURE = "save or download it again"
NAMES = (
    "added_tokens",
    "config",
    "generation_config",
    "preprocessor",
    "processor",
    "special_tokens",
    "tokenizer",
    "vocab",
)
SPACE = "▁"  # sentencepiece's, which is in each vocabulary that transformers makes up for its classes


def load_tokenizer(source: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """
    Load a tokenizer.

    Args:
        source (`str` or `Path`): Its folder or Hub name.
        **options (`Any`): Arguments of `from_pretrained`.

    Raises:
        [`InputError`]: A file of the folder is missing or cannot be read.
    """
    with readable_files(source):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    check_tokenizer(tokenizer)
    return tokenizer


@contextmanager
def readable_files(source: str | Path) -> Iterator[None]:
    """
    Name the file if a model or a tokenizer cannot be loaded because a JSON file of its folder is damaged.

    Raises:
        [`InputError`]: It is. Other errors are raised unchanged.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # tokenizers raises no class of its own
        file = _damaged_file(Path(source))
        if file is None:
            raise
        reason = cut(" ".join(f"{type(error).__name__}: {error}".split()), 200)
        raise InputError(
            f"{file} is missing, truncated, corrupt or a pointer of Git LFS ({reason}): {CURE}."
        ) from error


def _damaged_file(folder: Path) -> Path | None:
    """Return a folder's first JSON file of a model or a tokenizer that cannot be read, if any."""
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        if not file.name.startswith(NAMES):
            continue
        if not file.is_file():
            return file  # a link to nothing
        try:
            content = json.loads(file.read_text())
        except (ValueError, OSError):
            return file
        if file.name == "tokenizer.json" and not (isinstance(content, dict) and content.get("model")):
            return file
    vocabularies = ("tokenizer.*", "vocab.*", "*.model")
    if (folder / "tokenizer_config.json").is_file() and not any(any(folder.glob(glob)) for glob in vocabularies):
        return folder / "tokenizer.json"
    return None


def check_tokenizer(tokenizer: Any, rows: int | None = None) -> None:
    """
    Raise an error for a tokenizer without a vocabulary, or whose vocabulary exceeds the embedding. A special token
    beyond the embedding is allowed if neither chat template nor tokenizer adds it to a text: Gemma 3's image token,
    and the token for unknown text that transformers adds to byte-level vocabularies.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): The tokenizer; others are not checked.
        rows (`int`, *optional*): Rows of the model's embedding.

    Raises:
        [`InputError`]: The line names the folder and the file, or the token and both sizes.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return
    vocabulary = tokenizer.get_vocab()
    place = tokenizer.name_or_path or "memory"
    made_up = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens, SPACE}
    if made_up.issuperset(vocabulary):
        files = tokenizer.vocab_files_names
        name = files.get("tokenizer_file", "tokenizer.json")
        others = " and ".join(file for key, file in files.items() if key != "tokenizer_file")
        also = f" (or {others})" if others else ""
        raise InputError(
            f"the tokenizer of {place} has no vocabulary, only {len(vocabulary)} special tokens: {name}{also} is "
            f"missing there, or a broken link; {CURE}."
        )
    if rows is None or max(vocabulary.values()) < rows:
        return
    used = {tokenizer.pad_token_id, tokenizer.eos_token_id, *tokenizer("").input_ids}
    template = str(tokenizer.chat_template)
    added = tokenizer.added_tokens_decoder
    for token, index in vocabulary.items():
        is_special = index in added and added[index].special
        if index >= rows and not (is_special and index not in used and token not in template):
            raise InputError(
                f"the tokenizer of {place} has {len(vocabulary)} tokens, the model's embedding {rows} rows: the token "
                f"{token!r} has the id {index}. Use the model's own tokenizer, or save the model after "
                f"model.resize_token_embeddings({max(vocabulary.values()) + 1})."
            )


def embedding_rows(model: PreTrainedModel) -> int | None:
    """Return the rows of a model's embedding, also if its weights are sharded; `None` if they are not known."""
    return getattr(model.config.get_text_config(), "vocab_size", None)
