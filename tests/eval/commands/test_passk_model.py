"""pass@k of a model that belongs to no run: an adapter, the merged model, a model in memory."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tiny_run import load_with_new_adapter
from torch.nn import Parameter
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_prorl import embedded_model, evaluate
from trl_prorl.errors import InputError
from trl_prorl.eval import passk
from trl_prorl.tasks import get_task


OPTIONS = ["--task", "reverse_digits@2", "--prompts", "24", "--n", "4", "--max-new-tokens", "8"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An adapter that changes the embedded model, and the merged model, as PEFT and transformers save them."""
    folder = tmp_path_factory.mktemp("models")
    base = embedded_model("embedded:reverse_digits")
    model = load_with_new_adapter(base, noise=0.05)
    model.save_pretrained(folder / "adapter")
    model.merge_and_unload().save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "merged")
    return folder, base


def measured(*words):
    passk.main(["--model", *map(str, words), *OPTIONS])
    return json.loads(Path("passk", Path(words[0]).name, "passk.json").read_text())


def test_an_adapter_and_the_merged_model_are_one_model(saved, tmp_path, monkeypatch):
    folder, base = saved
    monkeypatch.chdir(tmp_path)
    adapter = measured(folder / "adapter")
    merged = measured(folder / "merged", "--base", base)
    for side in ("base", "trained"):
        assert adapter[side] == merged[side]
        assert adapter["greedy"][side] == merged["greedy"][side]
    assert sum(adapter["trained"]["correct"]) > 0
    assert adapter["base"]["correct"] != adapter["trained"]["correct"]


def test_a_model_in_memory_is_measured_as_the_saved_one(saved, tmp_path, monkeypatch):
    folder, base = saved
    monkeypatch.chdir(tmp_path)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder / "adapter")
    task = get_task("reverse_digits", level=2)
    rows = task.rows("test", 24)
    found = evaluate(model, rows, task.verify, n=4, max_new_tokens=8, output_dir="here")
    expected = measured(folder / "adapter")
    assert found["base"]["correct"] == expected["base"]["correct"]
    assert found["greedy"]["trained"] == expected["greedy"]["trained"]
    assert Path("here", "passk.json").is_file()


def test_another_model_of_the_same_name_keeps_its_result(saved, tmp_path, monkeypatch):
    folder, base = saved
    monkeypatch.chdir(tmp_path)
    rows = get_task("reverse_digits", level=2).rows("test", 2)
    asked = {"n": 1, "greedy": False, "max_new_tokens": 2}
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder / "adapter")
    for _ in range(2):
        evaluate(model, rows, lambda completion, row: True, **asked)
    next(param for name, param in model.named_parameters() if "lora_B" in name).data += 0.1
    with pytest.raises(InputError, match="other weights.*output_dir="):
        evaluate(model, rows, lambda completion, row: True, **asked)


def test_a_full_model_is_not_compared_with_itself(saved, tmp_path, monkeypatch):
    folder, base = saved
    monkeypatch.chdir(tmp_path)
    rows = get_task("reverse_digits", level=2).rows("test", 2)
    asked = {"n": 1, "greedy": False, "max_new_tokens": 2}
    with pytest.raises(InputError, match="--base NAME"):
        evaluate(AutoModelForCausalLM.from_pretrained(folder / "merged"), rows, lambda *_: True, **asked)
    trained = AutoModelForCausalLM.from_pretrained(base)
    next(trained.parameters()).data += 0.1
    assert evaluate(trained, rows, lambda *_: True, **asked)["base"]["pass@1"] == 1.0


def test_a_full_model_with_another_head_than_its_base_is_measured(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = AutoModelForCausalLM.from_pretrained(saved[1])
    trained.register_parameter("value_head", Parameter(torch.zeros(1)))
    rows = get_task("reverse_digits", level=2).rows("test", 2)
    asked = {"n": 1, "greedy": False, "max_new_tokens": 2}
    assert evaluate(trained, rows, lambda *_: True, **asked)["base"]["pass@1"] == 1.0


QUICK = ["--task", "reverse_digits@2", "--prompts", "2", "--n", "1", "--max-new-tokens", "2", "--no-greedy"]


@pytest.mark.parametrize("model", ["..", ".", "../../adapter"])
def test_a_result_lies_in_a_folder_that_the_command_makes(saved, tmp_path, monkeypatch, model):
    """Whatever path leads to the model; nothing beside `passk`, and nothing in the model's folder."""
    inside = shutil.copytree(saved[0] / "adapter", tmp_path / "adapter") / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside if model != "." else inside.parent)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert passk.main(["--model", model, *QUICK]) == 0
    assert Path("passk", "adapter", "passk.json").is_file()
    after = {path for path in tmp_path.rglob("*") if path.is_file() and "passk" not in path.parent.parts}
    assert {path: path.stat().st_mtime_ns for path in after} == before


def test_nothing_is_written_through_a_link_in_the_folder_of_a_result(saved, tmp_path, capsys):
    out = tmp_path / "out"
    mine = tmp_path / "mine"
    out.mkdir()
    mine.mkdir()
    (out / "samples").symlink_to(mine)
    assert passk.main(["--model", str(saved[0] / "adapter"), *QUICK, "--out", str(out)]) == 2
    assert str(mine) in capsys.readouterr().err
    assert not list(mine.iterdir())


def test_the_default_folder_of_a_result_is_no_model_s(saved, tmp_path, monkeypatch, capsys):
    folder, base = saved
    monkeypatch.chdir(tmp_path)
    for name in ("a", "passk"):
        shutil.copytree(folder / "adapter", Path(name, "final"))
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), "passk/final")
    model.config._name_or_path = "passk/final"
    with pytest.raises(InputError, match="contains a model"):
        evaluate(model, None, lambda completion, row: True)
    assert passk.main(["--model", "a/final", *QUICK]) == 2
    assert "contains a model" in capsys.readouterr().err
