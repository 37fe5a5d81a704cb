"""Resolve a model's name in a recipe or a script to a folder or a Hub name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.utils.peft_utils import find_adapter_config_file

from ..embedded.shipped import EMBEDDED, embedded_model, is_embedded
from ..run.files import check_contents
from ..text import one_line
from ..upstream.weights import place_of, refuse_kernel


def find_model(name: str | None, key: str = "model_name_or_path", init: Mapping[str, Any] | None = None) -> str:
    """
    Return the model to load: a local folder, a Hub name, or the folder of an embedded model.

    Args:
        name (`str`, *optional*): The name, as given.
        key (`str`): Key or argument that gave it, for the message.
        init (`Mapping[str, Any]`, *optional*): Arguments of `from_pretrained`; those of [`place_of`] are used.

    Raises:
        `ValueError`: There is no such model, it is an adapter, an embedded model's files were changed, or a kernel of
        the Hub would run.
    """
    if not isinstance(name, str):
        raise ValueError(f"{key}={name!r}: set it to a Hub name, a local folder, or {EMBEDDED!r}.")
    if is_embedded(name):
        try:
            return embedded_model(name)
        except ValueError as error:
            raise type(error)(str(error).replace("model_name_or_path=", f"{key}=")) from error
    given = f"{key}={name!r}"
    if Path(name).is_dir():
        check_contents(Path(name), given)
    try:
        adapter = find_adapter_config_file(name, **place_of(init))
        if not isinstance((init or {}).get("attn_implementation"), str):  # a mapping may leave out parts of the model
            refuse_kernel(name, **place_of(init))
    except OSError as error:
        raise ValueError(f"{given} cannot be loaded: {one_line(error)}") from error
    if adapter is not None:
        raise ValueError(
            f"{given} contains an adapter, but a run starts from a complete model. For a recipe, merge the adapter "
            "first. In a script, load it with load_model(model, adapter, is_trainable=True) (docs/from-sft.md)."
        )
    return name
