import pytest

from eval.analysis.passk import draw_sizes


@pytest.mark.parametrize(("n", "ks"), [(1, [1]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12]), (16, [1, 2, 4, 8, 16])])
def test_ks(n, ks):
    assert draw_sizes(n) == ks


def test_sizes():
    assert draw_sizes(16) == [1, 2, 4, 8, 16]
    assert draw_sizes(12, evaluated=(1, 3, 32)) == [1, 2, 3, 4, 8, 12]
    assert draw_sizes(1) == [1]
