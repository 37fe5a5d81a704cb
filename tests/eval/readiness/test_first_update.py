"""How far the first updates moved the policy, by numbers worked out by hand."""

import math

import pytest
import torch

from eval.readiness.first_steps import MOST_MOVED, moved, moved_finding


def test_the_distance_is_the_kl_of_the_policy_before_from_the_one_after():
    """
    Two tokens, 3/4 and 1/4 before, 1/2 each after, sampled in those shares: the k3 of the samples add up to
    3/4 ln(3/2) + 1/4 ln(1/2). The last place is padding.
    """
    batch = {"completion_mask": torch.tensor([[1, 1, 0], [1, 1, 0]])}
    old = torch.tensor([[0.75, 0.75, 1.0], [0.75, 0.25, 1.0]]).log()
    new = torch.tensor([[0.5, 0.5, 1e-9], [0.5, 0.5, 0.0]]).log()
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert moved(old, new, batch) == pytest.approx(expected, rel=1e-6)
    assert moved(old, old, batch) == 0.0
    # Where the ratio of the other direction overflows, this one is the fall of the log-probability, less 1.
    assert moved(old, old - 1000.0, batch) == pytest.approx(999.0)


@pytest.mark.parametrize(
    "kl, level",
    [(0.0, "fine"), (0.06, "fine"), (MOST_MOVED, "fine"), (0.6, "stop"), (math.inf, "stop"), (math.nan, "stop")],
)
def test_a_policy_that_is_gone_is_a_reason_to_stop(kl, level):
    found = moved_finding(kl, [1.0])
    assert found.level == level and ("destroy" in found.change) == (level == "stop")
    assert found.values["kl"] == (kl if math.isfinite(kl) else None)  # as JSON can hold it
