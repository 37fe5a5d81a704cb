"""One number for several seeds."""

import numpy as np
import pytest

from eval.analysis.statistics import prompts_and_seeds


def test_hull_of_prompts_and_seeds():
    coins = np.array([0.0, 1.0] * 20)
    together = prompts_and_seeds([coins, coins], same=True)
    assert together.low < 0.4 < 0.6 < together.high  # seeds agree to the last digit: the prompts speak
    assert prompts_and_seeds([coins, coins], same=False)[1:] == (0.5, 0.5)
    flat = prompts_and_seeds([np.full(40, 0.4), np.full(40, 0.6)], same=True)
    assert flat.high == pytest.approx(0.5 + 12.706 * 0.1, abs=1e-3)  # prompts agree: the seeds speak
    assert prompts_and_seeds([], same=True) is None
