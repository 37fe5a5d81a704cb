"""A run that moves to another machine: what it pushed is complete, and `hub:USER/RUN` continues it exactly."""

import hashlib
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from run_record import modification_times, read_events, read_rows, without_times
from slow import slow_but
from tiny_run import BEST, QUESTIONS, set_evaluations
from transformers import TrainerCallback

from trl_prorl.hub import downloads
from trl_prorl.run.log_files import RUN_ID, recorded_run_id


A = {"beta": 0.1, "ref_reset_every": 1, "max_steps": 2, "push_to_hub": True}


class KilledPush(TrainerCallback):
    """A push of a step that never reaches the Hub, and the end of the process at the next."""

    def __init__(self, hub, trainer, step):
        self.hub = hub
        self.trainer = trainer
        self.step = step

    def on_push_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.trainer._finish_current_push()
            self.hub.fail("/commit/", 500)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step + 1:
            raise KeyboardInterrupt


MOVES = {
    "beta": 0.1,
    "ref_reset_every": 2,
    "num_iterations": 2,
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "hub_always_push": True,
    "hub_model_id": "someone/moves",
}


BEST_OF_ALL = BEST | {"eval_steps": 1, "save_steps": 1}
REWARDS = (0.1, 0.9, 0.2, 0.3, 0.4, 0.5)  # of its evaluations: the checkpoint of step 2 is the best


def checkpoint_of_another_run(files):
    """Return files of `checkpoint-60`, whole, which an earlier run pushed to the same repository."""
    ours = {name.partition("/")[2]: content for name, content in files.items() if name.startswith("checkpoint-3/")}
    ours["prorl_run.json"] = b'{"run_id": "another", "step": 60}'
    manifest = json.loads(ours["manifest.json"]) | {"step": 60}
    noted = {"bytes": len(ours["prorl_run.json"]), "sha256": hashlib.sha256(ours["prorl_run.json"]).hexdigest()}
    manifest["files"]["prorl_run.json"] |= noted
    ours["manifest.json"] = json.dumps(manifest).encode()
    return {f"checkpoint-60/{name}": content for name, content in ours.items()}


