from math import comb

import pytest

from trl_prorl.eval.analysis.solved_lost import boundary


def separation(n):
    """Two-sided Fisher p-value of none against all of n: the two extreme tables of C(2n, n)."""
    return 2 / comb(2 * n, n)


def test_who_was_solved_and_who_lost(passk_result):
    result = boundary(passk_result(base=[0, 3, 0, 5, 0], trained=[8, 0, 0, 6, 1]))
    assert [change[:3] for change in (*result.newly_solved, *result.lost)] == [(0, 0, 8), (4, 0, 1), (1, 3, 0)]
    assert (result.both, result.neither) == (1, 1)
    assert result.p_value == 1  # of three coins, 2 to 1 is as even as it gets
    # 0 of 8 against 8 of 8: 2 / C(16, 8) = 2 / 12870, times 5 prompts; the others have p = 1 or near.
    first, second = result.newly_solved
    assert first.p_value == pytest.approx(5 * separation(8))
    # 3 of 8 against 0 of 8, both tails of the hypergeometric: 2 C(8,3) / C(16,3) = 1/5, times 4 prompts left.
    assert result.lost[0].p_value == pytest.approx(4 / 5)
    assert [first.is_significant, second.is_significant] == [True, False]


@pytest.mark.parametrize(
    ("n", "prompts", "significant", "separable_from"),
    [
        (3, 1, False, None),  # 0 of 3 against 3 of 3 has p = 2 / 20
        (4, 1, True, 4),  # 2 / 70, but 3 of 4: 2 C(4,3) / C(8,3) = 1 / 7
        (4, 2, False, None),  # alone yes, among two no
        (8, 1, True, 5),  # 5 of 8 has p = 2 C(8,5) / C(16,5) = 0.0256; 4 of 8: 2 C(8,4) / C(16,4) = 0.077
    ],
)
def test_significant_at_five_per_cent_of_all_prompts_not_of_those_picked(
    passk_result, n, prompts, significant, separable_from
):
    base = [0, *[n] * (prompts - 1)]
    result = boundary(passk_result(base=base, trained=[n] * prompts, n=n))
    assert result.newly_solved[0].is_significant is significant
    assert result.separable_from == separable_from
    assert (1 - result.rate_limit) ** n == pytest.approx(0.05)  # n wrong samples in a row still have a chance of 5 %
