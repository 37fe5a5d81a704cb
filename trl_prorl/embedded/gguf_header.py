"""
What a GGUF file says of its model, checked before anything is converted: the file is whole, and its header describes a
model that transformers computes as llama.cpp does. The layout is that of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError


MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING = 8
ARRAY = 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MAX_DIMENSIONS = 4
ROPE_FREQS = "rope_freqs.weight"

# Fields of a model's header, without its architecture: those that a configuration of transformers has, with its name.
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
NEEDED = tuple(CONFIG)[:4] + ("context_length", "attention.layer_norm_rms_epsilon")
ROPE = ("rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.finetuned", "rope.scale_linear")
ROPE += ("rope.scaling.original_context_length",)
# Of Llama 3.1, 3.2 and 3.3. The file has the factor of each frequency, which follows from these and the largest one.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True)
class Header:
    """
    Attributes:
        fields (`dict[str, Any]`): Scalars and texts by name; of an array its length.
        tensors (`dict[str, tuple[int, ...]]`): Shapes as torch has them, by name.
    """

    fields: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]

    @property
    def architecture(self) -> str:
        return self.fields["general.architecture"]

    def of_model(self, name: str) -> Any:
        """Return a field of the model, `None` if there is none."""
        return self.fields.get(f"{self.architecture}.{name}")

    @property
    def rope_theta(self) -> float:
        return float(self.of_model("rope.freq_base") or 10_000.0)

    @property
    def head_dim(self) -> int:
        return self.of_model("attention.key_length") or (
            self.of_model("embedding_length") // self.of_model("attention.head_count")
        )


# What bytes that mean something else lead to.
OF_DAMAGED_FILES = (struct.error, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)


@contextmanager
def damage_in_one_line(file: Path) -> Iterator[None]:
    """Raise what a damaged file leads to as an [`InputError`]."""
    try:
        yield
    except InputError:
        raise
    except OF_DAMAGED_FILES as error:
        why = " ".join(str(error).split())
        raise InputError(
            f"model_name_or_path={str(file)!r} is damaged, or no GGUF file ({why}): download it again."
        ) from error


def read_header(file: Path) -> Header:
    """
    Read the header of a GGUF file, in a time that its size bounds.

    Raises:
        InputError: The file is cut, or no GGUF file.
    """
    with damage_in_one_line(file), open(file, "rb") as stream:
        return _read(stream, file.stat().st_size)


def _read(stream: BinaryIO, size: int) -> Header:
    def take(count: int) -> bytes:
        if count > size - stream.tell():
            raise ValueError(f"its header says {count} bytes where the file ends")
        return stream.read(count)

    def number(kind: str) -> Any:
        return struct.unpack(f"<{kind}", take(struct.calcsize(kind)))[0]

    def text() -> str:
        return take(number("Q")).decode()

    def value(kind: int) -> Any:
        if kind == STRING:
            return text()
        if kind == ARRAY:
            inner = number("I")
            length = number("Q")
            if inner == STRING:
                for _ in range(length):  # each has a length of its own, so the file bounds the loop
                    take(number("Q"))
            else:
                take(length * struct.calcsize(SCALARS[inner]))
            return length
        return number(SCALARS[kind])

    if take(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = number("I")
    if version not in VERSIONS:
        raise ValueError(f"version {version}; {VERSIONS} can be read")
    tensor_count = number("Q")
    field_count = number("Q")
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        name = text()
        kind = number("I")
        if name in fields or kind not in (STRING, ARRAY, *SCALARS):
            raise ValueError(f"field {name[:60]!r} is there twice, or of kind {kind}")
        fields[name] = value(kind)
    places = []
    tensors: dict[str, tuple[int, ...]] = {}
    for _ in range(tensor_count):
        name = text()
        dimensions = number("I")
        if name in tensors or not 0 < dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"tensor {name[:60]!r} is there twice, or has {dimensions} dimensions")
        shape = struct.unpack(f"<{dimensions}Q", take(8 * dimensions))
        tensors[name] = tuple(reversed(shape))
        places.append((name, shape, number("I"), number("Q")))
    _check_places(places, stream.tell(), fields.get("general.alignment", 32), size)
    return Header(fields, tensors)


def _check_places(places: list[tuple], end: int, alignment: Any, size: int) -> None:
    """Raise `ValueError` unless every tensor lies within the file, and no two in one place."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {alignment}")
    start = end + -end % alignment
    last = start
    for name, shape, kind, offset in sorted(places, key=lambda place: place[3]):
        block, width = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if 0 in shape or shape[0] % block:
            raise ValueError(f"tensor {name[:60]!r} has the shape {shape}")
        here = start + offset
        last_byte = here + math.prod(shape) // block * width
        if here < last or last_byte > size:
            raise ValueError(f"tensor {name[:60]!r} is not whole")
        last = last_byte


