"""Right: what a recipe may ask of the model, gradient checkpointing and a base in 4 bits, leaves the numbers right."""

from pathlib import Path

import torch

from trl_prorl import ProRLTrainer
from trl_prorl.eval.gpucheck.clock import free
from trl_prorl.eval.gpucheck.controls import CONTROLS, TRAINED
from trl_prorl.eval.gpucheck.needs import why_skipped
from trl_prorl.eval.gpucheck.parity import EVERY, FACTOR, LEAST, PACKED, distances, rounding
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.runs import make_run
from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.gpucheck.training import lines, train
from trl_prorl.eval.stepcost.batches import Batches


CONTROL = "TRL, reference moved every generation"
# An update large enough for the KL to be told from the rounding of bf16.
FOUR_BIT = {"bf16": True, "pack_groups": "on", "beta": 0.3, "ref_reset_every": 2, "learning_rate": 3e-3}


def models(size: Size, folder: Path) -> Result:
    """Gradient checkpointing against TRL without it, in fp32 and bf16; a 4-bit base through the trainer."""
    result = Result()
    for dtype in (torch.float32, torch.bfloat16)[: 2 if size.thorough else 1]:
        name = str(dtype).removeprefix("torch.")
        args = size.arguments(dtype=dtype, shape=size.small, prompts=2, num_generations=4, micro_batch=8, longest=24)
        batches = Batches(args, 1.0)
        control = train(CONTROLS[CONTROL], args, batches, 2)
        allowed = rounding(CONTROLS[CONTROL], args, batches, control)
        allowed = {what: FACTOR * max(value, LEAST[dtype]) for what, value in allowed.items()}
        for arm, keys in (("A", EVERY), ("A, packed", EVERY | PACKED)):
            found = distances(train((ProRLTrainer, keys | TRAINED), args, batches, 2, checkpointing=True), control)
            for what, value in found.items():
                holds = value <= allowed[what]
                said = f"{value:.1e} off {CONTROL}, allowed {allowed[what]:.1e}"
                result.check(f"gradient checkpointing, {name}, {arm}: {what}", holds, said)
            free(size)
    if (reason := why_skipped(("cuda", "bitsandbytes"), size)) is not None:
        result.skipped["a base in 4 bits"] = reason
    else:
        _four_bits(result, size, folder)
    return result


def _four_bits(result: Result, size: Size, folder: Path) -> None:
    from transformers import BitsAndBytesConfig

    quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    out = folder / "four_bits"
    # The probe of packing compares packed rows with padded rows on this very model, and refuses it if they differ.
    trainer = make_run(size, out, FOUR_BIT, quantization_config=quantised)
    trainer.train()
    rows = lines(out / "metrics.jsonl")
    kinds = {type(module).__name__ for module in trainer.model.modules()}
    result.check("a base in 4 bits: it is", "Linear4bit" in kinds, f"layers {sorted(kinds)}")
    moved = [row["kl_ref"] for row in rows]
    zero = len(moved) == 6 and max(abs(moved[step]) for step in (0, 2, 4)) < 3e-4 < moved[1]
    result.check("a base in 4 bits: the KL is about 0 after a reset", zero, f"kl_ref {moved}")
