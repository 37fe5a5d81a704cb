"""`push_to_hub: true`, in trainers and in whole processes, against hub_server.py; and what is served in the end."""

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from hub_server import TOKEN
from huggingface_hub import ModelCard, snapshot_download
from run_record import errors, read_rows
from tiny_run import loaded
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_prorl.checkpoint.files import why_unusable


ROOT = Path(__file__).parent.parent
SMALL = "--max_steps 3 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --ref_reset_every 1 "
SMALL += "--lora_r 4 --disable_tqdm true --push_to_hub true"
MODEL = {"README.md", "adapter_config.json", "adapter_model.safetensors"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
RECORD = {"config.yaml", "env.json", "metrics.jsonl", "events.jsonl"}
REFERENCE = {"ref/adapter_config.json", "ref/adapter_model.safetensors"}
A = {"beta": 0.1, "ref_reset_every": 1, "max_steps": 2, "push_to_hub": True}


# ------------------------------------------------------------------------------------------------ whole processes


@pytest.fixture
def recipe(hub_forks, tiny_model, tmp_path):
    """A function that runs variant A in a process of its own: exit status, what it wrote, and the run folder."""
    out, script = tmp_path / "a-run", ROOT / "recipes" / "grpo_variantA.py"

    def run(*arguments):
        options = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *SMALL.split(), *arguments]
        return *hub_forks.run(script, *options), out

    return run


def test_a_run_is_pushed_scored_and_pushed_again(recipe, hub, hub_forks, tiny_model, tmp_path):
    status, written, out = recipe("--hub_model_id", "someone/reversed", "--hub_token", TOKEN)
    assert status == 0, written[-3000:]
    assert set(hub.files("someone/reversed")) == MODEL | TOKENIZER | RECORD
    assert hub.repos["someone/reversed"]["commits"] == ["End of training"]
    for path in (path for path in out.rglob("*") if path.is_file()):
        assert TOKEN.encode() not in path.read_bytes(), f"{path} holds the token"
    assert not any(TOKEN.encode() in content for content in hub.files("someone/reversed").values())
    card = ModelCard(hub.files("someone/reversed")["README.md"].decode())
    assert card.data.base_model is None and card.data.library_name == "peft" and "variant-A" in card.data.tags
    assert f"`{Path(tiny_model).name}`, a local folder" in card.text and "[None]" not in card.text
    assert "Not evaluated yet" in card.text and "| 1 | 2 | periodic | keep |" in card.text

    status, written = hub_forks.run("-m", "eval.passk", "--run", out, *"--prompts 20 --n 2 --k 1 2".split())
    assert status == 0, written[-3000:]
    status, written = hub_forks.run("-m", "eval.push", "--run", out)
    assert status == 0 and "pushed " in written, written[-3000:]
    assert len(hub.repos["someone/reversed"]["commits"]) == 2

    passk = json.loads((out / "passk.json").read_text())
    card = ModelCard(hub.files("someone/reversed")["README.md"].decode())
    found = {result.metric_type: result for result in card.data.eval_results}
    assert set(found) == {"pass@1", "pass@2", "accuracy"}
    assert found["accuracy"].metric_value == passk["greedy"]["trained"]["accuracy"]
    for k in (1, 2):
        assert found[f"pass@{k}"].metric_value == passk["trained"][f"pass@{k}"]
        assert found[f"pass@{k}"].metric_args["interval_95"] == passk["trained"][f"interval@{k}"]
        assert found[f"pass@{k}"].metric_args["base"] == passk["base"][f"pass@{k}"]


def test_a_failing_upload_loses_nothing_and_the_command_it_names_pushes(recipe, hub, hub_forks):
    hub.fail("/commit/", 500)
    status, written, out = recipe()
    assert status == 1 and "Traceback" not in written
    (line,) = errors(written)
    assert "the push to someone/a-run failed: the Hub answers 500" in line and "ordered" in line
    assert line.endswith(f"Try it again with `trl-prorl push --run {out}`")
    assert hub.files("someone/a-run") == {} and [row["step"] for row in read_rows(out)] == [1, 2, 3]
    hub.failures.clear()
    status, written = hub_forks.run("-m", "eval.push", *line.split("trl-prorl push ")[1].rstrip("`").split())
    assert status == 0, written
    for file in (*MODEL, *TOKENIZER, "metrics.jsonl", "events.jsonl"):
        assert hub.files("someone/a-run")[file] == (out / file).read_bytes(), file


