"""The starting model is the commit that a run or an adapter began from, on a Hub whose `main` has other weights."""

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from datasets import Dataset
from hub_cache import cache_model
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from tiny_run import LORA, load_adapter, load_with_new_adapter
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer, RunRecorder, evaluate
from trl_prorl.errors import InputError
from trl_prorl.eval import passk
from trl_prorl.eval.run_folder.reading import load_config
from trl_prorl.eval.samples import models
from trl_prorl.eval.samples.held_out import HeldOut, held_out_model
from trl_prorl.eval.samples.models import identity, load_base_model, with_base_model
from trl_prorl.eval.samples.task_name import TaskName
from trl_prorl.eval.samples.trainer_held_out import TrainerHeldOut
from trl_prorl.run.starting import note_start, starting_weights


NAME = "some/base"
MAIN = "1" * 40
STARTED = "2" * 40
OTHER_TEMPLATE = "{{ messages[0]['content'] }}: "
ROWS = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"sing {i}"}] for i in range(4)]})
QUICK = ["--task", "reverse_digits@2", "--prompts", "4", "--n", "2", "--max-new-tokens", "6", "--no-greedy"]


@pytest.fixture
def started(tiny_model, tmp_path, monkeypatch):
    """The Hub's cache has `main` and the revision `v1`, whose folder is returned: from there everything begins."""
    newer = shutil.copytree(tiny_model, tmp_path / "newer")
    model = AutoModelForCausalLM.from_pretrained(newer)
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(1.5)
    model.save_pretrained(newer)
    tokenizer = AutoTokenizer.from_pretrained(newer)
    tokenizer.chat_template = OTHER_TEMPLATE
    tokenizer.save_pretrained(newer)
    hub = tmp_path / "hub"
    cache_model(hub, NAME, {"main": (MAIN, newer), "v1": (STARTED, tiny_model)})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tiny_model


@pytest.fixture
def adapter(started, tmp_path):
    """An adapter that was trained from `v1`, and names it as PEFT does."""
    model = load_with_new_adapter(started)
    model.peft_config["default"].base_model_name_or_path = NAME
    model.peft_config["default"].revision = STARTED
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def drawn(folder, *words):
    """Sample a model by the command, and return its completions and those of its base."""
    assert passk.main(["--model", str(folder), *QUICK, *map(str, words)]) == 0
    samples = Path(words[words.index("--out") + 1] if "--out" in words else Path("passk", folder.name), "samples")
    return [pd.read_parquet(next(samples.glob(f"{side}-*")))["completion"].tolist() for side in ("base", "trained")]


def evaluate_quickly(model, **keys):
    return evaluate(model, ROWS, lambda *_: True, n=1, greedy=False, max_new_tokens=2, **keys)


def note_base(folder, **noted):
    """Write the base model that a run in a folder has noted."""
    Path(folder, "env.json").write_text(json.dumps({"base_model": {"name": NAME, **noted}}))


def same_weights(model, folder):
    wanted = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())


def is_compared_with(trainer, folder):
    """Return whether the base of a trainer's evaluations has the weights in a folder."""
    held_out = TrainerHeldOut(trainer, ROWS, None, "own")
    with held_out.scored(held_out.base) as model:
        return same_weights(model, folder)


def test_an_adapter_is_measured_on_the_revision_that_it_names(started, adapter, tmp_path, capsys):
    by_name = drawn(adapter)
    assert "adapter_config.json" not in capsys.readouterr().out
    assert drawn(adapter, "--base", started, "--out", "by-folder") == by_name
    assert f"the adapter was trained from {NAME}" in capsys.readouterr().out
    assert drawn(adapter, "--base", tmp_path / "newer", "--out", "newer-base") != by_name


def test_a_result_s_folder_says_nothing_about_the_model(started, adapter):
    """It is that of a run from another base, with an adapter of its own at the start."""
    shutil.copytree(adapter, "runs/a/base_adapter")
    note_base("runs/a", hub_id=NAME, commit=MAIN)
    assert drawn(adapter, "--out", "runs/a") == drawn(adapter)
    note_base("runs/a", sha256="other")
    assert evaluate_quickly(load_adapter(started, adapter).merge_and_unload(), output_dir="runs/a")


