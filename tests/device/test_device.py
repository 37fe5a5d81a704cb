"""
What holds on a device that is not the CPU: see pretend.py, checks.py and trainings.py.

torch has that device for good once it is registered, so a fork registers it.
"""

import json
from pathlib import Path


HERE = Path(__file__).parent


def test_what_must_hold_on_the_device(forks, tmp_path):
    status, written = forks.run(HERE / "checks.py", tmp_path / "found.json", cwd=tmp_path)
    assert status == 0, written
    found = json.loads((tmp_path / "found.json").read_text())
    assert found
    failed = [f"{name}\n{error}" for name, error in found.items() if error]
    assert not failed, "\n".join(failed)