NO_ADAPTER = "--hub_push_reference true --ref_reset_every 0"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("--hub_token hf_wrong", ["hub_model_id='a-run'", "401", "hub_token"]),
        (f"{NO_ADAPTER} --beta 0", ["hub_push_reference=True", "beta=0"]),
        (NO_ADAPTER, ["hub_push_reference=True", "adapter"]),
    ],
)
def test_what_could_not_be_pushed_is_refused_before_a_model_is_loaded(recipe, hub, arguments, parts):
    status, written, out = recipe(*arguments.split())
    assert status == 2 and "Traceback" not in written, written[-3000:]
    (line,) = errors(written)
    assert all(part in line for part in parts)
    assert not out.exists() and hub.repos == {}
    assert "Loading weights" not in written


# ------------------------------------------------------------------------------------------------------- trainers


def test_the_adapter_that_comes_down_is_the_one_that_was_trained_with_the_reference_if_asked_for(
    online, run, tiny_model, tmp_path
):
    trainer = run(**A, hub_model_id="someone/adapter", hub_push_reference=True)
    trainer.push_to_hub()
    assert set(online.files("someone/adapter")) == MODEL | TOKENIZER | RECORD | REFERENCE
    down = Path(snapshot_download("someone/adapter", cache_dir=tmp_path / "cache"))
    theirs = dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters())
    pushed = loaded(tiny_model, down).named_parameters()
    trained = {name: param for name, param in pushed if ".default." in name}
    assert trained and all(torch.equal(param, theirs[name]) for name, param in trained.items())


def test_a_full_model_is_pushed_as_one(online, run, tiny_model, tmp_path):
    trainer = run(lora=False, **A, hub_model_id="someone/full")
    trainer.push_to_hub()
    files = set(online.files("someone/full"))
    assert {"config.json", "generation_config.json", "model.safetensors"} <= files
    assert "reference.safetensors" not in files
    card = ModelCard(online.files("someone/full")["README.md"].decode())
    assert card.data.library_name == "transformers" and "lora" not in card.data.tags
    assert f"`{Path(tiny_model).name}`, a local folder" in card.text
    down = AutoModelForCausalLM.from_pretrained(snapshot_download("someone/full", cache_dir=tmp_path / "cache"))
    assert torch.equal(down.lm_head.weight, trainer.model.lm_head.weight)


def test_every_save_pushes_the_model_and_leaves_the_reference_out(online, run):
    trainer = run(**A, hub_model_id="someone/saved", save_strategy="steps", save_steps=1, hub_always_push=True)
    trainer._finish_current_push()
    assert online.repos["someone/saved"]["commits"] == ["Training in progress, step 1", "Training in progress, step 2"]
    assert set(online.files("someone/saved")) == MODEL | TOKENIZER | RECORD
    weights = Path(trainer.args.output_dir, "checkpoint-2", "adapter_model.safetensors").read_bytes()
    assert online.files("someone/saved")["adapter_model.safetensors"] == weights
    assert "for 2 optimizer steps" in online.files("someone/saved")["README.md"].decode()
    assert not list(Path(trainer.args.output_dir).glob("_*"))


def test_nothing_is_pushed_before_the_end_if_so_asked(online, run):
    run(**A, hub_model_id="someone/end", save_strategy="steps", save_steps=1, hub_strategy="end")
    assert online.repos["someone/end"]["commits"] == []


