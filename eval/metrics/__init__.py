"""Metrics for `evaluate.load`, which `trl-prorl passk` uses, too."""

import functools
from pathlib import Path


@functools.cache
def metric(name: str):
    """Load the metric of a folder next to this file. `evaluate` takes seconds to import, so it is imported here."""
    import evaluate

    return evaluate.load(str(Path(__file__).parent / name), keep_in_memory=True)  # without a file on disk
