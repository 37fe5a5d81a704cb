"""
A run that an earlier version began goes on. `earlier_layout` was written at commit 53d6735 by `trl-prorl train
arm.yaml`, six steps with torch 2.13; of its checkpoints the one of step 3 is kept, and the adapter of the end.
"""

import shutil
from pathlib import Path

import pytest
import torch
from run_record import read_events, read_rows
from safetensors.torch import load_file


EARLIER = Path(__file__).parent / "earlier_layout"


def test_a_checkpoint_of_53d6735_resumes(forks, tmp_path):
    shutil.copytree(EARLIER, tmp_path / "old")
    shutil.move(tmp_path / "old" / "arm.yaml", tmp_path)
    command = "-m trl_prorl train arm.yaml --resume_from_checkpoint True"
    status, written = forks.run(*command.split(), cwd=tmp_path)
    assert status == 0 and "resumed from checkpoint-3" in written, written[-2000:]
    runs = EARLIER / "run", tmp_path / "old" / "run"
    whole, resumed = map(read_rows, runs)
    assert [row["step"] for row in resumed] == [1, 2, 3, 4, 5, 6]
    for before, after in zip(whole, resumed, strict=True):
        same = {name: value for name, value in before.items() if "time_" not in name and "per_second" not in name}
        assert {name: after[name] for name in same} == pytest.approx(same, rel=1e-3, abs=1e-6)
    for run in runs:
        resets = [[row[key] for key in ("step_applied", "reason", "alpha")] for row in read_events(run, "reset")]
        assert resets == [[2, "periodic", 0.5], [4, "periodic", 0.5]]
    end = load_file(EARLIER / "adapter_model.safetensors")
    for name, weight in load_file(tmp_path / "old" / "adapter_model.safetensors").items():
        torch.testing.assert_close(weight, end[name], rtol=0, atol=1e-4)
