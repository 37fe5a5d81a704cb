"""Does a generation batch fit into memory? Predicted from shapes, before anything is sampled."""

from dataclasses import dataclass

import psutil
import torch

from trl_prorl.eval.readiness.finding import Finding, make_finding


USABLE = 0.9  # share of the memory; the rest is lost to fragmentation
MOMENTS = 2  # Adam's, each as large as the trained weights; they are allocated at the first update
MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class GenerationMemory:
    """
    The memory that compact sampling needs, in bytes.

    Attributes:
        cache (`int`): Keys and values of one token of a completion in all layers.
        logits (`int`): Logits of one completion's next token, and their scores and probabilities in fp32.
        tokens (`int`): Length of the longest completion with its prompt.
        copy (`int`): The merged copy.
    """

    cache: int
    logits: int
    tokens: int
    copy: int

    @property
    def row(self) -> int:
        """Bytes of one completion."""
        return self.cache * self.tokens + self.logits

    def needed(self, rows: int) -> int:
        """Return the bytes of `rows` completions that are decoded at once, plus the copy."""
        return self.row * rows + self.copy

    def rows_that_fit(self, room: float) -> int:
        """Return how many completions can be decoded at once in `room` bytes."""
        return max(0, int((room - self.copy) // self.row))


def cache_bytes(config, element: int) -> int:
    """
    Return the bytes of a token's keys and values in all layers, with `element` bytes per element. Layers with a
    sliding window do not need more.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size * element


def generation_memory(config, dtype: torch.dtype, tokens: int, copy: int) -> GenerationMemory:
    """
    Predict the memory that compact sampling needs.

    Args:
        config (`PreTrainedConfig`): Configuration of the text model.
        dtype (`torch.dtype`): Data type of its weights.
        tokens (`int`): Length of the longest completion with its prompt.
        copy (`int`): Bytes of the merged copy.
    """
    element = dtype.itemsize
    in_fp32 = 2 * torch.float32.itemsize  # scores and probabilities
    return GenerationMemory(cache_bytes(config, element), config.vocab_size * (element + in_fp32), tokens, copy)


def whole_groups(rows: int, fits: int, group: int) -> int:
    """
    Return how many of `rows` completions to decode at once if at most `fits` fit: in slices of equal size as far as
    possible, and of whole groups if a group fits.
    """
    if fits >= rows:
        return rows
    unit = group if fits >= group else 1
    units = rows // unit
    slices = -(-units // (fits // unit))
    return -(-units // slices) * unit


def process_share(device: torch.device) -> tuple[int, int]:
    """
    Return the bytes that this process uses on a device, and the bytes that it can use: without those of other
    processes and of CUDA itself.
    """
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        return torch.cuda.memory_allocated(device), total
    held = psutil.Process().memory_info().rss
    return held, held + psutil.virtual_memory().available


def readable(size: float) -> str:
    """Return bytes in a unit in which they can be read."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def generation_finding(memory: GenerationMemory, room: float, rows: int, most: int | None, group: int) -> Finding:
    """
    Return the finding about a generation batch: how much memory it needs in addition to weights and optimizer, and
    which `compact_max_rows` fits.

    Args:
        memory ([`GenerationMemory`]): Memory of a completion and of the copy.
        room (`float`): Bytes that are free for it.
        rows (`int`): Completions of a generation batch.
        most (`int`, *optional*): `compact_max_rows`.
        group (`int`): Completions of a prompt.
    """
    at_once = min(rows, most or rows)
    fits = memory.rows_that_fit(room)
    fits_unmerged = int(room // memory.row)
    advised = whole_groups(rows, fits, group) if fits else 0
    if fits < group and fits_unmerged > fits:
        advised = whole_groups(rows, fits_unmerged, group)
        change = (
            f"only {fits} completions fit next to the merged copy: set compact_merge: false and "
            f"compact_max_rows: {advised}"
        )
    elif fits:
        change = f"does not fit at once: set compact_max_rows: {advised}"
    else:
        change = "not even one completion fits: lower max_completion_length, or use a smaller model"
    needed = memory.needed(at_once)
    cache = readable(memory.cache * memory.tokens * at_once)
    logits = readable(memory.logits * at_once)
    number = (
        f"{readable(needed)} needed, {readable(room)} free: {at_once} completions of up to {memory.tokens} tokens "
        f"(cache {cache}, logits {logits}, merged copy {readable(memory.copy)}); {fits:,} would fit"
    )
    return make_finding(
        "memory of a generation batch",
        number,
        needed > room,
        change,
        needed_gib=needed / GIB,
        room_gib=room / GIB,
        rows=at_once,
        fits=fits,
        advised=advised,
    )


def generation_findings(trainer, longest_prompt: int) -> list[Finding]:
    """
    Return the finding about a trainer's generation batch, whose longest prompt has `longest_prompt` tokens. Without
    compact sampling, or without a limit on the length of completions, there is none.
    """
    args = trainer.args
    if trainer.compact is None or args.max_completion_length is None:
        return []
    model = trainer.accelerator.unwrap_model(trainer.model)
    copy = 0 if trainer.compact.copy is None else trainer.compact.copy.bytes
    memory = generation_memory(
        model.config.get_text_config(), model.dtype, longest_prompt + args.max_completion_length, copy
    )
    held, total = process_share(trainer.accelerator.device)
    trained = sum(param.numel() * param.element_size() for param in model.parameters() if param.requires_grad)
    room = max(0.0, USABLE * total - held - MOMENTS * trained)
    rows = args.generation_batch_size
    return [generation_finding(memory, room, rows, args.compact_max_rows, trainer.num_generations)]
