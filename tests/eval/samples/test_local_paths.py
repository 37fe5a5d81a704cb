import json
import shutil
from pathlib import Path

import pytest
import yaml

from trl_prorl.errors import InputError
from trl_prorl.eval import drift, passk
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


@pytest.mark.parametrize("name", ["Qwen/A", "A", "study/A"])
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
def test_a_base_model_that_is_gone_is_one_line(project, path):
    with pytest.raises(InputError, match="write there where its base model is now") as refusal:
        with_local_paths(project / "runs/study/A", {"model_name_or_path": path})
    assert f"model_name_or_path: {path}" in str(refusal.value)
    assert "config.yaml" in str(refusal.value)


@pytest.mark.parametrize(("command", "options"), [(passk, ["--n", "2"]), (drift, ["--samples", "2"])])
def test_evaluating_from_another_directory(run_dir, base, task, tmp_path, monkeypatch, capsys, command, options):
    shutil.copytree(base, tmp_path / "models" / "tiny" / "base")
    (run_dir.parent / "runs").mkdir()
    run = run_dir.rename(run_dir.parent / "runs" / "A")
    config = yaml.safe_load((run / "config.yaml").read_text())

    def written(path):
        (run / "config.yaml").write_text(yaml.safe_dump({**config, "model_name_or_path": path}))

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    written("models/tiny/base")
    assert command.main(["--run", "../runs/A", "--prompts", "3", *options]) == 0
    shutil.rmtree(run / "samples")
    for gone in ("models/tiny/gone", "models/gone"):
        written(gone)
        assert command.main(["--run", "../runs/A", "--prompts", "3", *options]) == 2
        message = capsys.readouterr().err
        assert gone in message
        assert "where its base model is now" in message
        assert "Traceback" not in message


def test_a_local_model_that_cannot_be_read_is_not_the_hubs_fault(project):
    with pytest.raises(OSError, match="disk"), hub_errors(str(project)):
        raise OSError("disk")