def check_header(file: Path, header: Header) -> None:
    """
    Refuse a header that says what a model made of the file would not have.

    Raises:
        InputError: Naming the field, what it says, and what to do.
    """

    def refuse(what: str) -> None:
        raise InputError(
            f"model_name_or_path={str(file)!r}: {what}. Take another file, or a folder with the model as transformers "
            "saves it."
        )

    for name in NEEDED:
        found = header.of_model(name)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 < found < 2**31:
            refuse(f"its header's {header.architecture}.{name} is {found!r}, and should be a positive number")
    blocks = {int(name.split(".")[1]) for name in header.tensors if name.startswith("blk.") and _block(name)}
    if blocks != set(range(header.of_model("block_count"))):
        refuse(f"block_count is {header.of_model('block_count')}, and its tensors are of {len(blocks)} blocks")
    rows = header.tensors.get("token_embd.weight", (0,))[0]
    tokens = header.fields.get("tokenizer.ggml.tokens", 0)
    if not 0 < tokens <= rows:
        refuse(f"it has {tokens} tokens, and token_embd.weight has {rows} rows")
    known = {f"{header.architecture}.{name}" for name in (*CONFIG, *ROPE)}
    for name, value in header.fields.items():
        if name.startswith(f"{header.architecture}.") and name not in known and value not in (0, False, "none"):
            refuse(f"its header has {name}={value!r}, which transformers does not take over")
    if rope_parameters(header) is None:
        kind = header.of_model("rope.scaling.type")
        given = f"rope.scaling.type={kind!r}" if kind else f"the factors in {ROPE_FREQS}"
        refuse(f"transformers does not take over its RoPE scaling, {given}")


def _block(name: str) -> bool:
    return name.split(".")[1].isdecimal()


def rope_parameters(header: Header) -> dict[str, Any] | None:
    """
    Return the RoPE of a file as transformers' `rope_parameters`, Llama 3's still without its factor, which
    [`llama3_factor`] reads from the weights; `None` for a scaling that is not supported.
    """
    kind = header.of_model("rope.scaling.type") or "none"
    factor = header.of_model("rope.scaling.factor") or header.of_model("rope.scale_linear") or 1.0
    plain = {"rope_type": "default", "rope_theta": header.rope_theta}
    if ROPE_FREQS in header.tensors:
        return {**plain, "rope_type": "llama3", **LLAMA3} if kind == "none" and factor == 1.0 else None
    if kind == "none" and factor == 1.0:
        return plain
    if kind in ("none", "linear") and factor > 0 and math.isfinite(factor):
        return {**plain, "rope_type": "linear", "factor": float(factor)}
    return None


def llama3_factor(header: Header, freqs: Sequence[float]) -> float | None:
    """
    Return the `factor` of Llama 3's RoPE scaling, by which a file's values divide the frequencies; `None` if these are
    not such factors.

    Args:
        header ([`Header`]): The file's.
        freqs (`Sequence[float]`): `rope_freqs.weight`, head_dim / 2 numbers.
    """
    factor = max(freqs, default=0.0)
    dims = range(0, header.head_dim, 2)
    if len(freqs) != len(dims) or not 1.0 <= factor < math.inf:
        return None
    low = LLAMA3["low_freq_factor"]
    high = LLAMA3["high_freq_factor"]
    for found, dim in zip(freqs, dims, strict=True):
        wavelength = 2 * math.pi * header.rope_theta ** (dim / header.head_dim)
        turns = LLAMA3["original_max_position_embeddings"] / wavelength
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        expected = 1.0 / ((1.0 - smooth) / factor + smooth)
        if not math.isclose(found, expected, rel_tol=1e-4):
            return None
    return factor