@pytest.mark.parametrize(
    ("strategy", "folders"),
    [("checkpoint", ["last-checkpoint"]), ("all_checkpoints", ["checkpoint-1", "checkpoint-2"])],
)
def test_a_pushed_checkpoint_can_be_resumed_from(online, run, tmp_path, strategy, folders):
    keys = {"hub_strategy": strategy, "save_strategy": "steps", "save_steps": 1, "hub_always_push": True}
    keys |= {"save_total_limit": 1}  # the first is deleted here while it may still be on its way
    trainer = run(**A, hub_model_id="someone/whole", hub_token=TOKEN, **keys)
    trainer._finish_current_push()
    files = online.files("someone/whole")
    assert {path.split("/")[0] for path in files if "/" in path} == set(folders)
    assert not any(TOKEN.encode() in content for content in files.values())
    down = Path(snapshot_download("someone/whole", cache_dir=tmp_path / "cache"))
    for folder in folders:
        assert why_unusable(down / folder) is None
    steps = [json.loads((down / folder / "manifest.json").read_text())["step"] for folder in folders]
    assert steps == ([2] if strategy == "checkpoint" else [1, 2])


def test_a_push_that_fails_in_the_middle_does_not_stop_the_training(online, run, caplog):
    online.fail("/commit/", 500)
    trainer = run(**A, hub_model_id="someone/later", save_strategy="steps", save_steps=1)
    trainer._finish_current_push()
    assert trainer.state.global_step == 2 and online.files("someone/later") == {}
    assert "Training goes on, but the push to someone/later failed: the Hub answers 500" in caplog.text
    assert not list(Path(trainer.args.output_dir).glob("_*"))
    online.failures.clear()
    trainer.push_to_hub()
    assert set(online.files("someone/later")) == MODEL | TOKENIZER | RECORD


def test_a_push_that_does_not_block_gives_a_future(online, run):
    trainer = run(**A, hub_model_id="someone/future")
    assert trainer.push_to_hub(blocking=False).result(timeout=60).oid == online.sha("someone/future")


def test_the_card_is_right_without_any_push(run, tiny_model):
    trainer = run(beta=0.1, ref_reset_every=1, max_steps=4, save_strategy="steps", save_steps=4)  # μ = 2: one reset
    path = Path(trainer.args.output_dir, "README.md")
    assert "Resets applied: 1." in path.read_text(), "written at a save"
    trainer.save_model()
    card = ModelCard.load(path)
    assert "[More Information Needed]" not in card.text, "PEFT's"
    assert f"`{Path(tiny_model).name}`, a local folder" in card.text and card.data.base_model is None
    assert {"trl", "grpo", "prorl", "variant-A"} <= set(card.data.tags)


def test_a_record_that_cannot_be_read_does_not_stop_the_training(run, tmp_path, caplog):
    out = tmp_path / "run"
    out.mkdir()
    (out / "passk.json").write_text("{")
    trainer = run(output_dir=str(out), max_steps=1, save_strategy="steps", save_steps=1)
    assert trainer.state.global_step == 1 and "The model card is not up to date" in caplog.text


# --------------------------------------------------------------------------------------------------- the result


def test_the_page_s_five_lines_merge_and_generate(run, tiny_model, tmp_path, monkeypatch, capsys):
    section = (ROOT / "docs" / "publishing.md").read_text().split("## Use the result")[1].split("\n## ")[0]
    code = re.search(r"```python\n(.*?)```", section, re.S)[1]
    assert len([line for line in code.splitlines() if line]) == 5
    save = re.search(r"`(generate\.save_pretrained\(.*?\))`", section)[1]
    trainer = run(beta=0.1, ref_reset_every=1, max_steps=3, learning_rate=0.05)
    trainer.save_model()
    monkeypatch.chdir(tmp_path)
    for theirs, ours in (("Qwen/Qwen2.5-0.5B-Instruct", tiny_model), ("runs/my-run", trainer.args.output_dir)):
        assert theirs in code
        code = code.replace(theirs, ours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(f"{code}\n{save}", {})
    assert capsys.readouterr().out.strip(), "it generates"
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    assert AutoTokenizer.from_pretrained("merged").chat_template == trainer.processing_class.chat_template
    ids = torch.arange(5, 29)[None]
    merged = AutoModelForCausalLM.from_pretrained("merged", dtype="float32")(ids).logits
    untrained = AutoModelForCausalLM.from_pretrained(tiny_model, dtype="float32")(ids).logits
    adapted = loaded(tiny_model, trainer.args.output_dir, "float32")(ids).logits
    assert (merged - adapted).abs().max() < 1e-4 < (adapted - untrained).abs().max()
