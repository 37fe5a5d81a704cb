"""
A GGUF file as a base: `model_name_or_path: path/to/model.gguf`, the file format of llama.cpp.

The file is converted once into the user's cache, as a bf16 model and its tokenizer, and loaded from there afterwards,
as long as the hashes of all files there are those of then.
*Its weights are an approximation*: most such files hold four to eight bits a weight, so that a model out of one is not
the model that its name promises. The record of a run therefore holds the file's SHA-256.
"""

import importlib.util
import json
import math
import os
import shutil
import sys
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub.constants import HF_HOME

from ..errors import InputError
from ..files import file_sha256
from .gguf_header import (
    CONFIG,
    ROPE_FREQS,
    Header,
    check_header,
    damage_in_one_line,
    llama3_factor,
    read_header,
    rope_parameters,
)


CACHE = Path(HF_HOME, "trl_prorl", "gguf")
ARCHITECTURES = ("llama", "qwen2")  # those that were tried, of the many that transformers converts
READER = "gguf>=0.10"
MADE_WITH = "made_with.json"  # last to be written: a folder without it is not complete
PART = ".part"  # of the name of a folder that is being made
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
        InputError: The file is missing, is damaged, holds an architecture that was not tried or what transformers does
            not take over, or is too large for the memory or the disk of this machine.
    """
    file = Path(name).expanduser()
    if not file.is_file():
        raise InputError(f"model_name_or_path={name!r} is missing: give the path of a GGUF file, or another model.")
    sha256 = file_sha256(file)
    folder = CACHE / f"{file.stem}-{sha256[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with lock_of(folder):  # several processes of a run begin together
        if not is_whole(folder, sha256):
            header = check_file(file)
            check_room(file, [math.prod(shape) for shape in header.tensors.values()])
            remove_leftovers()
            print(f"{file.name}: converted once into {folder}, which takes a minute or two", file=sys.stderr)
            convert(file, folder, {"gguf": sha256, "file": file.name})
    return str(folder)


def lock_of(folder: Path) -> FileLock:
    """Return the lock that a process holds while it converts a file into a folder."""
    return FileLock(folder.with_name(f"{folder.name}.lock"))


def is_whole(folder: Path, sha256: str) -> bool:
    """Return whether a folder of the cache has the model of a GGUF file with this hash, every file as it was made."""
    made_with = folder / MADE_WITH
    if not made_with.is_file():
        return False
    noted = json.loads(made_with.read_text())
    return noted.get("gguf") == sha256 and noted.get("files") == file_hashes(folder)


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a converted model but of the one that notes them."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MADE_WITH)
    return {path.name: file_sha256(path) for path in files}


def remove_leftovers() -> None:
    """Remove what conversions that were killed have left in the cache, of versions that named it `tmp…` too."""
    for folder in CACHE.glob("tmp*"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in CACHE.glob(f".*{PART}"):
        lock = lock_of(folder.with_name(folder.name.removeprefix(".").removesuffix(PART)))
        try:
            lock.acquire(blocking=False)
        except Timeout:  # another process is at it
            continue
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def check_file(file: Path) -> Header:
    """
    Refuse a GGUF file that cannot be converted here, and return its header.

    Raises:
        InputError: Naming the file, what is wrong with it, and what to do.
    """
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"model_name_or_path={str(file)!r} needs a package that reads it: pip install '{READER}'.")
    header = read_header(file)
    architecture = header.fields.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"model_name_or_path={str(file)!r} holds a model of the architecture {architecture!r}; those that can be "
            f"a base are {' and '.join(ARCHITECTURES)}. Take a folder with the model as transformers saves it."
        )
    parts = header.fields.get("split.count") or 1
    if parts != 1:
        raise InputError(
            f"model_name_or_path={str(file)!r} is one of {parts} files: llama.cpp's `llama-gguf-split --merge` makes "
            "one of them."
        )
    with damage_in_one_line(file):
        check_header(file, header)
    return header


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
    from transformers import AutoTokenizer

    from ..environment import versions

    header = check_file(file)
    try:
        loaded = load(file, header)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except InputError:
        raise
    except Exception as error:  # of what transformers finds missing in it
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        why = " ".join(str(error).split())
        raise InputError(
            f"{str(file)!r} cannot be converted ({type(error).__name__}: {why}): download it again."
        ) from error
    add_padding_to_ends(loaded.generation_config)
    made = folder.with_name(f".{folder.name}{PART}")
    shutil.rmtree(made, ignore_errors=True)
    try:
        saveable(loaded).save_pretrained(made)
        tokenizer.save_pretrained(made)
        made_with = {**noted, "versions": versions(), "files": file_hashes(made)}
        (made / MADE_WITH).write_text(json.dumps(made_with, indent=2) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def load(file: Path, header: Header):
    """
    Load the model of a GGUF file in bf16, by transformers.

    Raises:
        InputError: Not every weight comes from the file, or not every tensor of it is used; a weight is no number; or
            the configuration is not what the header says.
    """
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, GgufConfig
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    from ..weights import refuse_keys, whole_weights

    with whole_weights(file):
        loaded = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
    used = get_gguf_hf_weights_map(loaded, TensorProcessor(config={}))
    refuse_keys(file, unexpected=header.tensors.keys() - used.keys() - {ROPE_FREQS})
    for name, param in loaded.named_parameters():
        if not torch.isfinite(param).all():
            raise InputError(f"{str(file)!r} has NaN or infinity in {name}: download it again, or take another file.")
    check_config(file, header, loaded.config)
    rope = rope_parameters(header)
    if ROPE_FREQS in header.tensors:
        freqs = next(tensor.data for tensor in GGUFReader(file).tensors if tensor.name == ROPE_FREQS)
        factor = llama3_factor(header, freqs.ravel().tolist())
        if factor is None:
            raise InputError(f"{str(file)!r}: {ROPE_FREQS} has other factors than Llama 3's. Take another file.")
        rope["factor"] = factor
    loaded.config.rope_parameters = rope
    return loaded


def check_config(file: Path, header: Header, config) -> None:
    """Refuse a configuration that is not what a header says, with an [`InputError`] that names field and values."""
    expected = {name: header.of_model(name) for name in CONFIG}
    pairs = {name: (value, getattr(config, CONFIG[name], None)) for name, value in expected.items()}
    pairs["attention.key_length"] = (header.head_dim, getattr(config, "head_dim", None) or header.head_dim)
    pairs["rope.freq_base"] = (header.rope_theta, config.rope_parameters["rope_theta"])
    pairs["general.architecture"] = (header.architecture, config.model_type)
    for name, (said, found) in pairs.items():
        if said is None or said == found:
            continue
        if isinstance(said, float) and isinstance(found, float) and math.isclose(said, found, rel_tol=1e-6):
            continue
        raise InputError(
            f"{str(file)!r}: its header has {name}={said!r}, and transformers makes {found!r} of it. Take another "
            "file."
        )


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
