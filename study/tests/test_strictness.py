"""Block `dose`: what the base is paid for, and which strictnesses are taken, worked out by hand."""

from study.strictness import CANDIDATES, nearest, share_of_right
from trl_prorl.tasks import get_task


ROWS = [{"answer": "54321"}, {"answer": "987"}]
TEXTS = [["54321", "54021", "50001", "12345"], ["987", "907", "900", "98"]]
# Of the digits of the right number: four and three; then three and three, three and two, two and two, two and one.
SHARES = {(0, 0): 2 / 7, (1, 0): 2 / 6, (1, 1): 2 / 5, (2, 1): 2 / 3, (2, 2): 2 / 3, (3, 2): 1.0}


def test_the_share_of_right_among_paid():
    for first, last in CANDIDATES:
        task = get_task("reverse_digits", reward="ends", first=first, last=last)
        assert share_of_right(task, ROWS, TEXTS) == SHARES[first, last]


def test_each_is_taken_once_and_the_lowest_share_chooses_first():
    measured = dict(zip(CANDIDATES, (0.185, 0.335, 0.457, 0.586, 0.787, 0.906), strict=True))
    # Of .05 and .2 the same candidate is nearest; .2 takes the next one.
    assert nearest(measured) == [(0, 0), (1, 0), (1, 1), (2, 2)]
    spread = dict(zip(CANDIDATES, (0.04, 0.07, 0.19, 0.52, 0.7, 0.81), strict=True))
    assert nearest(spread) == [(0, 0), (1, 1), (2, 1), (3, 2)]
