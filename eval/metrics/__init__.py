"""Metrics for `evaluate.load`; `eval.passk` prints what they compute."""

import functools
from pathlib import Path


@functools.cache
def metric(name: str):
    """The metric of a folder beside this file. `evaluate` takes seconds to import, so it is imported here."""
    import evaluate

    return evaluate.load(str(Path(__file__).parent / name), keep_in_memory=True)  # without a file on disk