def test_two_models_of_one_name_have_no_folder_in_common(adapter, tmp_path, capsys):
    shutil.copytree(adapter, "b/adapter")
    drawn(adapter)
    model = load_with_new_adapter(tmp_path / "newer", noise=0.1)
    model.save_pretrained("b/adapter")
    before = Path("passk/adapter/passk.json").read_bytes()
    assert passk.main(["--model", "b/adapter", *QUICK]) == 2
    assert "--out DIR" in capsys.readouterr().err
    assert Path("passk/adapter/passk.json").read_bytes() == before
    drawn(adapter)  # the same again


def test_a_tokenizer_is_of_the_commit_that_the_run_noted(started, adapter):
    (adapter / "config.yaml").write_text(yaml.safe_dump({"model_name_or_path": NAME, "task": "reverse_digits"}))
    note_base(adapter, hub_id=NAME, commit=STARTED)
    wanted = AutoTokenizer.from_pretrained(started).chat_template
    assert HeldOut(adapter, "test", 2).tokenizer.chat_template == wanted != OTHER_TEMPLATE
    options = {"seed": 0, "batch_size": 8, "temperature": None, "max_new_tokens": None}
    args = {"model": str(adapter), "base": None, "task": "sorting", "out": adapter, "split": "test", "prompts": 2}
    assert held_out_model(Namespace(**args, **options)).tokenizer.chat_template == wanted


def record(make_trainer, cls, lora, model, folder, **keys):
    """Train one step with the log files of a run, and return the trainer."""
    recorder = [RunRecorder()] if cls is GRPOTrainer else []
    keys |= {"max_steps": 1, "output_dir": str(folder)}
    trainer = make_trainer(cls, lora=lora, model=model, trainer_kwargs={"callbacks": recorder}, **keys)
    trainer.train()
    trainer.save_model()
    return trainer


BOTH = pytest.mark.parametrize("cls", [ProRLTrainer, GRPOTrainer])
EITHER = pytest.mark.parametrize("lora", [True, False])


@BOTH
@EITHER
def test_a_run_by_name_notes_its_commit(started, make_trainer, tmp_path, cls, lora):
    """`main` may move, and a branch, too: a saved adapter names the commit."""
    trainer = record(make_trainer, cls, lora, NAME, tmp_path / "run", model_init_kwargs={"revision": "v1"})
    if lora:
        saved = json.loads((tmp_path / "run/adapter_config.json").read_text())
        assert (saved["base_model_name_or_path"], saved["revision"]) == (NAME, STARTED)
    (tmp_path / "hub/models--some--base/refs/v1").write_text(MAIN)
    config = with_base_model(tmp_path / "run", load_config(tmp_path / "run"))
    assert same_weights(load_base_model(config), started)
    if not lora:
        assert is_compared_with(trainer, started)


@EITHER
def test_a_resume_keeps_the_start_of_the_run(started, make_trainer, tmp_path, lora):
    """Whenever the recorder is added; with another model as the trainer's it is refused."""

    def train(steps, revision="v1", **given):
        keys = {"model_init_kwargs": {"revision": revision}, "save_strategy": "steps", "save_steps": 1}
        trainer = make_trainer(
            GRPOTrainer,
            lora,
            model=NAME,
            output_dir=str(tmp_path / "run"),
            max_steps=steps,
            trainer_kwargs=given,
            **keys,
        )
        if not given:
            trainer.add_callback(RunRecorder())
        trainer.train(resume_from_checkpoint=steps > 1)
        env = json.loads((tmp_path / "run/env.json").read_text())
        return env["base_model"], env["starting_weights"]

    noted = train(1)
    assert noted[0]["commit"] == STARTED
    assert train(2) == noted
    with pytest.raises(ValueError, match=f"other weights.*{STARTED}"):
        train(3, "main", callbacks=[RunRecorder()])


def test_a_trainer_without_log_files_keeps_its_revision(started, make_trainer):
    trainer = make_trainer(GRPOTrainer, lora=False, model=NAME, model_init_kwargs={"revision": "v1"})
    assert is_compared_with(trainer, started)


