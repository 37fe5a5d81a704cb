"""Right: a reset does to every optimizer what it says, 8-bit and paged ones included, and to the run."""

from pathlib import Path

import torch

from trl_prorl import ProRLTrainer
from trl_prorl.eval.gpucheck.controls import TRAINED
from trl_prorl.eval.gpucheck.needs import why_skipped
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.gpucheck.training import train
from trl_prorl.eval.stepcost.batches import Batches
from trl_prorl.resets.optimizer_state import MODES, reset_optimizer


RATE, B1, B2, EPS = 0.1, 0.9, 0.99, 1e-8
ALPHA = 0.25
M, V, T = 0.9 * 0.1 * 1 + 0.1 * 3, 0.99 * 0.01 * 1 + 0.01 * 9, 2  # Adam's state after gradients 1 and 3
VALUES = 2**17  # bitsandbytes keeps states of fewer than 4,096 values in 32 bits, and pages none of fewer than 100,000
CLASSES = {  # an optimizer, and what it needs
    "AdamW": ("adamw", ()),
    "fused AdamW": ("fused", ()),
    "capturable AdamW": ("capturable", ("cuda",)),
    "AdamW8bit": ("AdamW8bit", ("bitsandbytes",)),
    "PagedAdamW8bit": ("PagedAdamW8bit", ("bitsandbytes", "cuda")),
    "PagedAdamW32bit": ("PagedAdamW32bit", ("bitsandbytes", "cuda")),
}
TRAINERS = {  # an optimizer's name in the configuration, what it needs, and LoRA's rank
    "adamw_8bit": (("bitsandbytes",), 16),
    "paged_adamw_8bit": (("bitsandbytes", "cuda"), 512),  # 512 × 256 values: enough to be paged
    "adamw_torch_fused": ((), 16),
}


def new_optimizer(kind: str, param: torch.nn.Parameter) -> torch.optim.Optimizer:
    """An Adam of a kind, without weight decay."""
    shared = {"lr": RATE, "betas": (B1, B2), "eps": EPS, "weight_decay": 0.0}
    if kind in ("adamw", "fused", "capturable"):
        return torch.optim.AdamW([param], **shared, **({} if kind == "adamw" else {kind: True}))
    import bitsandbytes

    return getattr(bitsandbytes.optim, kind)([param], **shared)


def update(param: torch.nn.Parameter, optimizer: torch.optim.Optimizer, gradient: float) -> float:
    """The first value's change by an update in which all gradients are the same."""
    before = param.detach().clone()
    param.grad = torch.full_like(param, gradient)
    optimizer.step()
    return (param.detach() - before).flatten()[0].item()


def by_hand(mode: str, gradient: float) -> float:
    """Adam's next update after a reset, from the table in `trl_prorl/resets/optimizer_state.py`."""
    m, v, t = {
        "keep": (M, V, T),
        "hard": (0.0, 0.0, 0),
        "soft": (ALPHA * M, ALPHA * V, T),
        "asym": (0.0, V, T),
        "step": (M, V, 0),
    }[mode]
    m, v, t = B1 * m + (1 - B1) * gradient, B2 * v + (1 - B2) * gradient**2, t + 1
    return -RATE * (m / (1 - B1**t)) / ((v / (1 - B2**t)) ** 0.5 + EPS)


def resets(size: Size, folder: Path) -> Result:
    """Every mode on every optimizer, by hand; then C through the trainer."""
    result = Result()
    for name, (kind, needs) in CLASSES.items():
        if (reason := why_skipped(needs, size)) is not None:
            result.skipped[f"resets of {name}"] = reason
            continue
        for mode in MODES:
            param = torch.nn.Parameter(torch.zeros(VALUES, device=size.device))
            optimizer = new_optimizer(kind, param)
            for gradient in (1.0, 3.0):
                update(param, optimizer, gradient)
            reset_optimizer(optimizer, mode, ALPHA)
            found, expected = update(param, optimizer, 2.0), by_hand(mode, 2.0)
            close = abs(found - expected) <= 1e-3 * abs(expected)
            result.check(f"{name}, {mode}", close, f"first update {found:.6f}, by hand {expected:.6f}")
        if kind.startswith("Paged"):
            states = optimizer.state[param]
            paged = [getattr(states[key], "is_paged", False) for key in ("state1", "state2")]
            result.check(f"{name}: its state is paged", all(paged), f"is_paged {paged}")
    args = size.arguments(
        dtype=torch.float32, shape=size.small, prompts=2, num_generations=4, micro_batch=8, longest=24
    )
    keys = {"beta": 0.3, "ref_reset_every": 2, "optimizer_reset": "hard", "log_update_norm": True} | TRAINED
    for optimizer, (needs, rank) in TRAINERS.items():
        if (reason := why_skipped(needs, size)) is not None:
            result.skipped[f"C with {optimizer}"] = reason
            continue
        args.rank = rank
        ran = train((ProRLTrainer, keys | {"optim": optimizer}), args, Batches(args, 1.0), 2)
        applied = [event["step_applied"] for event in ran.events if event["event"] == "reset"]
        kl = [ran.rows[step]["kl_ref"] for step in applied]
        right = applied == [2, 4] and max(map(abs, kl)) < 1e-6
        result.check(f"C with {optimizer}", right, f"resets at {applied}, by hand [2, 4]; the KL there {kl}")
    return result
