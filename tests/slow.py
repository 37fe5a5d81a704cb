"""Which cases of a parametrised test `make test` runs; `make test-slow` runs all."""

import pytest


def slow_but(cases, *quick):
    """Return the cases of which all are slow but these. A tuple has a value for each parameter."""
    assert all(case in cases for case in quick)
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if case in quick else pytest.mark.slow))
    return marked
