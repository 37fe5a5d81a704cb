"""Does a generation batch fit into memory? Predicted from one token, before anything is sampled."""

import psutil
import torch
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from trl_prorl.eval.readiness.finding import Finding, make_finding
from trl_prorl.fast.batch_cache import cache_among, states_of
from trl_prorl.fast.comparison import plain_model
from trl_prorl.fast.recording import SPAN, full_size, row_size


USABLE = 0.9  # share of the memory; the rest is lost to fragmentation
MOMENTS = 2  # Adam's, each as large as the trained weights; they are allocated at the first update
UPDATED = 3  # further copies of a layer's state while it is updated, by transformers' operators; kernels need fewer
MIB = 2**20
GIB = 2**30


@torch.no_grad()
def row_bytes(model: torch.nn.Module, tokens: int) -> tuple[int, int]:
    """
    Return the bytes that compact sampling needs for one completion, as a forward of one token shows them.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]): The policy.
        tokens (`int`): Length of the completion with its prompt.

    Returns:
        The bytes of keys, values and states in all layers, with those of one layer that is updated; and those of the
        next token's logits, with its scores and probabilities in fp32.
    """
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    outputs = plain_model(model)(input_ids=token, use_cache=True)
    cache = 0
    largest = 0
    for layer in cache_among(outputs).layers:
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            window = getattr(layer, "sliding_window", None) or tokens
            cache += min(tokens, window) * (layer.keys.nbytes + layer.values.nbytes)
        if isinstance(layer, LinearAttentionLayer):
            states = sum(state.nbytes for state in states_of(layer))
            cache += states
            largest = max(largest, states)
    cache += UPDATED * largest
    in_fp32 = 2 * torch.float32.itemsize
    return cache, outputs.logits.nbytes + outputs.logits.shape[-1] * in_fp32


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


def rows_that_fit(
    row: int, copy: int, room: float, rows: int, group: int, recorded: bool = False
) -> tuple[int, int, str]:
    """
    Return the number of completions that fit at once, the number of `rows` to decode at once, and the cure.

    Args:
        row (`int`): Bytes of a completion.
        copy (`int`): Bytes of the merged copy.
        room (`float`): Bytes that are free.
        rows (`int`): Completions of a generation batch.
        group (`int`): Completions of a prompt.
        recorded (`bool`, *optional*, defaults to `False`): Whether sizes are those of recordings.
    """
    fits = max(0, int((room - copy) // row))
    if recorded:
        fits = full_size(fits)
    if fits == 0:
        return 0, 0, "not even one completion fits: lower max_completion_length, or use a smaller model"
    advised = whole_groups(rows, fits, group)
    return fits, advised, f"does not fit at once: set compact_max_rows: {advised}"


def generation_findings(trainer, longest_prompt: int) -> list[Finding]:
    """
    Return the finding about a trainer's generation batch: how much memory it needs in addition to weights and
    optimizer, and which `compact_max_rows` fits. The longest prompt has `longest_prompt` tokens. Without compact
    sampling, or without a limit on the length of completions, there is none.
    """
    args = trainer.args
    if getattr(trainer, "compact", None) is None or args.max_completion_length is None:
        return []
    model = trainer.accelerator.unwrap_model(trainer.model)
    copy = 0 if trainer.compact.copy is None else trainer.compact.copy.bytes
    tokens = longest_prompt + args.max_completion_length
    recorded = trainer.compact.replayed.on
    places = -(-tokens // SPAN) * SPAN if recorded else tokens
    cache, logits = row_bytes(model, places)
    held, total = process_share(trainer.accelerator.device)
    trained = sum(param.nbytes for param in model.parameters() if param.requires_grad)
    room = max(0.0, USABLE * total - held - MOMENTS * trained)
    rows = args.generation_batch_size
    fits, advised, change = rows_that_fit(cache + logits, copy, room, rows, trainer.num_generations, recorded)
    at_once = min(rows, args.compact_max_rows or rows)
    held_rows = row_size(at_once) if recorded else at_once
    needed = (cache + logits) * held_rows + copy
    of_recording = f", recorded as {held_rows} of {places}" if recorded else ""
    number = (
        f"{readable(needed)} needed, {readable(room)} free: {at_once} completions of up to {tokens} "
        f"tokens{of_recording} (cache {readable(cache * held_rows)}, logits {readable(logits * held_rows)}, merged "
        f"copy {readable(copy)}); {fits:,} would fit"
    )
    values = {"needed_gib": needed / GIB, "room_gib": room / GIB, "rows": at_once, "fits": fits, "advised": advised}
    return [make_finding("memory of a generation batch", number, needed > room, change, **values)]