@BOTH
@EITHER
def test_a_model_object_of_a_revision_is_not_main_s(started, make_trainer, tmp_path, monkeypatch, cls, lora):
    folder = tmp_path / "run"
    model = AutoModelForCausalLM.from_pretrained(NAME, revision="v1")
    record(make_trainer, cls, lora, model, folder)
    assert json.loads((folder / "env.json").read_text())["base_model"]["commit"] is None
    assert not lora or json.loads((folder / "adapter_config.json").read_text())["revision"] is None
    config = load_config(folder)
    with pytest.raises(InputError, match=f"other weights than those of {NAME} at main: .*revision: COMMIT"):
        load_base_model(with_base_model(folder, config))
    config["model_init_kwargs"] = {"revision": "v1"}
    for dtype in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(models, "evaluation_dtype", lambda config, dtype=dtype: dtype)
        assert load_base_model(with_base_model(folder, config)).dtype == dtype


@pytest.mark.parametrize(
    "name, prefix, dtype", [(NAME, "", torch.float16), (NAME, "model.", torch.float32), ("bare", "", torch.float32)]
)
def test_a_commit_is_that_of_the_weights_in_memory(started, tmp_path, name, prefix, dtype):
    """Files of older models (GPT-2) lack the prefix of their names in memory, and their names have no owner."""
    shutil.copytree(tmp_path / "hub/models--some--base", tmp_path / "hub/models--bare")
    for file in (tmp_path / "hub").rglob("*.safetensors"):
        tensors = {key.removeprefix(prefix): tensor for key, tensor in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(name, revision="v1", dtype=dtype)
    assert note_start(model, {"revision": "v1"}).commit == STARTED
    assert note_start(model, None).commit is None


def test_a_run_in_bfloat16_started_from_the_weights_that_are_loaded_in_float32(started, make_trainer, tmp_path):
    keys = {"model_init_kwargs": {"revision": "v1", "dtype": "bfloat16"}, "output_dir": str(tmp_path / "run")}
    wrapped = {"peft_config": LoraConfig(**LORA, modules_to_save=["embed_tokens"])}
    make_trainer(model=NAME, **keys, max_steps=1, trainer_kwargs=wrapped).train()
    noted = json.loads((tmp_path / "run/env.json").read_text())
    assert noted["base_model"]["commit"] == STARTED
    assert starting_weights(AutoModelForCausalLM.from_pretrained(started)) == noted["starting_weights"]


@pytest.mark.parametrize("place", ["", "inner"])
def test_a_local_base_is_known_by_its_weights_also_in_a_subfolder(started, tmp_path, place):
    folder = tmp_path / "base" / place
    shutil.copytree(started, folder)
    config = {"model_name_or_path": str(tmp_path / "base"), "model_init_kwargs": {"subfolder": place}}
    before = identity(None, with_base_model(None, config))
    shutil.copy(tmp_path / "newer/model.safetensors", folder)
    assert identity(None, with_base_model(None, config)) != before


@pytest.mark.parametrize("unload", [True, False])
def test_a_merged_adapter_is_refused_before_anything_is_sampled(started, adapter, monkeypatch, unload):
    model = load_adapter(started, adapter)
    monkeypatch.setattr(TrainerHeldOut, "samples", lambda *args: pytest.fail("something is sampled"))
    model.merge_and_unload() if unload else model.merge_adapter()
    with pytest.raises(InputError, match=r"unmerge_adapter\(\)"):
        evaluate_quickly(model)


def test_a_file_of_fewer_rows_than_the_default_is_used_whole(run_dir, tmp_path, capsys):
    rows = [{"problem": f"What is {i} + 1?", "solution": f"\\boxed{{{i + 1}}}"} for i in range(32)]
    for file in ("train.jsonl", "test.jsonl"):
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = TaskName("math", path=str(tmp_path))
    assert len(HeldOut(run_dir, "test", None, name=name).rows) == 32
    assert "all 32 rows are used" in capsys.readouterr().out
    with pytest.raises(InputError, match="--prompts 33"):
        HeldOut(run_dir, "test", 33, name=name)
