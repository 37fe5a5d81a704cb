"""pass@k of a model that belongs to no run: an adapter, the merged model, a model in memory."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from run_record import hash_files
from tiny_run import load_adapter, load_with_new_adapter
from torch.nn import Parameter
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_prorl import embedded_model, evaluate
from trl_prorl.errors import InputError
from trl_prorl.eval import passk
from trl_prorl.tasks import get_task


OPTIONS = ["--task", "reverse_digits@2", "--prompts", "24", "--n", "4", "--max-new-tokens", "8"]
QUICK = ["--task", "reverse_digits@2", "--prompts", "2", "--n", "1", "--max-new-tokens", "2", "--no-greedy"]


@pytest.fixture(scope="module")
def start():
    return embedded_model("embedded:reverse_digits")


@pytest.fixture(scope="module")
def saved(start, tmp_path_factory):
    """An adapter that changes the embedded model, and the merged model, as PEFT and transformers save them."""
    folder = tmp_path_factory.mktemp("models")
    model = load_with_new_adapter(start, noise=0.05)
    model.save_pretrained(folder / "adapter")
    model.merge_and_unload().save_pretrained(folder / "merged")
    AutoTokenizer.from_pretrained(start).save_pretrained(folder / "merged")
    return folder


@pytest.fixture
def model(saved, start):
    """The model with its adapter, in memory."""
    return load_adapter(start, saved / "adapter")


@pytest.fixture(autouse=True)
def folder_of_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def measure(*words):
    passk.main(["--model", *map(str, words), *OPTIONS])
    return json.loads(Path("passk", Path(words[0]).name, "passk.json").read_text())


def evaluate_quickly(model):
    rows = get_task("reverse_digits", level=2).rows("test", 2)
    return evaluate(model, rows, lambda *_: True, n=1, greedy=False, max_new_tokens=2)


def test_an_adapter_and_the_merged_model_are_one_model(saved, start):
    adapter = measure(saved / "adapter")
    merged = measure(saved / "merged", "--base", start)
    for side in ("base", "trained"):
        assert adapter[side] == merged[side]
        assert adapter["greedy"][side] == merged["greedy"][side]
    assert sum(adapter["trained"]["correct"]) > 0
    assert adapter["base"]["correct"] != adapter["trained"]["correct"]


def test_a_model_in_memory_is_measured_as_the_saved_one(saved, model):
    task = get_task("reverse_digits", level=2)
    result = evaluate(model, task.rows("test", 24), task.verify, n=4, max_new_tokens=8, output_dir="here")
    expected = measure(saved / "adapter")
    assert result["base"]["correct"] == expected["base"]["correct"]
    assert result["greedy"]["trained"] == expected["greedy"]["trained"]
    assert Path("here", "passk.json").is_file()


def test_another_model_of_the_same_name_keeps_its_result(model):
    for _ in range(2):
        evaluate_quickly(model)
    next(param for name, param in model.named_parameters() if "lora_B" in name).data += 0.1
    with pytest.raises(InputError, match="other weights.*output_dir="):
        evaluate_quickly(model)


def test_a_full_model_is_not_compared_with_itself(saved, start):
    with pytest.raises(InputError, match="--base NAME"):
        evaluate_quickly(AutoModelForCausalLM.from_pretrained(saved / "merged"))
    trained = AutoModelForCausalLM.from_pretrained(start)
    next(trained.parameters()).data += 0.1
    assert evaluate_quickly(trained)["base"]["pass@1"] == 1.0


def test_a_full_model_with_another_head_than_its_base_is_measured(start):
    trained = AutoModelForCausalLM.from_pretrained(start)
    trained.register_parameter("value_head", Parameter(torch.zeros(1)))
    assert evaluate_quickly(trained)["base"]["pass@1"] == 1.0


@pytest.mark.parametrize("model", ["..", ".", "../../adapter"])
def test_a_result_lies_in_a_folder_that_the_command_makes(saved, tmp_path, monkeypatch, model):
    """Whatever path leads to the model; nothing beside `passk`, and nothing in the model's folder."""
    inside = shutil.copytree(saved / "adapter", tmp_path / "adapter") / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside if model != "." else inside.parent)
    before = hash_files(tmp_path)
    assert passk.main(["--model", model, *QUICK]) == 0
    assert Path("passk", "adapter", "passk.json").is_file()
    assert hash_files(tmp_path, without=["passk"]) == before


def test_nothing_is_written_through_a_link_in_the_folder_of_a_result(saved, tmp_path, capsys):
    for name in ("out", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "samples").symlink_to(tmp_path / "mine")
    assert passk.main(["--model", str(saved / "adapter"), *QUICK, "--out", "out"]) == 2
    assert str(tmp_path / "mine") in capsys.readouterr().err
    assert not list((tmp_path / "mine").iterdir())


def test_the_default_folder_of_a_result_is_no_model_s(saved, start, capsys):
    for name in ("a", "passk"):
        shutil.copytree(saved / "adapter", Path(name, "final"))
    model = load_adapter(start, "passk/final")
    model.config._name_or_path = "passk/final"
    with pytest.raises(InputError, match="contains a model"):
        evaluate(model, None, lambda completion, row: True)
    assert passk.main(["--model", "a/final", *QUICK]) == 2
    assert "contains a model" in capsys.readouterr().err
