"""
A GGUF file as a base: `model_name_or_path: path/to/model.gguf`, the file format of llama.cpp.

The file is converted once into the user's cache, as a bf16 model and its tokenizer, and loaded from there afterwards.
*Its weights are an approximation*: most such files hold four to eight bits a weight, so that a model out of one is not
the model that its name promises. The record of a run therefore holds the file's SHA-256.
"""

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock
from huggingface_hub.constants import HF_HOME

from ..errors import InputError
from ..files import file_sha256


if TYPE_CHECKING:
    from gguf import GGUFReader


CACHE = Path(HF_HOME, "trl_prorl", "gguf")
ARCHITECTURES = ("llama", "qwen2")  # those that were tried, of the many that transformers converts
READER = "gguf>=0.10"
MADE_WITH = "made_with.json"  # last to be written: a folder without it is not complete
BYTES_OF_BF16 = 2
BYTES_OF_FP32 = 4


def is_gguf(name: str) -> bool:
    """Return whether a `model_name_or_path` is the path of a GGUF file."""
    return name.lower().endswith(".gguf")


def gguf_sha256(name: str) -> str | None:
    """
    Return the SHA-256 of a GGUF file, as 64 hexadecimal digits.

    Args:
        name (`str`): Path of a GGUF file, or of the folder that one was converted into.

    Returns:
        `str` or `None`: `None` if the path is neither, or is not here.
    """
    if is_gguf(name):
        file = Path(name).expanduser()
        return file_sha256(file) if file.is_file() else None
    made_with = Path(name, MADE_WITH)
    if Path(name).parent != CACHE or not made_with.is_file():
        return None
    return json.loads(made_with.read_text())["gguf"]


def gguf_model(name: str) -> str:
    """
    Return the folder of a GGUF file's model, which is converted now if the cache does not have it.

    Args:
        name (`str`): Path of the file.

    Raises:
        InputError: The file is missing, is damaged, holds an architecture that was not tried, or is too large for the
            memory or the disk of this machine.
    """
    file = Path(name).expanduser()
    if not file.is_file():
        raise InputError(f"model_name_or_path={name!r} is missing: give the path of a GGUF file, or another model.")
    sha256 = file_sha256(file)
    folder = CACHE / f"{file.stem}-{sha256[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / f"{folder.name}.lock"):  # several processes of a run begin together
        if not (folder / MADE_WITH).is_file():
            check_file(file)
            print(f"{file.name}: converted once into {folder}, which takes a minute or two", file=sys.stderr)
            convert(file, folder, {"gguf": sha256, "file": file.name})
    return str(folder)


def check_file(file: Path) -> None:
    """
    Refuse a GGUF file that cannot be converted here.

    Raises:
        InputError: Naming the file, what is wrong with it, and what to do.
    """
    reader = open_file(file)
    architecture = read_field(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"model_name_or_path={str(file)!r} holds a model of the architecture {architecture!r}; those that can be "
            f"a base are {' and '.join(ARCHITECTURES)}. Take a folder with the model as transformers saves it."
        )
    parts = read_field(reader, "split.count") or 1
    if parts > 1:
        raise InputError(
            f"model_name_or_path={str(file)!r} is one of {parts} files: llama.cpp's `llama-gguf-split --merge` makes "
            "one of them."
        )
    check_room(file, [int(tensor.n_elements) for tensor in reader.tensors])


def open_file(file: Path) -> "GGUFReader":
    """
    Open a GGUF file, of which the weights stay on disk.

    Raises:
        InputError: The package that reads it is not installed, or the file is damaged.
    """
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"model_name_or_path={str(file)!r} needs a package that reads it: pip install '{READER}'.")
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except Exception as error:  # of a damaged file the reader raises whatever its bytes lead to
        raise InputError(
            f"model_name_or_path={str(file)!r} is damaged, or no GGUF file ({type(error).__name__}: {error}): "
            "download it again."
        ) from error


def read_field(reader: "GGUFReader", name: str):
    """Return a value of a GGUF file's header, or `None` if it has none of that name."""
    field = reader.get_field(name)
    return None if field is None else field.contents()


def check_room(file: Path, sizes: list[int]) -> None:
    """
    Refuse a model that does not fit here. While it is converted the memory holds the model in bf16 and two copies of
    its largest tensor in fp32; the disk holds the model.

    Args:
        file (`Path`): The GGUF file.
        sizes (`list[int]`): Number of weights of each tensor.

    Raises:
        InputError: Naming what is needed and what there is, in GiB.
    """
    import psutil  # accelerate needs it, too

    weights = BYTES_OF_BF16 * sum(sizes)
    needed = weights + 2 * BYTES_OF_FP32 * max(sizes)
    memory = psutil.virtual_memory().available
    if needed > memory:
        raise InputError(
            f"model_name_or_path={str(file)!r} needs {needed / 2**30:.1f} GiB of memory to be converted, and "
            f"{memory / 2**30:.1f} are free: end other programs, or take a smaller model."
        )
    disk = shutil.disk_usage(CACHE).free
    if weights > disk:
        raise InputError(
            f"model_name_or_path={str(file)!r} needs {weights / 2**30:.1f} GiB in {CACHE}, and {disk / 2**30:.1f} are "
            "free: make room, or set HF_HOME to a folder of another disk."
        )


def convert(file: Path, folder: Path, noted: dict[str, str]) -> None:
    """
    Convert a GGUF file into a folder with a bf16 model and its tokenizer, as a whole or not at all. What is there is
    replaced.

    Args:
        file (`Path`): The GGUF file.
        folder (`Path`): Where the model is to lie.
        noted (`dict[str, str]`): What `made_with.json` says beside the versions.

    Raises:
        InputError: The file's content is not that of a whole model.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from ..environment import versions

    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except OSError:
        raise
    except Exception as error:  # of what transformers finds missing in it
        raise InputError(
            f"{str(file)!r} cannot be converted ({type(error).__name__}: {error}): download it again."
        ) from error
    add_padding_to_ends(loaded.generation_config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        made = Path(aside, folder.name)
        saveable(loaded).save_pretrained(made)
        tokenizer.save_pretrained(made)
        made_with = {**noted, "versions": versions()}
        (made / MADE_WITH).write_text(json.dumps(made_with, indent=2) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(made, folder)


def add_padding_to_ends(generation) -> None:
    """
    Let the padding token end a text as well, if it is not the end of a turn already. It stands in no text, and some
    models, Qwen among them, write it in place of the end of the turn; a GGUF file names one end alone.
    """
    end = generation.eos_token_id
    padding = generation.pad_token_id
    if isinstance(end, int) and padding not in (None, end):
        generation.eos_token_id = [end, padding]


def saveable(loaded):
    """
    Return a model with the weights of one that was loaded from a GGUF file, which itself refuses to be saved. The
    weights are shared, not copied.
    """
    import torch

    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    return model
