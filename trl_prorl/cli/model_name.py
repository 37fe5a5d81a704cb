"""Resolve a model's name in a recipe or a script to a folder or a Hub name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from transformers.utils import cached_file
from transformers.utils.peft_utils import find_adapter_config_file

from ..embedded.shipped import EMBEDDED, SMOLLM2, embedded_model, is_embedded, shipped
from ..run.files import check_contents
from ..run.provenance import is_hub_name
from ..text import cut, nearest, one_line
from ..upstream.weights import place_of, refuse_kernel


def find_model(name: str | None, key: str = "model_name_or_path", init: Mapping[str, Any] | None = None) -> str:
    """
    Return the model to load: a local folder, a Hub name, or the folder of an embedded model.

    Args:
        name (`str`, *optional*): The name, as given.
        key (`str`): Key or argument that gave it, for the message.
        init (`Mapping[str, Any]`, *optional*): Arguments of `from_pretrained`; those of [`place_of`] are used.

    Raises:
        `ValueError`: There is no such model, an embedded model's files were changed, or a kernel of the Hub would run.
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
        _check_folder(Path(name), given)
    elif name.lower().endswith(".gguf"):
        raise ValueError(f"{given} is a GGUF file: save it once as a folder (docs/howto-model.md) and give that.")
    elif not is_hub_name(name):
        like = nearest(name, [EMBEDDED, SMOLLM2, *shipped(), *cached_models()])
        raise ValueError(f"{given} is neither a local folder nor a Hub name like Qwen/Qwen2.5-0.5B-Instruct{like}.")
    else:
        _check_hub(name, given, place_of(init))
    if not isinstance((init or {}).get("attn_implementation"), str):  # a mapping may leave out parts of the model
        refuse_kernel(name, **place_of(init))
    return name


def _check_folder(folder: Path, given: str) -> None:
    check_contents(folder, given)
    if (folder / "adapter_config.json").exists():
        raise _adapter_refusal(given)
    if not (folder / "config.json").exists():
        raise ValueError(f"{given} contains no model: config.json is missing.")


def _check_hub(name: str, given: str, place: Mapping[str, Any]) -> None:
    """Raise an error for a name neither on the Hub nor in the local cache, or of an adapter."""
    try:
        if find_adapter_config_file(name, **place) is not None:
            raise _adapter_refusal(given)
        cached_file(name, "config.json", **place)
    except OSError as error:
        like = nearest(name, cached_models())
        offline = " HF_HUB_OFFLINE is set: unset it to download." if constants.HF_HUB_OFFLINE else ""
        reason = cut(one_line(error), 300)
        raise ValueError(f"{given} cannot be loaded{like}: {reason}{offline}") from None


def _adapter_refusal(given: str) -> ValueError:
    return ValueError(
        f"{given} contains an adapter, but a run starts from a complete model. For a recipe, merge the adapter first. "
        "In a script, load it with load_model(model, adapter, is_trainable=True) (docs/from-sft.md)."
    )


def cached_models() -> list[str]:
    folders = Path(constants.HF_HUB_CACHE).glob("models--*--*")
    return [folder.name.removeprefix("models--").replace("--", "/", 1) for folder in folders]
