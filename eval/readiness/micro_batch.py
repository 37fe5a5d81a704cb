"""How many rows may a micro-batch have? A forward and a backward pass of each size is tried on a GPU."""

import gc
from collections.abc import Callable
from functools import partial

import torch

from trl_prorl.cli.prompt_rows import has_images
from trl_prorl.config import ProRLConfig
from trl_prorl.eval.readiness.finding import LOOK, Finding
from trl_prorl.eval.readiness.memory import MOMENTS, USABLE, process_share
from trl_prorl.eval.readiness.samples_of import score_rows
from trl_prorl.trainer import ProRLTrainer


WHAT = "largest micro-batch that fits"
FIRST = 8  # first token id of a tried row; special tokens have lower ones


def micro_batch_findings(
    trainer: ProRLTrainer, longest_prompt: int, measure: Callable[[int], float] | None = None, limit: float = 0.0
) -> list[Finding]:
    """
    Return the finding about `per_device_train_batch_size`; nothing without a GPU, for images, and for completions
    without a limit.

    Args:
        trainer ([`ProRLTrainer`]): It has done its first steps, or has run out of memory in them.
        longest_prompt (`int`): Tokens of the longest prompt.
        measure (`Callable`, *optional*): Returns the bytes of an update with a number of rows in a micro-batch, or
            raises `torch.OutOfMemoryError`. By default a pass on the GPU is measured.
        limit (`float`, *optional*): Bytes that may be used, for `measure`.
    """
    args = trainer.args
    if args.max_completion_length is None or has_images(trainer):
        return []
    device = trainer.accelerator.device
    if measure is None:
        if device.type != "cuda":
            return []
        measure = partial(update_bytes, trainer, longest_prompt)
        limit = USABLE * process_share(device)[1]
    rows = largest_that_fits(same_updates(trainer), measure, limit)
    return [describe(args, rows)]


def same_updates(trainer: ProRLTrainer) -> list[int]:
    """Return the sizes of a micro-batch with which the updates are the same, up to rounding, smallest first."""
    args = trainer.args
    rows = args.per_device_train_batch_size
    if args.compares_tokens is not None or trainer.own_method is not None:  # a loss that sees the micro-batch
        return [rows]
    total = rows * args.exchangeable_micro_batches
    return [size for size in range(1, total + 1) if total % size == 0]


def largest_that_fits(sizes: list[int], measure: Callable[[int], float], limit: float) -> int:
    """Return the largest of `sizes`, in ascending order, whose bytes are within `limit`; 0 if none is."""
    low = 0
    high = len(sizes)
    while low < high:
        middle = (low + high) // 2
        if fits(sizes[middle], measure, limit):
            low = middle + 1
        else:
            high = middle
    return sizes[low - 1] if low else 0


def fits(rows: int, measure: Callable[[int], float], limit: float) -> bool:
    try:
        return measure(rows) <= limit
    except torch.OutOfMemoryError:
        return False
    finally:
        gc.collect()  # a caught error has kept the tensors of its frames
        torch.cuda.empty_cache()


def update_bytes(trainer: ProRLTrainer, longest_prompt: int, rows: int) -> float:
    """
    Return the peak of allocated bytes in a forward and a backward pass of `rows` rows, with the longest prompts and
    completions of the run. Adam's moments are added if there are none yet.
    """
    model = trainer.model
    policy = trainer.accelerator.unwrap_model(model)
    device = trainer.accelerator.device
    length = trainer.args.max_completion_length
    # Each group has its own prompt, which is computed once.
    groups = torch.arange(rows, device=device) // trainer.num_generations
    vocabulary = policy.get_input_embeddings().weight.size(0)
    tokens = (FIRST + groups) % vocabulary
    ids = tokens[:, None].expand(rows, longest_prompt + length).contiguous()
    if trainer.compact is not None:
        trainer.compact.release()  # a run keeps graphs only if the largest step leaves room for them
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model.train()
    try:
        with trainer.compute_loss_context_manager():
            logps = score_rows(trainer, ids, torch.ones_like(ids), length, compute_entropy=True)[0]
        logps.mean().backward()
    finally:
        model.zero_grad(set_to_none=True)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    if trainer.optimizer is not None and trainer.optimizer.state:
        return peak
    return peak + MOMENTS * sum(param.nbytes for param in policy.parameters() if param.requires_grad)


def describe(args: ProRLConfig, rows: int) -> Finding:
    """Return the finding about a run whose largest micro-batch that fits has `rows` rows; 0 means that none fits."""
    before = args.per_device_train_batch_size
    number = f"{rows} rows (now {before})"
    values = {"rows": rows, "now": before}
    if rows == before:
        return Finding(WHAT, number, values=values)
    if rows == 0:
        change = "does not fit: lower max_completion_length, set gradient_checkpointing: true, or use a smaller model"
        return Finding(WHAT, number, change, LOOK, values)
    reason = "does not fit" if rows < before else "the same updates, up to rounding, need fewer forward passes"
    accumulation = args.gradient_accumulation_steps * before // rows
    change = f"{reason}: set per_device_train_batch_size: {rows} and gradient_accumulation_steps: {accumulation}"
    if args.steps_per_generation != args.gradient_accumulation_steps:
        change += f" and steps_per_generation: {args.steps_per_generation * before // rows}"
    values["gradient_accumulation_steps"] = accumulation
    return Finding(WHAT, number, change, LOOK, values)
