"""
Where a run's files lie: relative paths are found from anywhere, and what a stranger's folder links to outside is
neither read, written nor deleted.
"""

import importlib
import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from run_record import error_lines, hash_files
from transformers import LlavaConfig

from trl_prorl.errors import InputError
from trl_prorl.eval import passk
from trl_prorl.eval.samples import sampling
from trl_prorl.eval.samples import store as store_module
from trl_prorl.eval.samples.local_paths import with_local_paths
from trl_prorl.eval.samples.models import (
    base_model_errors,
    load_base_model,
    load_tokenizer,
    revision_of_base,
    settings_of_base,
)
from trl_prorl.eval.samples.run_samples import HeldOut
from trl_prorl.eval.samples.store import COLUMNS, SampleStore
from trl_prorl.run.provenance import fingerprint


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a base model, data and a run, and another directory, which one is in."""
    project = tmp_path / "project"
    elsewhere = tmp_path / "elsewhere"
    for folder in (project / "runs/embedded/7b", project / "runs/study/A", elsewhere):
        folder.mkdir(parents=True)
    (project / "runs/embedded/7b/config.json").write_text("{}")
    monkeypatch.chdir(elsewhere)
    return project


def test_relative_paths_are_found_from_anywhere(project, monkeypatch):
    run = project / "runs/study/A"
    paths = {"model_name_or_path": "runs/embedded/7b", "dataset_name": "data.jsonl"}
    (project / "data.jsonl").write_text("{}\n")
    found = {key: str(project / path) for key, path in paths.items()}
    link = project.parent / "link"
    link.symlink_to(run)
    for folder in (run, link):
        assert with_local_paths(folder, {**paths, "task": "gsm8k"}) == {**found, "task": "gsm8k"}
    monkeypatch.chdir(project)
    assert with_local_paths(run, paths) == paths


@pytest.mark.parametrize("name", ["Qwen/A", "A"])
def test_a_name_on_the_hub_is_no_run_of_that_name(project, name):
    """A full model trained from `Qwen/A`, in a folder of that name."""
    run = project / "runs" / name
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.json").write_text("{}")
    assert with_local_paths(run, {"model_name_or_path": name}) == {"model_name_or_path": name}


def test_what_looks_like_a_name_and_was_a_folder(project):
    (project / "models/base").mkdir(parents=True)
    (project / "models/base/config.json").write_text("{}")
    run = project / "runs/study/A"
    (run / "env.json").write_text(json.dumps({"base_model": {"name": "models/base", "hub_id": None}}))
    found = with_local_paths(run, {"model_name_or_path": "models/base"})
    assert found == {"model_name_or_path": str(project / "models/base")}


def test_another_base_model_of_the_same_path_is_passed_over(project):
    """One evaluates in a directory that has a model of this name too; the run noted the weights that it began from."""
    run = project / "runs/study/A"
    config = {"model_name_or_path": "runs/embedded/7b"}
    here = Path("runs/embedded/7b")
    theirs = project / here
    here.mkdir(parents=True)
    (here / "config.json").write_text("{}")
    weights = bytes(2**23)
    (theirs / "model.safetensors").write_bytes(weights)
    (here / "model.safetensors").write_bytes(weights[:-9] + b"1" + weights[-8:])
    assert with_local_paths(run, config) == config  # an older record noted nothing
    (run / "env.json").write_text(json.dumps({"base_model": {"sha256": fingerprint(str(theirs))}}))
    assert with_local_paths(run, config) == {"model_name_or_path": str(theirs)}
    (theirs / "model.safetensors").write_bytes(weights[1:])
    with pytest.raises(InputError, match="has other weights"):
        with_local_paths(run, config)


def test_the_hubs_commit_that_the_run_began_from(project):
    run = project / "runs/study/A"
    noted = {"base_model": {"name": "Qwen/A", "hub_id": "Qwen/A", "commit": "abc"}}
    (run / "env.json").write_text(json.dumps(noted))
    assert with_local_paths(run, {"model_name_or_path": "Qwen/A"})["model_revision"] == "abc"
    assert "model_revision" not in with_local_paths(run, {"model_name_or_path": "Qwen/B"})
    for name, revision in (("Qwen/A", "abc"), ("Qwen/B", "main")):  # which the Hub may have moved
        config = {"model_name_or_path": name, "model_init_kwargs": {"revision": "main"}}
        assert revision_of_base(with_local_paths(run, config)) == revision


@pytest.mark.parametrize("path", ["runs/embedded/gone", "/nowhere/at/all", "./gone"])
def test_a_base_model_that_is_gone_is_refused(project, path):
    with pytest.raises(InputError, match=f"model_name_or_path: {path}"):
        with_local_paths(project / "runs/study/A", {"model_name_or_path": path})


def test_a_local_model_that_cannot_be_read_is_not_the_hubs_fault(project):
    with pytest.raises(OSError, match="disk"), base_model_errors(str(project)):
        raise OSError("disk")


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
    (run_dir / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    (run_dir / "env.json").write_text("{}")
    before = hash_files(mine)
    evaluation = HeldOut(run_dir, "test", 2)
    (run_dir / "samples").mkdir()
    samples = evaluation.store(evaluation.base, evaluation.sampling).folder
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


def test_a_link_out_of_the_base_s_folder(run_dir, base, task, mine, tmp_path, capsys):
    folder = shutil.copytree(base, tmp_path / "base")
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    config["model_name_or_path"] = str(folder)
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "merges.txt").symlink_to(mine / "id_rsa")
    assert passk.main(["--run", str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert str(folder) in error and "merges.txt" in error


@pytest.mark.parametrize("name", ["passk", "drift"])
def test_a_pipe_in_place_of_weights_is_one_line(run_dir, task, capsys, name):
    (run_dir / "adapter_model.safetensors").unlink()
    os.mkfifo(run_dir / "adapter_model.safetensors")
    assert importlib.import_module(f"trl_prorl.eval.{name}").main(["--run", str(run_dir)]) == 2
    (line,) = error_lines(capsys.readouterr().err)
    assert str(run_dir / "adapter_model.safetensors") in line


def write_evil(folder, marker):
    """Write code that leaves a file. transformers copies it to its cache before it runs it."""
    code = f"from pathlib import Path\nPath({str(marker)!r}).touch()\nraise ImportError('it ran')\n"
    (folder / "evil.py").write_text(code)


@pytest.mark.parametrize("of", ["tokenizer", "base", "full model", "processor"])
def test_nobody_is_asked_to_run_a_stranger_s_code(run_dir, base, task, tmp_path, monkeypatch, capsys, of):
    """Whoever is asked says yes."""
    asked = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "y")
    folder = run_dir
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    if of == "base":
        folder = shutil.copytree(base, tmp_path / "base")
        config["model_name_or_path"] = str(folder)
    elif of == "full model":
        for file in [*run_dir.glob("adapter*"), *base.iterdir()]:
            file.unlink() if file.parent == run_dir else shutil.copy(file, run_dir)
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    marker = tmp_path / "PWNED"
    write_evil(folder, marker)
    file, classes = {
        "tokenizer": ("tokenizer_config.json", {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}),
        "processor": ("processor_config.json", {"AutoProcessor": "evil.Evil"}),
    }.get(of, ("config.json", {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}))
    found = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    found |= {"auto_map": classes, "tokenizer_class": "Evil", "model_type": "evil", "processor_class": "Evil"}
    (folder / file).write_text(json.dumps(found))
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
    config = {"model_name_or_path": str(folder), "model_init_kwargs": {**asked, "attention_dropout": 0.25}}
    assert settings_of_base(config) == {"attention_dropout": 0.25}
    assert load_base_model(config).config.attention_dropout == 0.25
    assert not marker.exists()


def test_a_run_s_settings_name_no_kernel_for_a_part_of_its_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LlavaConfig().to_dict()))
    settings = {"text_config": {"attn_implementation": "kernels-community/flash-attn2"}}
    config = {"model_name_or_path": str(tmp_path), "model_init_kwargs": settings}
    with pytest.raises(InputError, match="kernels-community"):
        settings_of_base(config)


@pytest.mark.parametrize(
    "template, said",
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "did not end within 0.2 s"),
        ("{% for a in range(10 ** 9) %}{% endfor %}", "raised OverflowError"),
        ("{{ messages.__class__.__mro__ }}", "raised SecurityError"),
        ("{% if %}", "raised TemplateSyntaxError"),
        ("{{ raise_exception('no') }}", "raised TemplateError: no"),
    ],
)
def test_a_chat_template_that_loops_or_is_not_allowed_is_one_line(base, monkeypatch, template, said):
    monkeypatch.setattr(sampling, "TEMPLATE_SECONDS", 0.2)
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=f"the chat template of the tokenizer in '{base}' {said}"):
        sampling.prompt_ids(tokenizer, [{"prompt": [{"role": "user", "content": "7"}]}])


@pytest.mark.parametrize(
    "template, said", [("", "makes no token"), ("{{ 'a ' * 10 ** 6 }}", "makes a prompt of 2,000,000 characters")]
)
def test_a_chat_template_that_makes_no_prompt_or_a_huge_one_is_one_line(base, template, said):
    tokenizer = load_tokenizer(base)
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=said):
        sampling.prompt_ids(tokenizer, [{"prompt": [{"role": "user", "content": "7"}]}])


@pytest.mark.parametrize(
    "file, keys",
    [
        ("adapter_config.json", {"lora_alpha": 1e308}),
        ("base/config.json", {"rms_norm_eps": float("nan")}),
        ("base/config.json", {"return_dict": False}),
    ],
    ids=str,
)
def test_a_model_that_computes_nothing_is_one_line(run_dir, base, task, capsys, file, keys):
    shutil.copytree(base, run_dir / "base")
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config | {"model_name_or_path": "./base"}))
    found = json.loads((run_dir / file).read_text())
    (run_dir / file).write_text(json.dumps(found | keys))
    assert passk.main(["--run", str(run_dir), "--prompts", "2", "--n", "1", "--k", "1"]) == 2
    (line,) = error_lines(capsys.readouterr().err)
    assert str(run_dir) in line


@pytest.mark.parametrize(
    "values", [{"sample": "x"}, {"sample": None}, {"prompt_id": 5}, {"prompt_id": [1]}, {"completion": 5}, None]
)
def test_samples_of_other_types_are_one_line(tmp_path, values):
    store = SampleStore(tmp_path, "base", {})
    store.folder.mkdir()
    sound = dict.fromkeys(COLUMNS, None) | {"prompt_id": "a", "sample": 0, "completion": "c"}
    frame = pd.DataFrame([{"other": 1} if values is None else sound | values])
    frame.to_parquet(store.folder / "part.parquet")
    with pytest.raises(InputError, match="part.parquet"):
        store.frame()


def test_samples_of_any_size_that_an_evaluation_wrote_are_read(tmp_path, monkeypatch):
    """Two batches, each of more than is read of a file that is packed tightly, and then merged."""
    monkeypatch.setattr(store_module, "MAX_BYTES", 1000)
    store = SampleStore(tmp_path, "base", {})
    made = dict.fromkeys(COLUMNS, None) | {"ids": list(range(1000)), "completion": "".join(map(chr, range(32, 1032)))}
    for prompt in "ab":
        store.add([made | {"prompt_id": prompt, "sample": number} for number in range(2)])
    store.merge()
    assert [path.name for path in store.folder.glob("*.parquet")] == ["samples.parquet"]
    assert store.frame()["ids"].map(len).tolist() == [1000] * 4


def test_samples_that_unpack_to_gigabytes_are_one_line(tmp_path, monkeypatch):
    """64 texts of a megabyte, in a file of some kilobytes, where 16 MB are allowed; and a column of categories."""
    monkeypatch.setattr(store_module, "MAX_BYTES", 2**24)
    store = SampleStore(tmp_path, "base", {})
    store.folder.mkdir()
    sound = dict.fromkeys(COLUMNS, None) | {"prompt_id": "a", "completion": "c" * 2**20}
    frame = pd.DataFrame([sound | {"sample": number} for number in range(64)])
    file = store.folder / "part.parquet"
    frame.to_parquet(file, compression="zstd")
    assert file.stat().st_size < 10**5
    with pytest.raises(InputError, match="part.parquet.*unpacks to more than"):
        store.frame()
    frame.assign(completion="c").astype({"completion": "category"}).to_parquet(file)
    with pytest.raises(InputError, match="part.parquet"):
        store.frame()
