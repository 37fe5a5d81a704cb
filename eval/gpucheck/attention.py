"""Which attention of packed rows is fastest among those that are exact: of a layer, and of a model's whole pass."""

import statistics
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from trl import GRPOTrainer

from trl_prorl.eval.gpucheck.clock import begin_memory, free, peak_memory, seconds_of
from trl_prorl.eval.gpucheck.cost import quiet_folder
from trl_prorl.eval.gpucheck.exactness import Errors, errors
from trl_prorl.eval.gpucheck.flex import flex
from trl_prorl.eval.gpucheck.needs import why_skipped
from trl_prorl.eval.gpucheck.result import Result, Sheet
from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.gpucheck.varlen import FLASH_2, FLASH_3, TORCH_VARLEN
from trl_prorl.eval.stepcost.arms import ARMS
from trl_prorl.eval.stepcost.batches import Batches
from trl_prorl.eval.stepcost.making import make_trainer
from trl_prorl.scoring.packing import packed_logps
from trl_prorl.scoring.prefix_attention import layout


NOW = "SDPA in blocks, as now"
PADDED = "padded, TRL"
# An error may be so many times that of the blocks in the same dtype, or such a share, and count as rounding.
FACTOR, LEAST = 2.0, {torch.float32: 1e-6, torch.bfloat16: 2e-3}
GAIN = 1.05  # times as fast as now: less is not worth another kernel
WARM_UP = 3  # passes, each of another length, for which kernels may be compiled


class Way(NamedTuple):
    """
    Attributes:
        attention (`Callable`): As `packed_logps` takes it.
        needs (`tuple[str, ...]`): Without which it is skipped.
        backward_on_cpu (`bool`): Whether it has gradients without a GPU.
    """

    attention: Callable
    needs: tuple[str, ...] = ()
    backward_on_cpu: bool = True


WAYS = {
    NOW: Way(layout),
    "FlexAttention, block mask": Way(flex, (), backward_on_cpu=False),
    "variable lengths, torch": Way(TORCH_VARLEN, ("cuda", "torch varlen")),
    "variable lengths, flash_attn 2": Way(FLASH_2, ("cuda", "flash_attn")),
    "variable lengths, flash_attn 3": Way(FLASH_3, ("cuda", "flash_attn_interface")),
}


def attention(size: Size, folder: Path) -> Result:
    """Errors of every way that there is, then seconds of those that are exact."""
    result = Result()
    dtype = torch.bfloat16 if size.on_card else torch.float32
    exact = _exact(result, size, dtype)
    for place, shape in enumerate(size.shapes):
        for scale in sorted({scale for scale, _ in size.settings[: 2 if place == 0 else 1]}):
            _passes(result, size, shape, scale, exact, dtype)
    return result


def _exact(result: Result, size: Size, dtype: torch.dtype) -> dict[str, Way]:
    """The ways that are there and exact."""
    found, sheet, allowed = {}, [], None
    for name, way in WAYS.items():
        if (reason := why_skipped(way.needs, size)) is not None:
            result.skipped[name] = reason
            continue
        gradients = size.on_card or way.backward_on_cpu
        try:
            error = errors(way.attention, dtype, size.device, gradients)
        except Exception as problem:  # of whatever kind: a kernel that this card or this torch does not have
            if name == NOW:
                raise  # the default has to work
            result.skipped[name] = failing(problem)
            continue
        if not gradients:
            result.skipped[f"{name}: gradients and seconds"] = "without a GPU it computes values only"
        allowed = allowed or Errors(*(max(FACTOR * part, LEAST[dtype]) for part in error))
        right = error.values <= allowed.values and (error.gradients is None or error.gradients <= allowed.gradients)
        if name == NOW:
            # Against float64 at the dtype's own rounding: it is the yardstick of the others.
            right = error.values <= 10 * LEAST[dtype]
        said = f"values {error.values:.1e}, gradients {shown(error.gradients)}, allowed {allowed.values:.1e}"
        result.check(f"exact: {name}", right, said)
        sheet.append([name, error.values, error.gradients, "yes" if right else "no"])
        if right and gradients:
            found[name] = way
    columns = ["attention", "error of values", "error of gradients", "exact"]
    note = "Against one dense mask in float64, root mean square, as shares of the exact values' own."
    result.sheets.append(Sheet(f"Exactness of attention in packed rows, {str(dtype)[6:]}", columns, sheet, note))
    return found


