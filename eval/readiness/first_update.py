"""The learning rate, and the first updates: entropy before, the way the policy went, the clip after."""

import math
from collections.abc import Mapping, Sequence

import torch

from trl_prorl.eval.readiness.finding import STOP, Finding, advice
from trl_prorl.objective import kl
from trl_prorl.objective.anchors import completion_mask


COLLAPSED, MOST_CLIPPED = 0.05, 0.2
# nats per token. Two updates move the embedded models by at most 0.003 with the shipped recipes, by 0.06 at ten times
# their rate (`recipes/tiny/stress`, which learns and collapses slowly), by 0.11 to 0.4 at twenty times, where the
# reward is 0 within 20 steps, and by 0.5 to 5 beyond.
MOST_MOVED = 0.1
FULL_RATE = 2e-6  # of full fine-tuning; LoRA takes about ten times as much


def rate_findings(rate: float, lora: bool) -> list[Finding]:
    """What the learning rate says before any step; `lora`: whether adapters are trained, and not all weights."""
    if rate == 0.0:
        return [Finding("learning rate", "0", "raise learning_rate: no update changes the policy", STOP, {"lr": rate})]
    cure = "raise learning_rate to 1e-5 or more: LoRA takes about ten times the rate of full fine-tuning"
    return [Finding("learning rate", f"{rate:g}", **advice(lora and rate <= FULL_RATE, cure), values={"lr": rate})]


def moved(old: torch.Tensor, new: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> float:
    """
    KL(old ‖ new) in nats per token, by k3 on what the old policy sampled, which is finite where the ratio overflows;
    from log-probabilities before and after the updates, shape (B, T), and the batch with their mask.
    """
    mask = completion_mask(batch)
    return (torch.where(mask.bool(), kl.kl_values(old, new, "k3"), 0.0).sum() / mask.sum()).item()


def moved_finding(distance: float, rates: Sequence[float]) -> Finding:
    """The finding of [`moved`], after updates by `rates`, which are low in a warm-up."""
    return Finding(
        f"KL to the policy before the first {len(rates)} updates",
        f"{distance:.2g} nats per token, by learning rates of {', '.join(f'{rate:g}' for rate in rates)}",
        **advice(not distance <= MOST_MOVED, "lower learning_rate: the first updates destroy the policy", STOP),
        values={"kl": distance if math.isfinite(distance) else None, "lr": list(rates)},
    )


def update_findings(rows: Sequence[Mapping[str, float]]) -> list[Finding]:
    """
    What the first rows of the record say of the first update.

    Args:
        rows (`Sequence[Mapping]`): One or two rows. In the first, every ratio is 1 unless it holds several updates'
            samples; the second shows what the first update did.
    """
    findings = []
    if (entropy := rows[0].get("entropy")) is not None:
        cure = "raise temperature, or begin from a model that is less sure: completions of a prompt will be alike"
        findings.append(
            Finding(
                "entropy at the first update",
                f"{entropy:.3f} nats per token",
                **advice(entropy < COLLAPSED, cure),
                values={"entropy": entropy},
            )
        )
    clipped = [row["clip_region_mean"] for row in rows if "clip_region_mean" in row]
    if clipped:
        cure = "lower learning_rate or num_iterations: one update leaves the region in which the ratio is trusted"
        findings.append(
            Finding(
                "tokens clipped after it",
                f"{100 * clipped[-1]:.1f} %",
                **advice(clipped[-1] > MOST_CLIPPED, cure),
                values={"clip_ratio": clipped[-1], "rows": len(rows)},
            )
        )
    return findings
