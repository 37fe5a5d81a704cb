"""The first optimizer steps of a run, done for real in a folder that is thrown away, and what they say."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import TrainerCallback

from trl_prorl.eval.readiness.finding import STOP, Finding, make_finding
from trl_prorl.eval.readiness.memory import GIB, process_share
from trl_prorl.objective import kl
from trl_prorl.objective.masks import completion_mask
from trl_prorl.record.run_files import METRICS_FILE
from trl_prorl.record.terminal import LORA_RATES


MOST = 2  # steps
COLLAPSED = 0.05  # nats per token of entropy
MOST_CLIPPED = 0.2  # share of tokens
# nats per token. Two updates move the embedded models by at most 0.003 with the shipped recipes, by 0.06 at ten times
# their rate (it learns and collapses slowly), by 0.11 to 0.4 at twenty times, where the reward is 0 within 20 steps,
# and by 0.5 to 5 beyond.
MOST_MOVED = 0.1
FULL_RATE = 2e-6  # of full fine-tuning; LoRA takes about ten times as much


@dataclass(frozen=True)
class FirstSteps:
    """
    What the first optimizer steps of a run recorded.

    Attributes:
        rows (`list[dict]`): Rows of the record.
        max_steps (`int`): Optimizer steps of the whole run.
        steps_per_generation (`float`): Optimizer steps from one generation to the next.
        held_gib (`float`, *optional*): Memory of a GPU between two steps, of weights and optimizer.
        total_gib (`float`, *optional*): Memory of a GPU that there is for this process.
    """

    rows: list[dict]
    max_steps: int
    steps_per_generation: float
    held_gib: float | None = None
    total_gib: float | None = None


class StopAfter(TrainerCallback):
    """Stops a run after some steps, each of which it tells; its schedule is that of the whole run."""

    def __init__(self, steps: int, tell: Callable[[str], None]):
        self.steps = steps
        self.tell = tell

    def on_step_end(self, args, state, control, **kwargs):
        self.tell(f"step {state.global_step} of {self.steps} is done")
        if state.global_step >= self.steps:
            control.should_training_stop = True


def first_steps(trainer, steps: int = MOST, tell: Callable[[str], None] = lambda line: None) -> FirstSteps:
    """
    Train a few steps at most, `tell` gets a line after each; the trainer neither saves nor evaluates, and the caller
    throws its `output_dir` away.
    """
    trainer.add_callback(StopAfter(steps, tell))
    trainer.train()
    args = trainer.args
    device = trainer.accelerator.device
    rows = [json.loads(line) for line in Path(trainer.run_dir, METRICS_FILE).read_text().splitlines()]
    held_gib = None
    total_gib = None
    if device.type == "cuda":
        held, total = process_share(device)
        held_gib = held / GIB
        total_gib = total / GIB
    return FirstSteps(
        rows=rows,
        max_steps=trainer.state.max_steps,
        steps_per_generation=args.generate_every / args.gradient_accumulation_steps,
        held_gib=held_gib,
        total_gib=total_gib,
    )


def rate_findings(rate: float, lora: bool) -> list[Finding]:
    """What the learning rate says before any step; `lora`: whether adapters are trained, and not all weights."""
    if rate == 0.0:
        return [Finding("learning rate", "0", "raise learning_rate: no update changes the policy", STOP, {"lr": rate})]
    cure = f"set learning_rate to {LORA_RATES}: LoRA takes ten times the rate of full fine-tuning or more"
    return [make_finding("learning rate", f"{rate:g}", lora and rate <= FULL_RATE, cure, lr=rate)]


def kl_after_updates(old: torch.Tensor, new: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> float | None:
    """
    KL(old ‖ new) in nats per token, by k3 on what the old policy sampled, which is finite where the ratio overflows;
    from log-probabilities before and after the updates, shape (B, T), and the batch with their mask. `None` if no
    token counts.
    """
    mask = completion_mask(batch)
    if not mask.any():
        return None
    values = torch.where(mask.bool(), kl.kl_values(old, new, "k3"), 0.0)
    return (values.sum() / mask.sum()).item()


def kl_finding(distance: float | None, rates: Sequence[float]) -> Finding:
    """Return the finding of [`kl_after_updates`], after updates by `rates`, which are low in a warm-up."""
    what = f"KL to the policy before the first {len(rates)} updates"
    if distance is None:  # by mask_truncated_completions
        return Finding(what, "not measured: every completion of the first batch was cut off")
    return make_finding(
        what,
        f"{distance:.2g} nats per token, by learning rates of {', '.join(f'{rate:g}' for rate in rates)}",
        not distance <= MOST_MOVED,
        "lower learning_rate: the first updates destroy the policy",
        STOP,
        kl=distance if math.isfinite(distance) else None,
        lr=list(rates),
    )


def update_findings(rows: Sequence[Mapping[str, float]]) -> list[Finding]:
    """
    What the first one or two rows of the record say of the first update: in the first every ratio is 1, unless it
    holds several updates' samples; the second shows what the first update did.
    """
    findings = []
    entropy = rows[0].get("entropy")
    if entropy is not None:
        cure = "raise temperature, or begin from a model that is less sure: completions of a prompt will be alike"
        number = f"{entropy:.3f} nats per token"
        findings.append(
            make_finding("entropy at the first update", number, entropy < COLLAPSED, cure, entropy=entropy)
        )
    clipped = [row["clip_region_mean"] for row in rows if "clip_region_mean" in row]
    if clipped:
        cure = "lower learning_rate or num_iterations: one update leaves the region in which the ratio is trusted"
        share = clipped[-1]
        number = f"{100 * share:.1f} %"
        wrong = share > MOST_CLIPPED
        findings.append(make_finding("tokens clipped after it", number, wrong, cure, clip_ratio=share, rows=len(rows)))
    return findings
