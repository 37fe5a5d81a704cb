"""Does a generation batch fit into memory? Predicted from shapes, before anything is sampled."""

from dataclasses import dataclass

import psutil
import torch

from trl_prorl.eval.readiness.finding import Finding, make_finding


USABLE = 0.9  # of the memory: the rest is fragments
MOMENTS = 2  # of Adam, each as large as what is trained; there are none before the first update
GIB = 2**30


@dataclass(frozen=True)
class GenerationMemory:
    """
    What compact sampling takes, in bytes.

    Attributes:
        cache (`int`): Keys and values of one token of a completion in all layers.
        logits (`int`): Logits of one completion's next token, and their scores and probabilities in fp32.
        tokens (`int`): Of the longest completion, with its prompt.
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
        """Bytes of so many completions that are decoded at once, and of the copy."""
        return self.row * rows + self.copy

    def rows_that_fit(self, room: float) -> int:
        """Return the most completions that can be decoded at once in so many bytes."""
        return max(0, int((room - self.copy) // self.row))


def cache_bytes(config, element: int) -> int:
    """
    Return the bytes of a token's keys and values in all layers, of elements of so many bytes each. Layers with a
    sliding window take no more.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size * element


def generation_memory(config, dtype: torch.dtype, tokens: int, copy: int) -> GenerationMemory:
    """
    Predict what compact sampling takes.

    Args:
        config (`PreTrainedConfig`): Of the text model.
        dtype (`torch.dtype`): Of its weights.
        tokens (`int`): Of the longest completion, with its prompt.
        copy (`int`): Bytes of the merged copy.
    """
    element = dtype.itemsize
    in_fp32 = 2 * torch.float32.itemsize  # scores and probabilities
    return GenerationMemory(cache_bytes(config, element), config.vocab_size * (element + in_fp32), tokens, copy)


def whole_groups(rows: int, fits: int, group: int) -> int:
    """
    Return how many of `rows` completions to decode at once if at most `fits` can be: in slices that are as equal as
    possible, of whole groups where one fits.
    """
    if fits >= rows:
        return rows
    unit = group if fits >= group else 1
    units = rows // unit
    slices = -(-units // (fits // unit))
    return -(-units // slices) * unit


def process_share(device: torch.device) -> tuple[int, int]:
    """
    Return the bytes that this process holds on a device, and those that there are for it: what other processes hold,
    and CUDA itself, is not.
    """
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        return torch.cuda.memory_allocated(device), total
    held = psutil.Process().memory_info().rss
    return held, held + psutil.virtual_memory().available


def generation_finding(memory: GenerationMemory, room: float, rows: int, most: int | None, group: int) -> Finding:
    """
    Return the finding of a generation batch: how much memory it takes beside weights and optimizer, and which
    `compact_max_rows` fits.

    Args:
        memory ([`GenerationMemory`]): What a completion and the copy take.
        room (`float`): Bytes that there are for it.
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
        change = f"set compact_merge: false, and compact_max_rows: {advised}; beside the merged copy {fits} would fit"
    elif fits:
        change = f"set compact_max_rows: {advised}"
    else:
        change = "lower max_completion_length, or take a smaller model"
    needed = memory.needed(at_once)
    cache = memory.cache * memory.tokens * at_once
    logits = memory.logits * at_once
    number = (
        f"{needed / GIB:.1f} of {room / GIB:.1f} GiB: {at_once} completions at once of up to {memory.tokens} tokens "
        f"(cache {cache / GIB:.1f}, logits {logits / GIB:.1f}, merged copy {memory.copy / GIB:.1f}); {fits} fit"
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
    Return what a generation batch of a trainer takes, whose longest prompt has so many tokens; nothing where
    something else than compact sampling decodes, or where the length of a completion has no limit.
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