@pytest.mark.parametrize("strategy", slow_but(["checkpoint", "all_checkpoints"], "all_checkpoints"))
def test_a_run_moves_to_another_machine(online, make_trainer, tmp_path, monkeypatch, strategy):
    """Its push of step 4 fails, it is killed in step 5, and goes on from step 3 in an empty folder."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    moves = MOVES | (BEST_OF_ALL if strategy == "all_checkpoints" else {})
    control = set_evaluations(make_trainer(**moves, trainer_kwargs=QUESTIONS), *REWARDS)
    control.train()
    keys = moves | {"push_to_hub": True, "hub_strategy": strategy}
    first = make_trainer(output_dir=str(tmp_path / "first"), **keys, trainer_kwargs=QUESTIONS)
    set_evaluations(first, *REWARDS)
    first.add_callback(KilledPush(online, first, 4))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    first._finish_current_push()
    online.failures.clear()
    moved = tmp_path / "moved"

    def go_on():
        trainer = make_trainer(output_dir=str(moved), **keys, trainer_kwargs=QUESTIONS)
        set_evaluations(trainer, *REWARDS[3 if strategy == "all_checkpoints" else 1 :])
        trainer.train(resume_from_checkpoint="hub:someone/moves")
        trainer._finish_current_push()
        return trainer

    files = online.files("someone/moves")
    if strategy == "all_checkpoints":
        files |= checkpoint_of_another_run(files)
    (moved / "_writing-3").mkdir(parents=True)  # left by a process that was killed while it copied
    shutil.copy(tmp_path / "first" / "env.json", moved)
    shutil.rmtree(tmp_path / "first")  # on another machine its paths lead nowhere
    went_on = go_on()
    if strategy == "all_checkpoints":
        assert went_on.step_of_weights == control.step_of_weights == 2
    assert [event["checkpoint"] for event in read_events(moved, "resume")] == ["checkpoint-3"]
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        assert without_times(read_rows(moved, file)) == without_times(read_rows(control.run_dir, file))
    ours, theirs = (folder / "checkpoint-6" for folder in (moved, control.run_dir))
    for file in ("adapter_model.safetensors", "ref/adapter_model.safetensors"):
        assert (ours / file).read_bytes() == (theirs / file).read_bytes()
    moments, expected = (torch.load(folder / "optimizer.pt")["state"] for folder in (ours, theirs))
    for index, state in expected.items():
        assert all(moments[index][name].equal(value) for name, value in state.items())
    (moved / "_writing-6").mkdir()
    (moved / "checkpoint-6").rename(moved / "_writing-6" / "checkpoint-6")  # killed before it had its name
    go_on()  # what is here is as new
    assert [event["checkpoint"] for event in read_events(moved, "resume")] == ["checkpoint-3", "checkpoint-6"]
    shutil.rmtree(moved / "checkpoint-6")
    go_on()  # what is here is older
    assert (tmp_path / "moved.2").is_dir() and (moved / "checkpoint-6").is_dir()


def test_a_checkpoint_that_a_resume_went_back_over_is_not_resumed_on_another_machine(
    online, make_trainer, tmp_path, monkeypatch
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    keys = MOVES | {"push_to_hub": True, "hub_strategy": "all_checkpoints", "eval_strategy": "no"}

    def train(folder, steps, resume=None):
        trainer = make_trainer(output_dir=str(tmp_path / folder), **keys | {"max_steps": steps})
        trainer.train(resume_from_checkpoint=resume)
        trainer._finish_current_push()
        return trainer

    first = train("first", 4)
    train("first", 3, f"{first.args.output_dir}/checkpoint-2")
    assert {"checkpoint-3/manifest.json", "checkpoint-4/manifest.json"} <= online.files("someone/moves").keys()
    moved = train("moved", 5, "hub:someone/moves")
    assert read_events(moved, "resume")[-1]["checkpoint"] == "checkpoint-3"


def test_the_branch_that_a_run_is_pushed_to_is_read(online, make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="cannot be read"):
        make_trainer(**A, hub_revision="dev").train(resume_from_checkpoint="hub:someone/nobody")
    assert "GET /api/models/someone/nobody/revision/dev" in online.requests


def test_a_hub_that_cannot_be_reached_is_one_line(online, make_trainer, monkeypatch):
    trainer = make_trainer(max_steps=1)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match="^resume_from_checkpoint='hub:someone/run' cannot be read") as error:
        trainer.train(resume_from_checkpoint="hub:someone/run")
    assert "\n" not in str(error.value)


def test_a_run_on_the_hub_that_cannot_be_resumed_is_one_line(online, run, make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    trainer = run(**A, hub_model_id="someone/whole", hub_strategy="checkpoint", save_strategy="steps", save_steps=2)
    trainer._finish_current_push()
    files = online.files("someone/whole")
    other = tmp_path / "other"
    make_trainer(output_dir=str(other), max_steps=1).train()
    before = modification_times(other)

    def line(repo="someone/whole", out=tmp_path / "new"):
        fresh = make_trainer(output_dir=str(out), **A)
        with pytest.raises(ValueError) as error:
            fresh.train(resume_from_checkpoint=f"hub:{repo}")
        return str(error.value)

    assert "already contains a run" in line(out=other)
    assert modification_times(other) == before
    assert "cannot be read" in line("someone/nobody")
    online.repos["someone/whole"]["commits"].append("damaged")
    files["last-checkpoint/optimizer.pt"] = b"x" * len(files["last-checkpoint/optimizer.pt"])
    assert "has no complete checkpoint" in line()
    online.repos["someone/whole"]["commits"].append("incomplete")
    del files["last-checkpoint/manifest.json"]
    assert "has no complete checkpoint" in line()
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())


def test_a_kill_while_a_record_is_copied_leaves_a_folder_of_that_run(tmp_path, monkeypatch):
    """A copy that is cut after its first byte: the folder is new, or it has the run's id."""
    down = tmp_path / "down"
    down.mkdir()
    record = {RUN_ID: "a" * 32}
    (down / "env.json").write_text(json.dumps(record))
    for name in ("config.yaml", "metrics.jsonl"):
        (down / name).write_text("{}")
    for last in range(3):
        folder = tmp_path / str(last)
        folder.mkdir()
        copies = itertools.count()

        def cut_copy(source, target, copies=copies, last=last):
            text = Path(source).read_text()
            if next(copies) == last:
                Path(target).write_text(text[:1])
                raise InterruptedError
            Path(target).write_text(text)

        monkeypatch.setattr(downloads.shutil, "copyfile", cut_copy)
        with pytest.raises(InterruptedError):
            downloads._copy_record(down, folder)
        is_new = not [path for path in folder.iterdir() if path.suffix != ".part"]
        assert is_new or recorded_run_id(folder) == record[RUN_ID]
