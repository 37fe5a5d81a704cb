from math import comb

import pytest

from trl_prorl.eval.analysis.boundary import boundary, changed_prompts, rate_limit, separable_from


def separation(n):
    """Two-sided Fisher p-value of none against all of n: the two extreme tables of C(2n, n)."""
    return 2 / comb(2 * n, n)


def test_who_was_solved_and_who_lost(passk_result):
    result = boundary(passk_result(base=[0, 3, 0, 5, 0], trained=[8, 0, 0, 6, 1]))
    assert [(c.prompt, c.base, c.trained) for c in result.newly_solved] == [(0, 0, 8), (4, 0, 1)]
    assert [(c.prompt, c.base, c.trained) for c in result.lost] == [(1, 3, 0)]
    assert (result.both, result.neither) == (1, 1)
    assert result.solved_at_all == (2, 1, 1.0)  # of three coins, 2 to 1 is as even as it gets
    # 0 of 8 against 8 of 8: 2 / C(16, 8) = 2 / 12870, times 5 prompts; the others have p = 1 or near.
    first, second = result.newly_solved
    assert first.p_value == pytest.approx(5 * separation(8))
    assert first.separated
    assert not second.separated
    # 3 of 8 against 0 of 8, both tails of the hypergeometric: 2 C(8,3) / C(16,3) = 1/5, times 4 prompts left.
    assert result.lost[0].p_value == pytest.approx(4 / 5)
    assert not result.lost[0].separated


def test_separated_at_five_per_cent_of_all_prompts_not_of_those_picked():
    # 0 of 3 against 3 of 3 has p = 2 / 20: never separated. At n = 4 p = 2 / 70 = 0.029: alone yes, among two no.
    assert not changed_prompts([0], [3], n=3)[0][0].separated
    assert changed_prompts([0], [4], n=4)[0][0].separated
    assert not changed_prompts([0, 4], [4, 4], n=4)[0][0].separated


def test_limits_by_hand():
    # The highest rate at which n wrong samples in a row still have a chance of 5 %.
    assert [rate_limit(n) for n in (1, 2, 300)] == pytest.approx([0.95, 1 - 0.05**0.5, 1 - 0.05 ** (1 / 300)])
    assert separable_from(4, prompts=1) == 4  # 2 / 70, but 3 of 4: 2 C(4,3) / C(8,3) = 1 / 7
    assert separable_from(4, prompts=2) is None
    # n = 8: 5 of 8 has p = 2 C(8,5) / C(16,5) = 0.0256; 4 of 8: 2 C(8,4) / C(16,4) = 0.077
    assert separable_from(8, prompts=1) == 5
