"""The intervals over prompts, simulated. Run as a script, this file prints the table of docs/evaluation.md."""

import math
from pathlib import Path

import numpy as np
import pytest

from trl_prorl.eval.analysis.statistics import paired_difference, pass_at_k_per_prompt, prompt_interval


PROMPTS = (24, 64, 128, 512)
SAMPLES_AND_K = ((1, 1), (64, 1), (64, 8), (64, 64))
UNSOLVABLE = (0.0, 0.01, 0.05, 0.2)  # shares of the prompts
# Success rates of the other prompts: a and b of a beta distribution.
ALIKE, MIXED = (1e6, 1e6), (0.4, 0.4)
DIFFICULTIES = {"solved": (1e6, 1e-6), "alike, at .5": ALIKE, "mixed": MIXED, "easy": (5, 0.5), "hard": (0.5, 8)}
DRAWS = 1000
HEADER = ["prompts", "pass@k covers", "gain covers", "width, mixed", "width, alike"]


def expected_pass_at_k(a: float, b: float, k: int) -> float:
    """1 - E(1 - p)^k for p ~ Beta(a, b)."""
    return 1 - math.prod((b + i) / (a + b + i) for i in range(k))


def simulated(prompts: int) -> list[str]:
    """Return a row of the table: the lowest shares covered, and widths at .5 against the bootstrap's."""
    source = np.random.default_rng(prompts)
    covered, gain_covered, widths = [], [], {}
    for n, k in SAMPLES_AND_K:
        values_of = pass_at_k_per_prompt(range(n + 1), n, k)  # by the number of correct samples
        for a, b in DIFFICULTIES.values():
            rates = source.beta(a, b, (DRAWS, prompts))
            solvable_mean = expected_pass_at_k(a, b, k)
            before = values_of[source.binomial(n, rates)]
            for unsolvable in UNSOLVABLE:
                lost = source.random(rates.shape) < unsolvable
                after = values_of[source.binomial(n, np.where(lost, 0.0, rates))]
                true_mean = (1 - unsolvable) * solvable_mean
                intervals = np.array([prompt_interval(values) for values in after])
                covered.append(share_covered(intervals, true_mean))
                for trained, true_gain in (
                    (after, true_mean - solvable_mean),
                    (1.0 - lost, 1 - unsolvable - solvable_mean),
                ):
                    pairs = zip(trained, before, strict=True)
                    gains = np.array([paired_difference(*pair)[1:] for pair in pairs])
                    gain_covered.append(share_covered(gains, true_gain))
                if k == 1 and unsolvable == 0:
                    bootstrapped = 2 * 1.96 * after.std(axis=1).mean() / math.sqrt(prompts)
                    widths[n, a, b] = np.ptp(intervals, axis=1).mean() / max(bootstrapped, 1e-12)
    shares = [f"{min(shares):.3f}" for shares in (covered, gain_covered)]
    return [str(prompts), *shares, *(f"{widths[64, *difficulty]:.2f}" for difficulty in (MIXED, ALIKE))]


def share_covered(intervals: np.ndarray, value: float) -> float:
    low, high = intervals.T
    return float(np.mean((low <= value + 1e-9) & (value - 1e-9 <= high)))


@pytest.mark.slow
@pytest.mark.parametrize("prompts", PROMPTS)
def test_intervals_cover_where_some_prompts_cannot_be_solved(prompts):
    """The standard error of a share is .007, and the lowest of 80 (160 gains) lies about 2.5 of it too low."""
    row = simulated(prompts)
    assert min(map(float, row[1:3])) >= 0.93 - 2.5 * 0.007
    page = Path(__file__).parents[3] / "docs" / "evaluation.md"
    assert " | ".join(row) in page.read_text()


if __name__ == "__main__":
    for cells in [HEADER, ["---"] * len(HEADER), *map(simulated, PROMPTS)]:
        print(f"| {' | '.join(cells)} |")
