"""The study's bases: all are there, made as their names say, and found by the code of commits before and after."""

import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from study.bases import FOLDER, OF_THE_PACKAGE, base_folder, base_hash, model_of
from trl_prorl.embedded.making import EmbeddedSettings, settings_of
from trl_prorl.embedded.shipped import embedded_model, hashes


ROOT = Path(__file__).parent.parent.parent
NAMES = [f"{task}-{seed}" for task in ("reverse_digits", "sorting", "sums") for seed in range(7)]
NAMES += [f"three_tasks-{seed}" for seed in (1, 2, 3)]
OF_THE_DEMO = ("reverse_digits-0", "sorting-0")


def sha256sum(path):
    return subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout.split()[0]


def test_all_are_there_and_different():
    here = {path.name for path in (ROOT / FOLDER).iterdir()}
    assert here == set(NAMES) - set(OF_THE_DEMO)
    assert len({base_hash(ROOT, f"study/bases/{name}") for name in NAMES}) == len(NAMES)


def test_their_hashes_are_those_of_the_runs():
    table = pd.read_csv(ROOT / "study" / "tables" / "bases.csv")
    own = table[table["family"].isin(["reverse_digits", "sorting", "sums"])]
    assert len(own) == 21
    for row in own.itertuples():
        assert base_hash(ROOT, f"study/bases/{row.family}-{row.base_seed}") == row.base_hash


@pytest.mark.parametrize("name", NAMES)
def test_each_is_made_with_the_settings_of_its_name(name):
    """It is loaded as fp32, and all but the first one are stored in half the bytes."""
    folder = base_folder(ROOT, f"study/bases/{name}")
    task, _, seed = name.rpartition("-")
    made_with = EmbeddedSettings(**json.loads((folder / "made_with.json").read_text())["settings"])
    assert made_with == settings_of(task, int(seed))
    assert {path.name for path in folder.iterdir()} == {path.name for path in Path(embedded_model()).iterdir()}
    assert all(sha256sum(folder / file) == sha256 for file, sha256 in hashes(folder).items())
    if name != "reverse_digits-0":
        assert sum(path.stat().st_size for path in folder.iterdir()) < 1.5e6
        stored = {value.dtype for value in load_file(folder / "model.safetensors").values()}
        assert stored == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.float32


def add_base(code, place, name):
    folder = code / place / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(name.encode())
    (folder / "made_with.json").write_text("{}")


def test_a_commit_before_the_study_had_a_folder_loads_its_bases_by_name(tmp_path):
    add_base(tmp_path, OF_THE_PACKAGE, "sums-3")
    assert model_of(tmp_path, "study/bases/sums-3") == "embedded:sums:3"
    assert base_hash(tmp_path, "study/bases/sums-3") == sha256sum(
        tmp_path / OF_THE_PACKAGE / "sums-3/model.safetensors"
    )
    assert base_hash(tmp_path, "study/bases/sums-4") is None


def test_a_commit_of_now_loads_them_from_the_folder_and_the_demo_s_by_name(tmp_path):
    add_base(tmp_path, FOLDER, "sums-3")
    add_base(tmp_path, OF_THE_PACKAGE, "sorting-0")
    assert model_of(tmp_path, "study/bases/sums-3") == str(tmp_path / "study" / "bases" / "sums-3")
    assert model_of(tmp_path, "study/bases/sorting-0") == "embedded:sorting:0"
    assert base_hash(tmp_path, "study/bases/sums-3") == sha256sum(tmp_path / FOLDER / "sums-3/model.safetensors")
    assert model_of(tmp_path, "smollm2") == "smollm2"
