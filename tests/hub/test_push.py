"""
`trl-prorl push` and `push_to_hub: true`, in trainers and in whole processes, against hub_server.py: the files, a
repetition, the message when it fails; and what is served in the end.
"""

import json
from pathlib import Path
from shutil import copy

import pytest
import torch
from hub_server import TOKEN
from huggingface_hub import ModelCard, constants, snapshot_download
from run_record import error_lines, modification_times, write_run
from safetensors.torch import save_file
from tiny_run import load_adapter
from transformers import AutoModelForCausalLM

from trl_prorl import embedded_model
from trl_prorl.cli.plan import Plan
from trl_prorl.errors import PushError
from trl_prorl.eval import push as command


SCRIPT = Path(__file__).parents[2] / "recipes" / "grpo_variantA.py"
SMALL = "--max_steps 3 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --ref_reset_every 1 "
SMALL += "--lora_r 4 --disable_tqdm true --push_to_hub true"
MODEL = {"README.md", "adapter_config.json", "adapter_model.safetensors"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
RECORD = {"config.yaml", "env.json", "metrics.jsonl", "events.jsonl"}
REFERENCE = {"ref/adapter_config.json", "ref/adapter_model.safetensors"}
A = {"beta": 0.1, "ref_reset_every": 1, "max_steps": 2, "push_to_hub": True}


# ------------------------------------------------------------------------------------------------ whole processes


def test_a_run_is_pushed_scored_and_pushed_again(hub, hub_forks, tiny_model, tmp_path):
    out = tmp_path / "a-run"
    options = ["--model_name_or_path", tiny_model, "--output_dir", str(out), "--hub_model_id", "someone/reversed"]
    status, written = hub_forks.run(SCRIPT, *options, "--hub_token", TOKEN, *SMALL.split())
    assert status == 0, written[-3000:]
    assert set(hub.files("someone/reversed")) == MODEL | TOKENIZER | RECORD
    assert hub.repos["someone/reversed"]["commits"] == ["End of training"]
    for path in (path for path in out.rglob("*") if path.is_file()):
        assert TOKEN.encode() not in path.read_bytes(), f"{path} holds the token"
    assert not any(TOKEN.encode() in content for content in hub.files("someone/reversed").values())
    status, written = hub_forks.run("-m", "eval.passk", "--run", out, *"--prompts 20 --n 2 --k 1 2".split())
    assert status == 0, written[-3000:]
    hub.requests.clear()
    status, written = hub_forks.run("-m", "eval.push", "--run", out)
    assert status == 0 and "pushed " in written, written[-3000:]
    assert len(hub.repos["someone/reversed"]["commits"]) == 2
    assert "passk.json" in hub.files("someone/reversed")
    assert not any(request.startswith("PUT ") for request in hub.requests), "the weights were there"

    passk = json.loads((out / "passk.json").read_text())
    card = ModelCard(hub.files("someone/reversed")["README.md"].decode())
    found = {result.metric_type: result.metric_value for result in card.data.eval_results}
    expected = {name: passk["trained"][name] for name in ("pass@1", "pass@2")}
    assert found == expected | {"accuracy": passk["greedy"]["trained"]["accuracy"]}


# ------------------------------------------------------------------------------------------------------- trainers


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"hub_token": "hf_wrong"}, "Invalid user token.*hub_token"),
        ({"hub_push_reference": True, "ref_reset_every": 0}, "hub_push_reference=True"),
    ],
)
def test_what_could_not_be_pushed_is_refused_before_a_model_is_loaded(online, make_trainer, monkeypatch, keys, named):
    monkeypatch.setattr(Plan, "loading", lambda plan: pytest.fail("a model is loaded"))
    with pytest.raises(ValueError, match=named):
        make_trainer(**A | keys)
    assert online.repos == {}


def test_the_adapter_that_comes_down_is_the_one_that_was_trained_with_the_reference_if_asked_for(
    online, run, tiny_model, tmp_path
):
    trainer = run(**A, hub_model_id="someone/adapter", hub_push_reference=True)
    trainer.push_to_hub()
    assert set(online.files("someone/adapter")) == MODEL | TOKENIZER | RECORD | REFERENCE
    down = Path(snapshot_download("someone/adapter", cache_dir=tmp_path / "cache"))
    theirs = dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters())
    pushed = load_adapter(tiny_model, down).named_parameters()
    trained = {name: param for name, param in pushed if ".default." in name}
    assert trained
    assert all(torch.equal(param, theirs[name]) for name, param in trained.items())


def test_a_full_model_is_pushed_as_one(online, run, tmp_path):
    trainer = run(lora=False, **A, hub_model_id="someone/full")
    assert trainer.push_to_hub(blocking=False).result(timeout=60).oid == online.sha("someone/full")  # a future
    files = set(online.files("someone/full"))
    assert {"config.json", "generation_config.json", "model.safetensors"} <= files
    assert "reference.safetensors" not in files
    down = AutoModelForCausalLM.from_pretrained(snapshot_download("someone/full", cache_dir=tmp_path / "cache"))
    assert torch.equal(down.lm_head.weight, trainer.model.lm_head.weight)


def names(folder):
    """The files of a folder, at any depth."""
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_a_push_that_fails_loses_nothing_and_the_command_it_names_pushes(online, run, caplog):
    online.fail("/commit/", 500)
    trainer = run(**A, hub_model_id="someone/later", save_strategy="steps", save_steps=1)
    trainer._finish_current_push()
    assert trainer.state.global_step == 2
    assert "the push to someone/later failed" in caplog.text
    out = Path(trainer.args.output_dir)
    with pytest.raises(PushError, match="500") as failed:
        trainer.push_to_hub()
    assert str(failed.value).endswith(f"`trl-prorl push --run {out} --repo someone/later`")
    assert online.files("someone/later") == {}
    assert not list(out.glob("_*"))
    online.failures.clear()
    assert command.main(["--run", str(out)]) == 0
    assert set(online.files("someone/later")) == MODEL | TOKENIZER | RECORD
    for file in (*MODEL, *TOKENIZER, "metrics.jsonl", "events.jsonl"):
        assert online.files("someone/later")[file] == (out / file).read_bytes(), file


