"""Which cases of a parametrised test `make test` runs; `make test-slow` runs all that the versions can run."""

from importlib.metadata import version

import pytest


needs_two_resumed = pytest.mark.skipif(
    version("transformers").startswith("5.17."), reason='several processes on CPUs load the optimizer to "cpu:0"'
)


def slow_but(cases, *quick):
    """Return the cases of which all are slow but these. A tuple has a value for each parameter."""
    assert all(case in cases for case in quick)
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if case in quick else pytest.mark.slow))
    return marked
