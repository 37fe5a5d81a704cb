import pytest

from eval.analysis.passk import ks_up_to


@pytest.mark.parametrize(("n", "ks"), [(1, [1]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12]), (16, [1, 2, 4, 8, 16])])
def test_ks(n, ks):
    assert ks_up_to(n) == ks
