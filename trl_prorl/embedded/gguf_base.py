"""
A GGUF file as a base: `model_name_or_path: path/to/model.gguf`, the file format of llama.cpp.

transformers converts the file, once, into the user's cache, as a bf16 model and its tokenizer. What transformers does
not take over of the file, and would compute otherwise than llama.cpp, is refused here.
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
from typing import Any

from filelock import FileLock
from huggingface_hub.constants import HF_HOME

from ..errors import InputError
from ..files import file_sha256


CACHE = Path(HF_HOME, "trl_prorl", "gguf")
ARCHITECTURES = ("llama", "qwen2")  # those that were tried, of the many that transformers converts
READER = "gguf>=0.10"
MADE_WITH = "made_with.json"
# Fields of a header that transformers takes over, without the architecture's name, and their names there.
CONFIG = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
NEEDED = ("context_length", "attention.layer_norm_rms_epsilon")  # transformers has defaults for them
ROPE_THETA = "rope.freq_base"
# Values by which a field that transformers does not take over changes nothing; of other fields 0 and False.
NOTHING = {"rope.scaling.type": ("none",), "rope.scaling.factor": (1.0,), "rope.scale_linear": (1.0,)}
# Llama 3.1, 3.2 and 3.3 scale their RoPE. The file has the factor of each frequency, in a tensor that transformers
# leaves out; they follow from these numbers and from the largest factor.
ROPE_FREQS = "rope_freqs.weight"
LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


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
        [`InputError`]: The file is missing, is damaged, or holds what transformers does not take over.
    """
    file = Path(name).expanduser()
    if not file.is_file():
        raise InputError(
            f"model_name_or_path={name!r} does not exist: give the path of a GGUF file, or another model."
        )
    sha256 = file_sha256(file)
    folder = CACHE / f"{file.stem}-{sha256[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # several processes of a run begin together
        if not folder.is_dir():
            print(f"converting {file.name} into {folder}, once; this takes a minute or two", file=sys.stderr)
            convert(file, folder, {"gguf": sha256, "file": file.name})
    return str(folder)


def convert(file: Path, folder: Path, noted: dict[str, str]) -> None:
    """
    Convert a GGUF file into a folder with a bf16 model and its tokenizer, as a whole or not at all. What is there is
    replaced.

    Args:
        file (`Path`): The GGUF file.
        folder (`Path`): Where the model is to lie.
        noted (`dict[str, str]`): What `made_with.json` says, with the versions.

    Raises:
        [`InputError`]: The file is not a whole model that transformers computes as llama.cpp does.
    """
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"model_name_or_path={str(file)!r} needs a package to read it: pip install '{READER}'.")
    from transformers import AutoTokenizer

    from ..launch.environment import versions

    try:
        model = load(file)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except InputError:
        raise
    except Exception as error:  # bytes that mean something else lead anywhere in gguf and transformers
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        why = " ".join(str(error).split())
        raise InputError(
            f"model_name_or_path={str(file)!r} cannot be converted ({type(error).__name__}: {why}): download it "
            "again, or use another file."
        ) from error
    add_padding_to_ends(model.generation_config)
    made = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(made, ignore_errors=True)  # a killed conversion has left it
    try:
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        (made / MADE_WITH).write_text(json.dumps({**noted, "versions": versions()}, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def load(file: Path):
    """
    Load the model of a GGUF file in bf16, by transformers.

    Raises:
        [`InputError`]: Not every weight comes from the file, or not every tensor of it is used; a weight is no number;
            or the header says what the model does not have.
    """
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, GgufConfig
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    from ..weights import refuse_keys, whole_weights

    reader = GGUFReader(file)
    header = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    check_header(file, header)
    with whole_weights(file):
        loaded = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
    used = get_gguf_hf_weights_map(loaded, TensorProcessor(config={}))
    refuse_keys(file, unexpected=tensors.keys() - used.keys() - {ROPE_FREQS})
    for name, param in loaded.named_parameters():
        if not torch.isfinite(param).all():
            raise InputError(
                f"{str(file)!r} contains NaN or infinity in {name}: download it again, or use another file."
            )
    check_config(file, header, loaded.config)
    if ROPE_FREQS in tensors:
        set_llama3_rope(file, loaded.config, torch.tensor(tensors[ROPE_FREQS]))
    # It would refuse to be saved as what it was loaded from.
    loaded.hf_quantizer = None
    vars(loaded.config).pop("quantization_config", None)
    return loaded


def check_header(file: Path, header: dict[str, Any]) -> None:
    """
    Raise an error for an architecture that was not tried, and fields of a header that transformers does not take over.
    """
    architecture = header.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"model_name_or_path={str(file)!r} has the architecture {architecture!r}; GGUF files of "
            f"{' and '.join(ARCHITECTURES)} are supported. Use a folder with the model as transformers saves it."
        )
    for name, value in header.items():
        kind, _, field = name.partition(".")
        if kind != architecture or field in (*CONFIG, ROPE_THETA):
            continue
        if value not in NOTHING.get(field, (0, False)):
            raise InputError(
                f"model_name_or_path={str(file)!r}: its header has {name}={value!r}, which transformers ignores. Use "
                "another file, or a folder with the model as transformers saves it."
            )


def check_config(file: Path, header: dict[str, Any], config) -> None:
    """
    Raise an error for a configuration that is not what a header says, with an [`InputError`] that names field and
    values.
    """
    architecture = header["general.architecture"]
    pairs = {name: getattr(config, theirs, None) for name, theirs in CONFIG.items()}
    pairs[ROPE_THETA] = config.rope_parameters["rope_theta"]
    for name, found in pairs.items():
        said = header.get(f"{architecture}.{name}")
        if said is None and name not in NEEDED:
            continue
        if found is None and CONFIG.get(name) == "head_dim":
            found = config.hidden_size // config.num_attention_heads
        if said is None or not math.isclose(said, found, rel_tol=1e-6):
            raise InputError(
                f"{str(file)!r}: its header has {name}={said!r}, but transformers reads {found!r}. Use another file."
            )


def set_llama3_rope(file: Path, config, factors) -> None:
    """
    Set Llama 3's scaling of RoPE, whose frequencies have to be those that the factors of a file make.

    Args:
        file (`Path`): Is named by the refusal of other factors.
        config (`PreTrainedConfig`): Is changed.
        factors (`torch.Tensor` of shape `(head_dim / 2,)`): The file's [`ROPE_FREQS`].
    """
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theta = config.rope_parameters["rope_theta"]
    config.rope_parameters = {**LLAMA3, "rope_theta": theta, "factor": factors.max().item()}
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    halves = torch.arange(len(factors)) / len(factors)
    if len(scaled) != len(factors) or not torch.allclose(theta**-halves / factors, scaled, rtol=1e-4, atol=0.0):
        raise InputError(f"{str(file)!r}: {ROPE_FREQS} has other factors than Llama 3's. Use another file.")


def add_padding_to_ends(generation) -> None:
    """
    Let the padding token end a text as well, if it is not the end of a turn already. It stands in no text, and some
    models, Qwen among them, write it in place of the end of the turn; a GGUF file names one end alone.
    """
    end = generation.eos_token_id
    padding = generation.pad_token_id
    if isinstance(end, int) and padding not in (None, end):
        generation.eos_token_id = [end, padding]
