"""
The starting model of a run is the one that it began from, and what a stranger's folder links to outside is neither
read, written nor deleted.
"""

import importlib
import json
import shutil

import pytest
from run_record import error_lines, hash_files, write_run
from transformers import LlavaConfig

from trl_prorl.errors import InputError
from trl_prorl.eval import passk
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.models import load_base_model, settings_of_base, with_base_model
from trl_prorl.run.provenance import fingerprint


def test_a_base_model_with_other_weights_is_refused(tmp_path):
    folder = tmp_path / "embedded" / "7b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    write_run(tmp_path, env={"base_model": {"sha256": fingerprint(str(folder))}})
    config = {"model_name_or_path": str(folder)}
    assert with_base_model(tmp_path, config)["model_name_or_path"] == str(folder)
    (folder / "model.safetensors").write_bytes(b"others")
    for name in (str(folder), "embedded/7b"):  # a folder's name that is one on the Hub, too
        with pytest.raises(InputError, match="other weights"):
            with_base_model(tmp_path, {"model_name_or_path": name})


def test_the_hubs_commit_that_the_run_began_from(tmp_path):
    config = {"model_name_or_path": "Qwen/A", "model_init_kwargs": {"revision": "main"}}
    assert with_base_model(tmp_path, config)["revision"] == "main"  # which the Hub may have moved
    write_run(tmp_path, env={"base_model": {"name": "Qwen/A", "hub_id": "Qwen/A", "commit": "abc"}})
    assert with_base_model(tmp_path, config)["revision"] == "abc"


@pytest.fixture
def mine(tmp_path):
    """A folder of the user's, with tables in it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("samples.parquet", "part-1.parquet", "id_rsa"):
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize("name", ["passk", "drift", "report", "push"])
def test_a_link_out_of_a_run_s_folder(run_dir, task, mine, capsys, name):
    write_run(run_dir, metrics=[{"step": 1}], env={})
    before = hash_files(mine)
    evaluation = HeldOut(run_dir, "test", 2)
    (run_dir / "samples").mkdir()
    samples = evaluation.store(evaluation.base, evaluation.sampling).file
    main = importlib.import_module(f"trl_prorl.eval.{name}").main
    for link, target in ((samples, mine), (run_dir / "merges.txt", mine / "id_rsa")):
        link.symlink_to(target)
        capsys.readouterr()
        assert main(["--run", str(run_dir), *(["--dry-run"] if name == "push" else [])]) == 2
        (line,) = error_lines(capsys.readouterr().err)
        assert str(run_dir) in line and link.name in line and str(target) in line
        link.unlink()
    assert hash_files(mine) == before
    assert not task.seen


def test_a_link_out_of_the_base_s_folder(run_dir, base, mine, tmp_path, change_config, capsys):
    folder = shutil.copytree(base, tmp_path / "base")
    change_config(run_dir, model_name_or_path=str(folder))
    (folder / "merges.txt").symlink_to(mine / "id_rsa")
    assert passk.main(["--run", str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert str(folder) in error and "merges.txt" in error


def write_evil(folder, marker):
    """Write code that leaves a file. transformers copies it to its cache before it runs it."""
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\nraise ImportError('it ran')\n"
    (folder / "evil.py").write_text(code)


@pytest.mark.parametrize("of", ["tokenizer", "base", "full model", "processor"])
def test_nobody_is_asked_to_run_a_stranger_s_code(
    run_dir, base, task, tmp_path, change_config, monkeypatch, capsys, of
):
    """Whoever is asked says yes."""
    asked = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "y")
    folder = run_dir
    if of == "base":
        folder = shutil.copytree(base, tmp_path / "base")
        change_config(run_dir, model_name_or_path=str(folder))
    elif of == "full model":
        for file in [*run_dir.glob("adapter*"), *base.iterdir()]:
            file.unlink() if file.parent == run_dir else shutil.copy(file, run_dir)
    marker = tmp_path / "PWNED"
    write_evil(folder, marker)
    file, classes = {
        "tokenizer": ("tokenizer_config.json", {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}),
        "processor": ("processor_config.json", {"AutoProcessor": "evil.Evil"}),
    }.get(of, ("config.json", {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}))
    content = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    content |= {"auto_map": classes, "tokenizer_class": "Evil", "model_type": "evil", "processor_class": "Evil"}
    (folder / file).write_text(json.dumps(content))
    ended = passk.main(["--run", str(run_dir), "--prompts", "2", "--n", "1", "--k", "1"])
    assert (ended, asked) == (2, [])
    assert not marker.exists()
    (line,) = error_lines(capsys.readouterr().err)
    assert "has code of its own" in line


@pytest.mark.parametrize("asked", [{"trust_remote_code": True}, {"weights_only": False}])
def test_a_model_s_files_declare_no_argument_of_its_loader(base, tmp_path, asked):
    """A stranger's config.yaml has the argument, and config.json beside it a setting of that name."""
    folder = shutil.copytree(base, tmp_path / "base")
    marker = tmp_path / "PWNED"
    write_evil(folder, marker)
    settings = json.loads((folder / "config.json").read_text()) | dict.fromkeys(asked)
    settings["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (folder / "config.json").write_text(json.dumps(settings))
    init = {**asked, "attention_dropout": 0.25}
    config = {"model_name_or_path": str(folder), "revision": "main", "model_init_kwargs": init}
    assert settings_of_base(config) == {"attention_dropout": 0.25}
    assert load_base_model(config).config.attention_dropout == 0.25
    assert not marker.exists()


def test_a_run_s_settings_name_no_kernel_for_a_part_of_its_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LlavaConfig().to_dict()))
    settings = {"text_config": {"attn_implementation": "kernels-community/flash-attn2"}}
    config = {"model_name_or_path": str(tmp_path), "revision": "main", "model_init_kwargs": settings}
    with pytest.raises(InputError, match="kernels-community"):
        settings_of_base(config)
