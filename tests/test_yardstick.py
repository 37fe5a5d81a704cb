"""Thirty short trainings, ten of them killed and resumed, give the stored weights, rows, events and evaluations."""

from pathlib import Path

import pytest
import yaml
from slow import needs_two_resumed


SCRIPT = Path(__file__).parents[1] / "scripts" / "yardstick.py"
RESUMED = "two-processes-killed"
NAMES = [
    pytest.param(name, marks=needs_two_resumed if name == RESUMED else ())
    for name in yaml.safe_load(SCRIPT.with_suffix(".yaml").read_text())["runs"]
]


@pytest.mark.parametrize("name", NAMES)
def test_a_training_is_the_stored_one(forks, tmp_path, name):
    """To the bit where the libraries and the processor are those of the stored file, elsewhere within 1e-4."""
    status, text = forks.run(SCRIPT, "--only", name, "--jobs", 1, cwd=tmp_path)
    assert status == 0, text
