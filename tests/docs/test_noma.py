"""docs/examples/noma: torch's update against what NOMA's own interpreter computed from the same files."""

import hashlib
import re
import sys
from pathlib import Path

import pytest
import torch
from doc_pages import ROOT
from safetensors.torch import load_file


FOLDER = ROOT / "docs" / "examples" / "noma"
sys.path.append(str(FOLDER))

import update  # noqa: E402


PROGRAM = FOLDER / "update.noma"
# update.safetensors, and the result that the program with this hash computed from it in NOMA's interpreter.
COMPUTED = Path(__file__).with_name("noma")
SHA256 = "d3f5467c30dddf3067c60986a9628c440de213a5e15373b884f9ced8df8884cc"


def test_torch_agrees_with_noma():
    changed = "update.noma is not the program that made tests/docs/noma/result.safetensors: run it again with NOMA"
    assert hashlib.sha256(PROGRAM.read_bytes()).hexdigest() == SHA256, changed
    assert max(update.differences(COMPUTED).values()) < 1e-12
    found = update.update(COMPUTED)
    for name in ("A", "B"):  # three different updates
        keep, hard, soft = (found[f"{treatment}_{name}"] for treatment in update.TREATMENTS)
        assert min((one - other).abs().max() for one, other in ((keep, hard), (keep, soft), (hard, soft))) > 1e-3


def test_the_files_are_those_that_the_program_loads(tmp_path, capsys):
    folder = tmp_path / "exchange"
    update.main([str(folder)])
    text = PROGRAM.read_text()
    assert re.findall(r"let (\w+) = settings\[\d+\];", text) == list(update.SETTINGS)
    written = {}
    for path in (folder / "inputs").iterdir():
        ((name, tensor),) = load_file(path).items()
        assert path.name == f"{name}.safetensors"
        assert tensor.dtype == torch.float64 and tensor.ndim > 0
        written[name] = tensor
    assert sorted(re.findall(r'load_safetensors \w+ = "inputs/(\w+).safetensors";', text)) == sorted(written)
    # The adapter has grown from rank 2, and A's new row has not moved yet.
    assert written["A"].shape == (3, 5) and written["B"].shape == (5, 3)
    assert written["m_A"][2].eq(0.0).all() and written["m_A"][:2].ne(0.0).any()
    with pytest.raises(SystemExit):
        update.main([str(folder)])
    assert f"{folder} exists" in capsys.readouterr().err
