"""
Several micro-batches of an update, computed at once.

A GPU finishes the kernels of a small micro-batch before the host has launched the next ones. So micro-batches are held
back, and TRL's loss runs once, on the rows of all:

    TRL       loss(rows 0 to 7), backward, loss(rows 8 to 15), backward, …, update
    merged    nothing, nothing, …, loss(rows 0 to 31), backward, update

The gradient is the same, up to rounding, if the loss is a sum over the tokens of a window, or a mean over rows, which
is multiplied by the number of micro-batches.
"""

from collections.abc import Callable
from typing import Any

import torch

from ..parts import Part


MicroBatch = dict[str, Any]

# Default share of packed tokens in a merged forward, of the positions of one of TRL's micro-batches. Then its layers
# keep no more memory for the backward pass than TRL's: 69 kB per packed token, 54 per padded one (a Qwen2 of 24
# layers), and the same with checkpointing.
SHARE = 0.75
SHARE_CHECKPOINTED = 1.0


class Merging(Part):
    """
    Holds micro-batches back, and joins them.

    The choice depends on lengths and advantages, not on free memory, so a resume makes the same.

    Args:
        args ([`ProRLConfig`]): The configuration.
        accelerator ([`~accelerate.Accelerator`]): All processes join the same micro-batches.
        packs (`Callable`): Returns whether scoring packs groups.
        rows (`Callable`): Returns the rows of a micro-batch that are computed; `None` means all.
    """

    def __init__(
        self,
        args,
        accelerator,
        packs: Callable[[], bool],
        rows: Callable[[MicroBatch], torch.Tensor | None],
    ):
        self.args = args
        self.accelerator = accelerator
        self.packs = packs
        self.rows = rows
        self.begin()

    def begin(self) -> None:
        self._buffer: list[MicroBatch] | None = None  # the micro-batches of the generation batch
        self._sizes: list[float] = []  # of each, as a share of what one forward may have
        self._first: int | None = None  # the first that is held back
        # By first and end. A later pass must get the same dict: its tensors keep the plans of its rows.
        self._joined: dict[tuple[int, int], MicroBatch] = {}
        self._span = (0, 1)  # of the last one that was returned

    def take(self, buffer: list[MicroBatch], place: int, ends_update: bool) -> MicroBatch | None:
        """
        Take the next micro-batch.

        Args:
            buffer (`list[dict]`): TRL's micro-batches of the generation batch.
            place (`int`): The next one's place.
            ends_update (`bool`): Whether it is the last before an update.

        Returns `dict` or `None`: the rows to compute now; `None` if it is held back.
        """
        if buffer is not self._buffer:
            self.begin()
            self._buffer = buffer
            self._sizes = self._measure(buffer)
        if self._first is None:
            self._first = place
        end = place + 1
        with_next = sum(self._sizes[self._first : end + 1])
        if not ends_update and end < len(buffer) and with_next <= 1.0:
            return None
        self._span = (self._first, end)
        self._first = None
        if self._span == (place, end):
            return buffer[place]
        if self._span not in self._joined:
            self._joined[self._span] = join(buffer[slice(*self._span)])
        return self._joined[self._span]

    def number_in(self, batch: MicroBatch) -> int:
        first, end = self._span
        return end - first if batch is self._joined.get(self._span) else 1

    def write_back(self, batch: MicroBatch) -> None:
        """Copy the loss's changes of a joined batch to its micro-batches: checkpoints contain them."""
        number = self.number_in(batch)
        if number == 1:
            return
        size = len(batch["advantages"]) // number
        for place, micro_batch in enumerate(self._buffer[slice(*self._span)]):
            rows = slice(place * size, (place + 1) * size)
            micro_batch.clear()
            micro_batch.update({name: value[rows] if has_rows(value) else value for name, value in batch.items()})

    def _measure(self, buffer: list[MicroBatch]) -> list[float]:
        """Return micro-batches as shares of a forward's limit; 0 without a limit. Synchronizes with the device."""
        limit = self.args.merge_tokens
        if limit is None and self.args.merge_micro_batches == "on":
            return [0.0] * len(buffer)
        if limit is None:
            limit = padded_positions(buffer[0]) * (SHARE_CHECKPOINTED if self.args.gradient_checkpointing else SHARE)
        tokens = packed_tokens if self.packs() else padded_positions
        computed = [select(micro_batch, self.rows(micro_batch)) for micro_batch in buffer]
        sizes = torch.tensor([tokens(micro_batch) / limit for micro_batch in computed], dtype=torch.float64)
        if self.accelerator.num_processes > 1:  # each runs as many forwards as the others, or they wait forever
            of_all = self.accelerator.gather(sizes.float().to(self.accelerator.device))
            sizes = of_all.view(-1, len(buffer)).amax(0)
        return sizes.tolist()


def has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def join(micro_batches: list[MicroBatch]) -> MicroBatch:
    """Micro-batches of a generation batch have the same widths."""
    joined = {}
    for name, value in micro_batches[0].items():
        joined[name] = torch.cat([one[name] for one in micro_batches]) if has_rows(value) else value
    return joined


def select(batch: MicroBatch, rows: torch.Tensor | None) -> MicroBatch:
    """Return the tokens and masks of some rows of a batch; `None` means all."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    return {name: batch[name] if rows is None else batch[name][rows] for name in names}


def padded_positions(batch: MicroBatch) -> int:
    return batch["prompt_ids"].numel() + batch["completion_ids"].numel()


def packed_tokens(batch: MicroBatch) -> int:
    """Count each prompt once, and its last token once for each completion."""
    prompts = batch["prompt_ids"].masked_fill(batch["prompt_mask"] == 0, -1).tolist()
    different = {tuple(token for token in prompt if token >= 0) for prompt in prompts}
    of_prompts = sum(len(prompt) - 1 for prompt in different)
    return of_prompts + len(prompts) + int(batch["completion_mask"].sum())
