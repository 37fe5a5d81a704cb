"""
Where a run's files lie: relative paths are found from anywhere, and what a stranger's folder links to outside is
neither read, written nor deleted.
"""

import importlib
import json
import shutil
from pathlib import Path

import pytest
import yaml
from run_record import hash_files

from trl_prorl.errors import InputError
from trl_prorl.eval import passk
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.local_paths import with_local_paths
from trl_prorl.eval.samples.models import hub_errors
from trl_prorl.record.base_model import fingerprint


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a base model, data and a run, and another directory, which one is in."""
    project = tmp_path / "project"
    elsewhere = tmp_path / "elsewhere"
    for folder in (project / "runs/embedded/7b", project / "data/gsm8k", project / "runs/study/A", elsewhere):
        folder.mkdir(parents=True)
    (project / "runs/embedded/7b/config.json").write_text("{}")
    monkeypatch.chdir(elsewhere)
    return project


def test_relative_paths_are_found_from_anywhere(project, monkeypatch):
    written = {
        "model_name_or_path": "runs/embedded/7b",
        "dataset_name": "data/gsm8k",
        "output_dir": "runs/study/A",
        "task": "gsm8k",
    }
    found = with_local_paths(project / "runs/study/A", written)
    paths = {key: str(project / path) for key, path in written.items() if key != "task"}
    assert found == {**written, **paths}
    (project / "problems.jsonl").write_text("{}\n")
    data = with_local_paths(project / "runs/study/A", {"dataset_name": "problems.jsonl"})
    assert data == {"dataset_name": str(project / "problems.jsonl")}
    link = project.parent / "link"
    link.symlink_to(project / "runs/study/A")
    assert with_local_paths(link, written) == found
    monkeypatch.chdir(project)
    assert with_local_paths(project / "runs/study/A", written) == written


@pytest.mark.parametrize("name", ["Qwen/A", "A"])
def test_a_name_on_the_hub_is_no_run_of_that_name(project, name):
    """A full model trained from `Qwen/A`, in a folder of that name."""
    run = project / "runs" / name
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.json").write_text("{}")
    config = {"model_name_or_path": name, "dataset_name": "study"}
    assert with_local_paths(run, config) == config


def test_what_looks_like_a_name_and_was_a_folder(project):
    (project / "models/base").mkdir(parents=True)
    (project / "models/base/config.json").write_text("{}")
    run = project / "runs/study/A"
    config = {"model_name_or_path": "models/base"}
    assert with_local_paths(run, config) == config
    (run / "env.json").write_text(json.dumps({"base_model": {"name": "models/base", "hub_id": None}}))
    assert with_local_paths(run, config) == {"model_name_or_path": str(project / "models/base")}


@pytest.mark.parametrize("read_whole", [2**26, 2**20])
def test_another_base_model_of_the_same_path_is_passed_over(project, monkeypatch, read_whole):
    """One evaluates in a directory that has a model of this name too; the run noted the weights that it began from."""
    run = project / "runs/study/A"
    monkeypatch.setattr("trl_prorl.record.base_model.READ_WHOLE", read_whole)
    config = {"model_name_or_path": "runs/embedded/7b"}
    here = Path("runs/embedded/7b")
    theirs = "runs/embedded/7b"
    here.mkdir(parents=True)
    (here / "config.json").write_text("{}")
    weights = bytes(2**23)
    for folder, content in ((project / theirs, weights), (here, weights[:-9] + b"1" + weights[-8:])):
        (folder / "model.safetensors").write_bytes(content)
    assert fingerprint(str(here)) != fingerprint(str(project / theirs))
    assert with_local_paths(run, config) == config  # an older record noted nothing
    (run / "env.json").write_text(json.dumps({"base_weights": fingerprint(str(project / theirs))}))
    assert with_local_paths(run, config) == {"model_name_or_path": str(project / theirs)}
    (project / theirs / "model.safetensors").write_bytes(weights[1:])
    with pytest.raises(InputError, match="other weights than the model that the run began from"):
        with_local_paths(run, config)


def test_the_hubs_commit_that_the_run_began_from(project):
    run = project / "runs/study/A"
    noted = {"base_model": {"name": "Qwen/A", "hub_id": "Qwen/A"}, "base_commit": "abc"}
    (run / "env.json").write_text(json.dumps(noted))
    assert with_local_paths(run, {"model_name_or_path": "Qwen/A"})["model_revision"] == "abc"
    assert "model_revision" not in with_local_paths(run, {"model_name_or_path": "Qwen/B"})


@pytest.mark.parametrize("path", ["runs/embedded/gone", "/nowhere/at/all", "./gone"])
def test_a_base_model_that_is_gone_is_refused(project, path):
    with pytest.raises(InputError, match=f"model_name_or_path: {path}"):
        with_local_paths(project / "runs/study/A", {"model_name_or_path": path})


def test_evaluating_from_another_directory(run_dir, base, task, tmp_path, monkeypatch, capsys):
    shutil.copytree(base, tmp_path / "models" / "tiny" / "base")
    (run_dir.parent / "runs").mkdir()
    run = run_dir.rename(run_dir.parent / "runs" / "A")
    config = yaml.safe_load((run / "config.yaml").read_text())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for path, code in (("models/tiny/base", 0), ("models/tiny/gone", 2)):
        (run / "config.yaml").write_text(yaml.safe_dump({**config, "model_name_or_path": path}))
        assert passk.main(["--run", "../runs/A", "--prompts", "3", "--n", "2"]) == code
    assert "models/tiny/gone" in capsys.readouterr().err


def test_a_local_model_that_cannot_be_read_is_not_the_hubs_fault(project):
    with pytest.raises(OSError, match="disk"), hub_errors(str(project)):
        raise OSError("disk")


COMMANDS = {
    "passk": ["--prompts", "2", "--n", "1"],
    "drift": ["--prompts", "2", "--samples", "1"],
    "report": [],
    "boundary": [],
    "trajectory": [],
    "push": ["--dry-run"],
}


@pytest.fixture
def recorded(run_dir):
    """The run with one step on record."""
    (run_dir / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    (run_dir / "env.json").write_text("{}")
    return run_dir


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's, with tables in it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("samples.parquet", "part-1.parquet", "id_rsa"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_link_out_of_a_run_s_folder(recorded, task, mine, capsys, name):
    before = hash_files(mine)
    evaluation = HeldOut(recorded, "test", 2)
    (recorded / "samples").mkdir()
    samples = evaluation.store(evaluation.base, evaluation.sampling).folder
    samples.symlink_to(mine)
    main = importlib.import_module(f"trl_prorl.eval.{name}").main
    for link in (samples, recorded / "merges.txt", recorded / "passk.json"):
        if link != samples:
            link.symlink_to(mine / "id_rsa")
        capsys.readouterr()
        assert main(["--run", str(recorded), *COMMANDS[name]]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"contains the link '{link.relative_to(recorded)}', which leads out" in line
        link.unlink()
    assert hash_files(mine) == before
    assert not task.seen


def test_a_comparison_leaves_out_a_run_with_such_a_link(recorded, mine, tmp_path, capsys):
    other = shutil.copytree(recorded, tmp_path / "B")
    (recorded / "passk.json").symlink_to(mine / "id_rsa")
    assert importlib.import_module("trl_prorl.eval.compare").main(["--run", str(recorded), str(other)]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "contains the link 'passk.json'" in shown


def test_a_link_out_of_the_model_s_folders(run_dir, base, task, mine, tmp_path, capsys):
    """That of the base, and `output_dir` where the record lies elsewhere."""
    own = tmp_path / "base"
    shutil.copytree(base, own)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config | {"model_name_or_path": str(own)}))
    (own / "merges.txt").symlink_to(mine / "id_rsa")
    assert passk.main(["--run", str(run_dir)]) == 2
    assert f"'{own}' contains the link 'merges.txt'" in capsys.readouterr().err
    (own / "merges.txt").unlink()

    record = tmp_path / "record"
    record.mkdir()
    config |= {"run_dir": str(record), "output_dir": str(run_dir)}
    (record / "config.yaml").write_text(yaml.safe_dump(config))
    (run_dir / "merges.txt").symlink_to(mine / "id_rsa")
    assert passk.main(["--run", str(record)]) == 2
    assert f"'{run_dir}' contains the link 'merges.txt'" in capsys.readouterr().err
