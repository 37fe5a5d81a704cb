"""
Right: the numbers of every arm are TRL's. An arm and its control train on the same batches from the same weights.

The yardstick is rounding, as the device makes it: the control against itself, once with half a micro-batch and once
with another kernel of the same attention, which change nothing else. Adam makes more of it in each update, in the arm
as in the control.
"""

from argparse import Namespace
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from trl_prorl import ProRLTrainer
from trl_prorl.eval.gpucheck.clock import free
from trl_prorl.eval.gpucheck.controls import CONTROLS, TRAINED
from trl_prorl.eval.gpucheck.result import Result, Sheet
from trl_prorl.eval.gpucheck.size import Size
from trl_prorl.eval.gpucheck.training import Trained, train
from trl_prorl.eval.stepcost.batches import Batches


# The allowance in multiples of rounding, as for the probe of packing (`trl_prorl/scoring/packing_probe.py`).
FACTOR = 4.0
# What two runs may differ by in any case, as a share: units in the last place of fp32 and of bf16, a few.
LEAST = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
EVERY = {"beta": 0.3, "ref_reset_every": 1}
REUSED = {"reuse_old_logps": True}
PACKED = REUSED | {"pack_groups": "on"}
OURS = {  # by arm its control and its keys
    "all off": ("TRL, fixed reference", {"beta": 0.3}),
    "all off, no reference": ("TRL, no reference", {}),
    "control, reused": ("TRL, fixed reference", {"beta": 0.3} | REUSED),
    "control, packed": ("TRL, fixed reference", {"beta": 0.3} | PACKED),
    "A": ("TRL, reference moved every generation", EVERY),
    "A, reused": ("TRL, reference moved every generation", EVERY | REUSED),
    "A, packed": ("TRL, reference moved every generation", EVERY | PACKED),
    "B": ("TRL, reference moved every generation", {"beta_old": 0.3}),
    "B, reused": ("TRL, reference moved every generation", {"beta_old": 0.3} | REUSED),
    "B, packed": ("TRL, reference moved every generation", {"beta_old": 0.3} | PACKED),
    "C": ("TRL, moved, Adam cleared", EVERY | {"optimizer_reset": "hard"}),
    "C, reused": ("TRL, moved, Adam cleared", EVERY | {"optimizer_reset": "hard"} | REUSED),
    "C, packed": ("TRL, moved, Adam cleared", EVERY | {"optimizer_reset": "hard"} | PACKED),
}
FEW = {"float32": ("all off", "A, packed", "B, packed", "C, packed"), "bfloat16": ("A, packed",)}


def distances(one: Trained, other: Trained) -> dict[str, float]:
    """How far apart two runs are, each as a share of the second's own size."""
    losses, others = (torch.tensor(run.losses, dtype=torch.float64) for run in (one, other))
    moved = other.end - other.start
    return {
        "losses": share(losses - others, others),
        "gradient": share(one.gradient - other.gradient, other.gradient),
        "weights": share(one.end - other.end, moved),
    }


def share(difference: torch.Tensor, whole: torch.Tensor) -> float:
    return (difference.norm() / whole.norm().clamp(min=1e-300)).item()


def rounding(arm: tuple, args: Namespace, batches: Batches, control: Trained) -> dict[str, float]:
    """The yardstick: the larger of two changes that change nothing but the order of additions."""
    half = Namespace(**vars(args) | {"micro_batch": args.micro_batch // 2})
    halved = train(arm, half, batches, 2)
    # The loss of an update, whose micro-batches count half each.
    halved.losses = [sum(pair) for pair in zip(halved.losses[::2], halved.losses[1::2], strict=True)]
    with sdpa_kernel(SDPBackend.MATH):
        other = train(arm, args, batches, 2)
    found = [distances(changed, control) for changed in (halved, other)]
    return {name: max(each[name] for each in found) for name in found[0]}


def parity(size: Size, folder: Path) -> Result:
    """Losses, first gradients, and weights after five steps, in fp32 and in bf16."""
    result = Result()
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        args = size.arguments(dtype=dtype, shape=size.small, prompts=2, num_generations=4, micro_batch=8, longest=24)
        batches = Batches(args, 1.0)
        chosen = {arm: OURS[arm] for arm in (OURS if size.thorough else FEW[name])}
        controls, allowed = {}, {}
        rows = []
        for arm, (control, keys) in chosen.items():
            if control not in controls:
                controls[control] = train(CONTROLS[control], args, batches, 2)
                noise = rounding(CONTROLS[control], args, batches, controls[control])
                allowed[control] = {what: FACTOR * max(value, LEAST[dtype]) for what, value in noise.items()}
            ours = train((ProRLTrainer, keys | TRAINED), args, batches, 2)
            same = torch.equal(ours.start, controls[control].start)
            result.check(
                f"{name}, {arm}: starts as its control", same, "equal to the bit" if same else "other weights"
            )
            found = distances(ours, controls[control])
            for what, value in found.items():
                limit = allowed[control][what]
                result.check(
                    f"{name}, {arm}: {what}", value <= limit, f"{value:.1e} off {control}, allowed {limit:.1e}"
                )
            rows.append([arm, control, *found.values(), *allowed[control].values()])
            free(size)
        columns = ["arm", "against", *("losses off", "gradient off", "weights off")]
        columns += ["losses allowed", "gradient allowed", "weights allowed"]
        note = f"As shares of the control's own. Allowed: {FACTOR:g} times the control's own rounding."
        result.sheets.append(Sheet(f"Parity with TRL after 5 updates, {name}", columns, rows, note))
    return result
