"""Entropy before the first update, and the clip after it."""

from collections.abc import Mapping, Sequence

from eval.readiness.finding import Finding, advice


COLLAPSED, MOST_CLIPPED = 0.05, 0.2


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
    if len(rows) and rows[-1].get("lr") == 0.0:
        findings.append(Finding("learning rate of these steps", "0 (warm-up)", values={"lr": 0.0}))
    return findings
