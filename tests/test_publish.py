"""The files of a push, its repetition and the message when it fails: the Hub's own client against hub_server.py."""

import json
from pathlib import Path
from shutil import rmtree

import pytest
import yaml
from huggingface_hub import ModelCard, constants, snapshot_download
from run_record import errors, write_run
from safetensors.torch import load_file, save_file
from torch import ones

from eval import push as command
from trl_prorl.errors import PushError
from trl_prorl.hub import publish
from trl_prorl.record.run_id import write_run_id


SECRET = "hf_" + "S" * 34
REPO = "someone/a-run"


@pytest.fixture
def run(tmp_path):
    """A run folder with everything that may lie in one."""
    folder = tmp_path / "a-run"
    for part in ("", "ref", "base", "checkpoint-2", "completions", "_incomplete-checkpoint-3", "_push-2", "runs"):
        (folder / part).mkdir(exist_ok=True)
        save_file({"w": ones(3)}, folder / part / "adapter_model.safetensors")
        (folder / part / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen2.5-0.5B"}')
        for file in ("training_args.bin", "optimizer.pt"):
            (folder / part / file).write_bytes(b"pickle")
    for file in ("metrics.1.jsonl", "train.log"):
        (folder / file).touch()
    (folder / ".env").write_text(f"HF_TOKEN={SECRET}")
    recipe = {"task": "sorting", "hub_token": SECRET, "model_init_kwargs": {"token": SECRET}}
    return write_run(
        folder, recipe | {"output_dir": str(folder)}, [{"step": 1}], [], env={"variant": "A"}, tokenizer={}
    )


MODEL = {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"}
RECORD = {"config.yaml", "env.json", "metrics.jsonl", "events.jsonl"}
REFERENCE = {"ref/adapter_config.json", "ref/adapter_model.safetensors"}


@pytest.mark.parametrize(
    ("options", "pushed"),
    [
        ([], MODEL | RECORD),
        (["--with-record"], MODEL | RECORD),
        (["--without-record"], MODEL),
        (["--with-reference"], MODEL | RECORD | REFERENCE),
    ],
)
def test_the_hub_has_exactly_what_was_asked(online, run, options, pushed):
    assert command.main(["--run", str(run), *options]) == 0
    files = online.files(REPO)
    assert set(files) == pushed
    assert not any(SECRET.encode() in content for content in files.values())
    assert len(online.repos[REPO]["commits"]) == 1 and online.repos[REPO]["private"] is False


def test_what_comes_down_is_what_went_up(online, run, tmp_path):
    assert command.main(["--run", str(run), "--repo", "someone/else", "--private"]) == 0
    assert online.repos["someone/else"]["private"] is True
    down = Path(snapshot_download("someone/else", cache_dir=tmp_path / "cache"))
    assert load_file(down / "adapter_model.safetensors")["w"].tolist() == [1, 1, 1]
    assert yaml.safe_load((down / "config.yaml").read_text())["task"] == "sorting"
    assert ModelCard.load(down / "README.md").data.base_model == "Qwen/Qwen2.5-0.5B"
    assert (down / "README.md").read_text() == (run / "README.md").read_text()


def test_the_recipe_s_keys_are_the_defaults(online, run):
    write_run(run, {"hub_model_id": "someone/named", "hub_push_reference": True, "hub_private_repo": True})
    assert command.main(["--run", str(run)]) == 0
    assert online.repos["someone/named"]["private"] is True
    assert set(online.files("someone/named")) == MODEL | RECORD | REFERENCE


def test_a_later_push_updates_the_card_and_sends_only_what_changed(online, run):
    assert command.main(["--run", str(run)]) == 0
    side = {"pass@1": 0.5, "interval@1": [0.0, 1.0], "correct": [0, 1]}
    passk = {"split": "test", "prompts": 2, "n": 1, "k": [1], "temperature": 1.0, "seed": 0, "task": "sorting"}
    (run / "passk.json").write_text(json.dumps(passk | {"level": None, "base": side, "trained": side}))
    online.requests.clear()
    assert command.main(["--run", str(run)]) == 0
    card = ModelCard(online.files(REPO)["README.md"].decode())
    assert [result.metric_value for result in card.data.eval_results] == [0.5]
    assert "passk.json" in online.files(REPO) and len(online.repos[REPO]["commits"]) == 2
    assert not any(request.startswith("PUT ") for request in online.requests), "the weights were there"


def test_a_push_of_nothing_new_makes_no_commit(online, run):
    assert [command.main(["--run", str(run)]) for _ in range(2)] == [0, 0]
    assert len(online.repos[REPO]["commits"]) == 1


def test_a_dry_run_asks_nobody_and_writes_nothing(online, run, capsys):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert command.main(["--run", str(run), "--dry-run"]) == 0
    written = capsys.readouterr().out
    assert "adapter_model.safetensors" in written and "base_model: Qwen/Qwen2.5-0.5B" in written
    assert "training_args" not in written and "README.md" in written
    assert online.requests == [] and {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("part, status, told", [("/commit/", 400, "400"), ("/lfs/", 500, "the Hub answers 500")])
def test_what_the_hub_refuses_is_one_line_with_its_cause(online, run, capsys, monkeypatch, part, status, told):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    online.fail(part, status)
    assert command.main(["--run", str(run)]) == 1
    error = capsys.readouterr().err
    (line,) = errors(error)
    assert told in line and error.endswith(f"{line}\n")


EMPTY = {"files": {}, "commits": [], "private": False}
# What is wrong, the options, and what the line says; a lasting failure of the Hub: test_push.py.
CASES = {
    "token": (lambda hub, run, patch: patch.setenv("HF_TOKEN", "hf_wrong"), [], ["401", "hf auth login", "HF_TOKEN"]),
    "token, there is a repository": (
        lambda hub, run, patch: (patch.setenv("HF_TOKEN", "hf_wrong"), hub.repos.update({REPO: EMPTY})),
        ["--repo", REPO],
        ["401"],
    ),
    "no token": (
        lambda hub, run, patch: (patch.delenv("HF_TOKEN"), patch.setattr(constants, "HF_TOKEN_PATH", str(run / "no"))),
        [],
        ["there is no token", "hf auth login"],
    ),
    "namespace": (None, ["--repo", "others/a-run"], ["hub_model_id='others/a-run'", "403", "rights"]),
    "name": (None, ["--repo", "a/b/c"], ["hub_model_id='a/b/c'", "NAMESPACE/NAME"]),
    "offline": (lambda hub, run, patch: patch.setattr(constants, "HF_HUB_OFFLINE", True), [], ["HF_HUB_OFFLINE=1"]),
    "nobody there": (
        lambda hub, run, patch: patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9"),
        [],
        ["the Hub cannot be reached", "HF_ENDPOINT"],
    ),
    "no folder": (None, ["--run", "nowhere"], ["nowhere", "does not exist"]),
    "no model": (lambda hub, run, patch: (run / "adapter_model.safetensors").unlink(), [], ["holds no trained model"]),
    "no reference": (lambda hub, run, patch: rmtree(run / "ref"), ["--with-reference"], ["no adapter 'ref'"]),
    "damaged record": (lambda hub, run, patch: (run / "env.json").write_text("{"), [], ["env.json", "is not JSON"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_pushed_is_one_line(online, run, monkeypatch, capsys, case):
    spoil, options, parts = CASES[case]
    if spoil is not None:
        spoil(online, run, monkeypatch)
    assert command.main(["--run", str(run), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    for part in parts:
        assert part in error
    assert all(repo["files"] == {} for repo in online.repos.values())


def test_an_adapter_trained_on_a_download_names_the_hub_s_model(run):
    cached = "/home/me/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/snapshots/0a1b2c"
    config = {"base_model_name_or_path": cached, "r": 8}
    (run / "adapter_config.json").write_text(json.dumps(config))
    files = publish.files_to_push(run, run)
    assert json.loads(files["adapter_config.json"]) == {"base_model_name_or_path": "Qwen/Qwen2.5-0.5B", "r": 8}
    assert json.loads((run / "adapter_config.json").read_text()) == config


def test_a_record_kept_elsewhere_goes_with_the_model(online, run, tmp_path):
    record = tmp_path / "record"
    record.mkdir()
    for name in RECORD:
        (run / name).rename(record / name)
    write_run(record, {"output_dir": str(run), "run_dir": str(record)})
    assert command.main(["--run", str(record)]) == 2  # it may be another run's: nothing says so
    write_run(record, env={"variant": "A", "run_id": "1"})
    write_run_id(run, "1")
    assert command.main(["--run", str(record)]) == 0
    assert set(online.files(REPO)) == MODEL | RECORD


def test_a_folder_of_the_repository_becomes_what_the_folder_here_is(online):
    api = publish.make_api()
    publish.open_repo(REPO, api=api)
    for content, names in ((b"1", ["kept.pt", "gone.pt", "in/side.json"]), (b"2", ["kept.pt", "new.json"])):
        files = {f"last-checkpoint/{name}": content for name in names}
        publish.push(REPO, files, message="save", again="again", api=api, folder="last-checkpoint")
    assert online.files(REPO) == {"last-checkpoint/kept.pt": b"2", "last-checkpoint/new.json": b"2"}


def test_what_is_staged_does_not_change_with_the_run(run, tmp_path):
    files = publish.files_to_push(run, run)
    left = tmp_path / "staged" / "left-behind.txt"
    left.parent.mkdir()
    left.write_text("by a push that was cut short")
    staged = publish.stage(files, tmp_path / "staged")
    assert not left.exists()
    with open(run / "metrics.jsonl", "a") as log:
        log.write('{"step": 2}\n')
    (run / "adapter_model.safetensors").unlink()
    assert set(staged) == set(files)
    assert staged["metrics.jsonl"].read_text() == '{"step": 1}\n'
    assert load_file(staged["adapter_model.safetensors"])["w"].tolist() == [1, 1, 1]


def test_a_push_error_says_what_and_how_again(online):
    with pytest.raises(PushError, match="404.*HF_TOKEN.*Try it again with `x`"):
        publish.push("someone/nowhere", {"a.txt": b"1"}, message="m", again="`x`")