# ---------------------------------------------------------------------------------------------------- the command


SECRET = "hf_" + "S" * 34
REPO = "someone/a-run"
ADAPTER = MODEL | TOKENIZER


@pytest.fixture
def folder(tmp_path):
    """A run folder with everything that may lie in one."""
    run = tmp_path / "a-run"
    for part in ("", "ref", "base", "checkpoint-2", "completions", "_writing-3", "_push-2", "runs"):
        (run / part).mkdir(exist_ok=True)
        save_file({"w": torch.ones(3)}, run / part / "adapter_model.safetensors")
        (run / part / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen2.5-0.5B"}')
        for file in ("training_args.bin", "optimizer.pt"):
            (run / part / file).write_bytes(b"pickle")
    for file in ("metrics.1.jsonl", "train.log"):
        (run / file).touch()
    (run / ".env").write_text(f"HF_TOKEN={SECRET}")
    recipe = {"task": "sorting", "hub_token": SECRET, "model_init_kwargs": {"token": SECRET}}
    recipe["output_dir"] = str(run)
    for file in TOKENIZER:
        copy(Path(embedded_model(), file), run)
    return write_run(run, recipe, [{"step": 1}], [], env={"variant": "A"})


@pytest.mark.parametrize(
    ("options", "pushed"),
    [
        ([], ADAPTER | RECORD),
        (["--without-record"], ADAPTER),
        (["--with-reference"], ADAPTER | RECORD | REFERENCE),
    ],
)
def test_the_hub_has_exactly_what_was_asked(online, folder, options, pushed):
    for _ in range(2):  # the second has nothing new, and makes no commit
        assert command.main(["--run", str(folder), *options]) == 0
    files = online.files(REPO)
    assert set(files) == pushed
    assert not any(SECRET.encode() in content for content in files.values())
    assert len(online.repos[REPO]["commits"]) == 1
    assert online.repos[REPO]["private"] is False


# Files of a full model, which was pushed to the same repository; and others, with those that a resume needs
OF_ANOTHER = {"model.safetensors", "config.json", "ref/model.safetensors", "vocab.json", "passk.json"}
OTHERS = {"notes.txt", "model-a/b.safetensors", "last-checkpoint/optimizer.pt", "base_adapter/adapter_config.json"}
OTHERS.add("None/notes.txt")


@pytest.mark.parametrize("options", [[], ["--without-record"]])
def test_a_push_replaces_the_model_and_the_logs_of_an_earlier_one(online, folder, options):
    online.repos[REPO] = {"files": dict.fromkeys(OF_ANOTHER | OTHERS, b""), "commits": ["old"], "private": False}
    assert command.main(["--run", str(folder), *options]) == 0
    logs = {"passk.json"} if options else RECORD
    assert set(online.files(REPO)) == ADAPTER | OTHERS | logs
    assert len(online.repos[REPO]["commits"]) == 2


def test_a_dry_run_asks_nobody_and_writes_nothing(online, folder, capsys):
    before = modification_times(folder)
    assert command.main(["--run", str(folder), "--dry-run"]) == 0
    written = capsys.readouterr().out
    assert "adapter_model.safetensors" in written
    assert "training_args" not in written
    assert online.requests == []
    assert modification_times(folder) == before


def add_another_user_s(hub, at, patch):
    hub.repos["others/public"] = {"files": {}, "commits": [], "private": False}


# What is wrong, the options, and what the line says.
CASES = [
    (lambda hub, at, patch: patch.setenv("HF_TOKEN", "hf_wrong"), [], "Invalid user token"),
    (add_another_user_s, ["--repo", "others/public"], "write access"),
    (None, ["--repo", "a/b/c"], "hub_model_id='a/b/c'"),
    (lambda hub, at, patch: patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9"), [], "ConnectError"),
    (lambda hub, at, patch: (at / "adapter_model.safetensors").unlink(), [], "no trained model"),
    (lambda hub, at, patch: (at / "vocab.txt").symlink_to("/etc/hostname"), [], "vocab.txt"),
]


@pytest.mark.parametrize("spoil, options, part", CASES)
def test_what_cannot_be_pushed_is_one_line(online, folder, monkeypatch, capsys, spoil, options, part):
    online.repos["someone/a-run"] = {"files": {}, "commits": [], "private": False}
    if spoil is not None:
        spoil(online, folder, monkeypatch)
    assert command.main(["--run", str(folder), *options]) == 2
    (line,) = error_lines(capsys.readouterr().err)
    assert part in line
    assert all(repo["files"] == {} for repo in online.repos.values())


def test_an_adapter_trained_on_a_download_names_the_hub_s_model(online, folder):
    cached = "/home/me/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/snapshots/0a1b2c"
    config = {"base_model_name_or_path": cached, "revision": None, "r": 8}
    names = ("adapter_config.json", "ref/adapter_config.json")
    for name in names:
        (folder / name).write_text(json.dumps(config))
    assert command.main(["--run", str(folder), "--with-reference"]) == 0
    for name in names:
        pushed = json.loads(online.files(REPO)[name])
        assert pushed == {"base_model_name_or_path": "Qwen/Qwen2.5-0.5B", "revision": "0a1b2c", "r": 8}
        assert json.loads((folder / name).read_text()) == config
