"""The rank at the end of a run, by hand."""

from eval.readiness.first_steps import largest_rank


def test_rank_at_the_end_by_hand():
    assert largest_rank(4, 60, 4, 16, 240, 2) == 16  # growths at 60, 120, 180
    assert largest_rank(4, 60, 4, 16, 180, 2) == 12  # nothing is generated after step 180
    assert largest_rank(4, 60, 4, 10, 240, 2) == 10
    assert largest_rank(4, 3, 4, 99, 10, 4) == 12  # 3 at 4; 6 at 8; 9 at 12, too late
    assert largest_rank(4, 1, 4, 99, 10, 4) == 12  # 1 to 4 are one growth, at 4; 5 to 8 one at 8
    assert largest_rank(4, 2, 4, 99, 7, 0.5) == 16  # at 2, 4 and 6: every step generates
    assert largest_rank(4, 0, 4, 99, 100, 2) == largest_rank(4, 50, 4, 4, 100, 2) == 4