def shown(error: float | None) -> str:
    return "not computed" if error is None else f"{error:.1e}"


def failing(problem: Exception) -> str:
    """Why a candidate is left out: its error, in a line."""
    return f"fails here: {type(problem).__name__}: {' '.join(str(problem).split())[:160]}"


def _passes(result: Result, size: Size, shape: str, scale: float, ways: dict[str, Way], dtype: torch.dtype) -> None:
    """Seconds and memory of a forward with its backward over the same micro-batches."""
    # One row holds about as many tokens at every scale, as it does in training, where memory bounds it.
    args = size.arguments(dtype=dtype, shape=shape, prompts=max(1, round(size.prompts / scale)))
    measured = _measured(result, size, args, scale, ways)
    free(size)
    seconds = {name: took for name, (took, _) in measured.items()}
    gain = {name: seconds[NOW] / took if NOW in seconds else None for name, took in seconds.items()}
    rows = [[name, took, gain[name], above] for name, (took, above) in measured.items()]
    title = f"{shape}, {scale:g}× gold answers, {args.prompts} × {args.num_generations} completions in one row"
    columns = ["attention", "forward and backward, s", f"× as fast as {NOW}", "peak above the model, GiB"]
    note = decision(seconds) if size.on_card else "At toy size nothing is decided."
    result.sheets.append(Sheet(f"Attention: {title}", columns, rows, note))
    result.facts[f"fastest, {title}"] = fastest(seconds)


def _measured(
    result: Result, size: Size, args: Namespace, scale: float, ways: dict[str, Way]
) -> dict[str, tuple[float, float | None]]:
    """By way the median seconds, and the peak above the model in GiB."""
    batches, found = Batches(args, scale), {}
    with quiet_folder() as folder:
        trainer = make_trainer("A packed", ARMS["A packed"], args, batches, 2, False, folder)
        model = trainer.model.train()
        drawn = [padded(*batches.draw(number), size.device) for number in range(WARM_UP + args.rounds)]
        for name in (*ways, PADDED):
            left_out = f"{name}, {args.shape}, {scale:g}× gold answers"
            if (reason := size.no_time) is not None:
                result.skipped[left_out] = reason
                continue

            def once(batch, name=name):
                with trainer.accelerator.autocast():
                    if name == PADDED:
                        logps = GRPOTrainer._get_per_token_logps_and_entropies(trainer, model, *batch)[0]
                    else:
                        logps, _ = packed_logps(model, *batch, attention=ways[name].attention)
                logps.sum().backward()

            try:
                for batch in drawn[:WARM_UP]:
                    once(batch)
                held = begin_memory(size)
                times = [seconds_of(lambda batch=batch: once(batch), size) for batch in drawn[WARM_UP:]]
                peak = peak_memory(size)
            except Exception as problem:  # of whatever kind: a candidate may be exact and not bear a whole model
                memory = isinstance(problem, torch.OutOfMemoryError)
                if not memory and name in (NOW, PADDED):
                    raise
                result.skipped[left_out] = "out of memory" if memory else failing(problem)
                continue
            finally:
                model.zero_grad()
                free(size)
            found[name] = statistics.median(times), None if peak is None else peak - held
    return found


def fastest(seconds: dict[str, float]) -> str | None:
    """The way to take: the one of now, unless another one is worth it."""
    packed = {name: value for name, value in seconds.items() if name != PADDED}
    if NOW not in packed:
        return None
    best = min(packed, key=packed.get)
    return best if packed[NOW] / packed[best] >= GAIN else NOW


def decision(seconds: dict[str, float]) -> str:
    """A sentence about the default."""
    best = fastest(seconds)
    if best is None:
        return "Nothing is decided: the attention of now was not measured."
    if best == NOW:
        return f"The default stays: nothing exact is {GAIN:g} times as fast."
    return f"{best} should become the default on this card: {seconds[NOW] / seconds[best]:.2f} times as fast as now."


def padded(
    prompts: list[list[int]], completions: list[list[int]], device: str
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Ids and mask as TRL pads a micro-batch, and the width of its completions."""
    before, after = max(map(len, prompts)), max(map(len, completions))
    ids = torch.zeros(len(prompts), before + after, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        place = slice(before - len(prompt), before + len(completion))
        ids[row, place], mask[row, place] = torch.tensor([*prompt, *completion]), 1
    return ids.to(device), mask.to(device), after
