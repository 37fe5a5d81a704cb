"""
Checks that a tokenizer is complete and fits its model. Without the vocabulary file, transformers makes one of special
tokens alone; no library compares a vocabulary with the embedding.
"""

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import InputError
from ..text import cut, one_line


CURE = "save or download it again"
NAMES = (
    "added_tokens",
    "chat_template",
    "config",
    "generation_config",
    "merges",
    "preprocessor",
    "processor",
    "sentencepiece",
    "special_tokens",
    "spiece",
    "tokenizer",
    "vocab",
)
POINTER = b"version https://git-lfs.github.com/spec/"
LOADERS = ("from_pretrained", "create_model_from_path", "load_tokenizer")
POINTER_BYTES = 1024  # a pointer is shorter
SPACE = "▁"  # sentencepiece's, in each vocabulary that transformers makes up for its classes


def load_tokenizer(source: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """Raises [`InputError`]: a file is missing or unreadable."""
    with readable_files(source):
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        tokenizer("text")  # fails here for a wrong type in tokenizer_config.json
    check_tokenizer(tokenizer)
    return tokenizer


@contextmanager
def readable_files(source: str | Path) -> Iterator[None]:
    """
    Raise [`InputError`] for a damaged JSON file, or for the folder, if loading fails. Git LFS pointers are reported
    first: as a chat template one would be every prompt.
    """
    pointer = _find_pointer(Path(source))
    if pointer is not None:
        raise InputError(f"{pointer} is a pointer of Git LFS: download the file itself (git lfs pull).")
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # tokenizers has no error class of its own
        file = _damaged_file(Path(source))
        is_refusal = isinstance(error, ValueError | OSError | ImportError | RuntimeError)
        if file is None and (is_refusal or not _is_of_loader(error)):
            raise
        reason = cut(one_line(f"{type(error).__name__}: {error}"))
        if file is None:
            raise InputError(f"{source} cannot be loaded ({reason}): {CURE}.") from error
        raise InputError(
            f"{file} is missing, truncated, corrupt or a pointer of Git LFS ({reason}): {CURE}."
        ) from error


def _is_of_loader(error: Exception) -> bool:
    return any(frame.f_code.co_name in LOADERS for frame, _ in traceback.walk_tb(error.__traceback__))


def _files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of tokenizer and configuration in a folder; none for a Hub name."""
    return [file for file in sorted(folder.glob(pattern)) if file.name.startswith(NAMES)]


def _find_pointer(folder: Path) -> Path | None:
    for file in _files(folder, "*"):
        is_small = file.is_file() and file.stat().st_size <= POINTER_BYTES
        if is_small and file.read_bytes().startswith(POINTER):
            return file
    return None


def _damaged_file(folder: Path) -> Path | None:
    for file in _files(folder, "*.json"):
        if not file.is_file():
            return file  # a broken link
        try:
            content = json.loads(file.read_text())
        except (ValueError, OSError):
            return file
        if not isinstance(content, dict) or (file.name == "tokenizer.json" and not content.get("model")):
            return file
    vocabularies = ("tokenizer.*", "vocab.*", "*.model")
    if (folder / "tokenizer_config.json").is_file() and not any(any(folder.glob(glob)) for glob in vocabularies):
        return folder / "tokenizer.json"
    return None


def check_tokenizer(tokenizer: Any, rows: int | None = None) -> None:
    """
    Raise [`InputError`] for a tokenizer without a vocabulary, or with one that exceeds the embedding's rows. A special
    token beyond them is allowed if nothing adds it to a text: Gemma 3's image token, and the unknown-text token of
    byte-level vocabularies.
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


def embedding_rows(config: PreTrainedConfig) -> int | None:
    return getattr(config.get_text_config(), "vocab_size", None)
