"""Which checkpoints are complete, and which one a resume takes."""

import json
import os
import pickle
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from run_record import read_events, read_rows, without_times
from tiny_run import BEST, QUESTIONS, set_evaluations
from transformers import Trainer, TrainerCallback
from trl import GRPOTrainer

from trl_prorl import evaluate
from trl_prorl.errors import CheckpointError, InputError
from trl_prorl.run.files import file_sha256
from trl_prorl.run.folder import MANIFEST_FILE, RunFolder, unusable_reason
from trl_prorl.run.log_files import RUN_ID_FILE


def write(folder, step, resumable=True, **files):
    folder = RunFolder(folder)
    written = folder.staging(step) / f"checkpoint-{step}"
    for name, text in {"weights": "w" * 10, "deep/state": "s", **files}.items():
        (written / name).parent.mkdir(parents=True, exist_ok=True)
        (written / name).write_text(text)
    return folder.name(step, resumable)


def test_a_published_checkpoint_is_whole_and_says_what_it_holds(tmp_path):
    checkpoint = write(tmp_path, 5)
    assert unusable_reason(checkpoint) is None
    assert os.listdir(tmp_path) == ["checkpoint-5"]
    manifest = json.loads((checkpoint / MANIFEST_FILE).read_text())
    assert manifest["step"] == 5
    assert set(manifest["files"]) == {"weights", "deep/state"}
    expected = "44ab6c88be83b32482f14f05c115ff01ebb923fb6ce1b6c2ba76372dee86e9ac"  # printf wwwwwwwwww | sha256sum
    assert manifest["files"]["weights"] == {"bytes": 10, "sha256": expected}
    assert (write(tmp_path, 5, weights="new") / "weights").read_text() == "new"  # one of the same step is replaced
    # The newest is the highest number, and not the last word.
    checkpoint = write(tmp_path, 10)
    (tmp_path / "checkpoint-best").mkdir()
    assert RunFolder(tmp_path).find("True") == checkpoint
    assert unusable_reason(write(tmp_path, 11, resumable=False)) is not None  # weights alone


@pytest.mark.parametrize(
    "harm",
    [
        lambda c: (c / "deep/state").unlink(),
        lambda c: (c / "weights").write_text("w" * 9),
        lambda c: (c / "weights").write_text("w" * 9 + "x"),
        lambda c: (c / MANIFEST_FILE).unlink(),
        lambda c: (c / MANIFEST_FILE).write_text('{"layout": 4, "files": {"wei'),
    ],
)
def test_a_damaged_checkpoint_is_skipped_and_refused_if_named(tmp_path, harm):
    older = write(tmp_path, 9)
    newer = write(tmp_path, 10)
    harm(newer)
    assert RunFolder(tmp_path).find("True") == RunFolder(tmp_path).find("auto") == older
    with pytest.raises(ValueError, match="checkpoint-10"):
        RunFolder(tmp_path).find(str(newer))
    harm(older)
    with pytest.raises(ValueError, match="no complete checkpoint"):
        RunFolder(tmp_path).find("True")


KEYS = {"beta": 0.3, "ref_reset_every": 3, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}


class Bomb:
    """What a pickle can do: here, make a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def list_again(checkpoint, file):
    """Let a checkpoint's manifest name a file as it is now."""
    manifest = json.loads((checkpoint / MANIFEST_FILE).read_text())
    manifest["files"][file] = {"bytes": (checkpoint / file).stat().st_size, "sha256": file_sha256(checkpoint / file)}
    (checkpoint / MANIFEST_FILE).write_text(json.dumps(manifest))


def test_a_pickle_in_a_checkpoint_that_one_was_given_does_not_run(run, make_trainer, tmp_path):
    given = Path(run(**KEYS).args.output_dir, "checkpoint-2")
    for file in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "buffer-0.pt", "training_args.bin"):
        mark = tmp_path / f"mark of {file}"
        checkpoint = shutil.copytree(given, tmp_path / file / given.name)
        torch.save(Bomb(mark), checkpoint / file)
        list_again(checkpoint, file)
        again = make_trainer(output_dir=str(tmp_path / "again" / file), **KEYS)
        # The arguments are written for people, and never read.
        with nullcontext() if file == "training_args.bin" else pytest.raises(pickle.UnpicklingError):
            again.train(resume_from_checkpoint=str(checkpoint))
        assert not mark.exists()
        with pytest.raises(FileExistsError):  # the bomb is one
            for _ in range(2):
                torch.load(checkpoint / file, weights_only=False)


def test_a_pickle_in_a_model_that_one_was_given_does_not_run(make_trainer, tiny_model, tmp_path):
    model = tmp_path / "model"
    mark = tmp_path / "mark"
    shutil.copytree(tiny_model, model)
    (model / "model.safetensors").unlink()
    torch.save(Bomb(mark), model / "pytorch_model.bin")
    with pytest.raises((InputError, pickle.UnpicklingError)):
        make_trainer(model=str(model), **KEYS)
    assert not mark.exists()


def test_the_policy_is_loaded_beside_its_reference(run, resume, largest_difference, monkeypatch):
    """Transformers up to 5.22 loads the other adapters alone."""
    keys = KEYS | {"beta": 0.1, "ref_reset_every": 2}
    whole = run(**keys)

    def others_alone(self, folder, model=None):
        (model or self.model).load_adapter(f"{folder}/ref", "ref", is_trainable=False)

    monkeypatch.setattr(Trainer, "_load_from_checkpoint", others_alone)
    again = resume(whole, 2, output_dir=whole.args.output_dir, **keys)
    assert again.state.global_step == 4
    assert largest_difference(whole, again) == 0.0


def test_the_oldest_steps_go_first_whatever_was_touched_last(tmp_path):
    for step in (2, 4, 10, 8, 6):
        write(tmp_path, step)
    os.utime(tmp_path / "checkpoint-2", (2e9, 2e9))  # a removal that was broken off changes the folder
    best = tmp_path / "checkpoint-4"
    all_of_them = [2, 4, 6, 8, 10]
    left = {**dict.fromkeys((None, 0, -1, 4), all_of_them), 3: [4, 6, 8, 10], 2: [4, 8, 10], 1: [4, 8, 10]}
    for limit, steps in left.items():
        # 10 lies after the run's newest, and is not of this run.
        RunFolder(tmp_path).remove_oldest(8, limit, os.path.relpath(best))
        assert sorted(int(path.name[11:]) for path in tmp_path.glob("checkpoint-*")) == steps, limit
    RunFolder(tmp_path).remove_oldest(8, 1, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-8"]


def test_a_checkpoint_with_a_file_that_no_run_wrote_is_not_removed(tmp_path):
    for step in (2, 4, 6, 8):
        write(tmp_path, step)
    (tmp_path / "checkpoint-4" / "notes.txt").write_text("mine")
    RunFolder(tmp_path).remove_oldest(8, 2, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-6", "checkpoint-8"]
    write(tmp_path, 4, weights="new")  # a second save of the step
    assert (tmp_path / "checkpoint-4/weights").read_text() == "new"
    assert (tmp_path / "abandoned-checkpoint-4/notes.txt").read_text() == "mine"


def test_a_checkpoint_that_was_written_in_part_gets_no_name(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    checkpoint = write(tmp_path, 5)
    aside = tmp_path / "_writing-5"
    aside.mkdir()
    (checkpoint / "weights").write_text("w")
    checkpoint.rename(aside / checkpoint.name)
    RunFolder(tmp_path).settle()
    assert not list(tmp_path.glob("checkpoint-*"))


class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise KeyboardInterrupt


def test_a_run_that_goes_back_to_an_older_checkpoint_does_not_return_to_the_newer_ones(run, make_trainer, caplog):
    out = Path(run(**KEYS).args.output_dir)
    keys = KEYS | {"learning_rate": 1e-4, "allow_config_change": True, "output_dir": str(out)}
    (out / "passk.json").write_text(json.dumps({"step": 4}))
    back = make_trainer(**keys)
    back.add_callback(Kill())
    with pytest.raises(KeyboardInterrupt):
        back.train(resume_from_checkpoint=str(out / "checkpoint-2"))
    assert sorted(path.name for path in out.glob("*checkpoint-*")) == ["abandoned-checkpoint-4", "checkpoint-2"]
    assert "abandoned-checkpoint-4" in caplog.text
    assert [path.name for path in out.glob("passk*")] == ["passk.json.1"]
    assert unusable_reason(out / "abandoned-checkpoint-4") is None  # nothing of it is lost
    make_trainer(**keys).train(resume_from_checkpoint=True)
    assert [(row["step"], row["lr"]) for row in read_rows(out)] == [(1, 5e-3), (2, 5e-3), (3, 1e-4), (4, 1e-4)]
    assert [event["checkpoint"] for event in read_events(out, "resume")] == ["checkpoint-2", "checkpoint-2"]


def test_a_resumed_run_has_the_evaluations_and_the_resets_of_the_undisturbed_run(
    run, make_trainer, largest_difference
):
    """Also of the start, which is not the resume's, and of an epoch's end, which comes after a save."""
    keys = {
        "beta": 0.3,
        "max_steps": 8,
        "prompts": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "eval_on_start": True,
        "eval_strategy": "epoch",
        "per_device_eval_batch_size": 4,
        "ref_reset_stall": 1,
        "ref_reset_min_delta": 9.0,
        "trainer_kwargs": QUESTIONS,
    }
    whole = run(**keys)
    assert [row["step"] for row in read_rows(whole, "evaluations.jsonl")] == [0, 4, 8]
    resets = without_times(read_events(whole))
    assert resets  # evaluations matter

    def killed(step):
        trainer = make_trainer(**keys)
        evaluate = trainer.evaluate

        def die(*args, **kwargs):
            if trainer.state.global_step == step:
                raise KeyboardInterrupt
            return evaluate(*args, **kwargs)

        trainer.evaluate = die
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        return trainer.args.output_dir

    out = Path(whole.args.output_dir)
    copy = shutil.copytree(out, out.with_name("copy"))
    before = make_trainer(**keys, output_dir=killed(4))
    before.train(resume_from_checkpoint=True)
    after = make_trainer(**keys, output_dir=str(copy))
    after.train(resume_from_checkpoint=str(copy / "checkpoint-4"))
    for again in (before, after):
        evaluations = without_times(read_rows(again, "evaluations.jsonl"))
        assert evaluations == without_times(read_rows(whole, "evaluations.jsonl"))
        assert without_times(read_events(again)) == resets
        assert largest_difference(whole, again) == 0.0


def test_a_resume_with_workers_that_stay_is_refused(run, resume):
    """They draw a seed of the training's random numbers once, which a resumed run would draw again."""
    keys = {"max_steps": 2, "num_iterations": 1, "save_strategy": "steps", "save_steps": 1}
    keys |= {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    whole = run(**keys)
    with pytest.raises(ValueError, match="dataloader_persistent_workers"):
        resume(whole, 1, **keys)


def test_workers_that_stay_draw_a_seed_for_every_evaluation_set_as_with_trl(run, largest_difference):
    rows = QUESTIONS["eval_dataset"]
    given = {"trainer_kwargs": {"eval_dataset": {"a": rows, "b": rows}}}
    keys = {"max_steps": 5, "num_iterations": 1, "eval_strategy": "steps", "eval_steps": 2, **given}
    keys |= {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "per_device_eval_batch_size": 4}
    assert largest_difference(run(**keys), run(GRPOTrainer, **keys)) == 0.0


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "tokenizer.json"])
def test_a_file_of_a_checkpoint_or_of_the_model_that_cannot_be_written(make_trainer, file):
    """Every library has errors of its own for it, tokenizers a bare `Exception`."""
    trainer = make_trainer(**KEYS)
    out = Path(trainer.args.output_dir)
    save = trainer._save

    def cannot(folder=None, *args, **kwargs):
        if trainer.state.global_step == 4:
            Path(folder or out, file).mkdir(parents=True, exist_ok=True)
        return save(folder, *args, **kwargs)

    trainer._save = cannot
    with pytest.raises(CheckpointError, match=r"checkpoint-4.* GiB free.*checkpoint-2"):
        trainer.train()
    assert [path.name for path in out.glob("*checkpoint-*")] == ["checkpoint-2"]
    with pytest.raises(CheckpointError, match=f"{out} .*GiB free"):
        trainer.save_model()
    shutil.rmtree(out / file)
    trainer = make_trainer(**KEYS, output_dir=str(out))
    trainer.train(resume_from_checkpoint=True)
    trainer.save_model()
    assert (out / file).is_file()
    assert unusable_reason(out / "checkpoint-4") is None
    assert (out / RUN_ID_FILE).exists()
    trainer._save = lambda *args, **kwargs: (_ for _ in ()).throw(OSError("no space"))
    with pytest.raises(CheckpointError):
        trainer.save_model()
    assert not (out / RUN_ID_FILE).exists()  # its files may be of two saves, or cut


def test_an_evaluation_names_the_step_whose_weights_came_back(make_trainer):
    trainer = set_evaluations(make_trainer(**BEST, max_steps=4, trainer_kwargs=QUESTIONS), 9.0, 1.0)
    trainer.train()
    result = evaluate(trainer, trainer.train_dataset.select([0, 1]), lambda *given: True, n=1, k=[1], greedy=False)
    assert (trainer.state.global_step, result["step"]) == (4, 2)


@pytest.mark.parametrize("renamed", [False, True], ids=["from another directory", "renamed"])
def test_a_resumed_run_knows_its_best_checkpoint(make_trainer, tmp_path, monkeypatch, renamed):
    keys = KEYS | BEST | {"save_total_limit": 2, "trainer_kwargs": QUESTIONS}
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    set_evaluations(make_trainer(output_dir="run", **keys), 9.0, 1.0).train()
    out = tmp_path / "here" / "run"
    if renamed:
        out = out.rename(tmp_path / "moved")
        # Another run took its name: its checkpoints are not this run's.
        set_evaluations(make_trainer(output_dir="run", **keys | {"seed": 8}), 9.0, 1.0).train()
    else:
        monkeypatch.chdir(tmp_path)
    state = json.loads((out / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == "run/checkpoint-2"  # by its name, and not as it was written
    again = set_evaluations(make_trainer(output_dir=os.path.relpath(out), **keys | {"max_steps": 8}), 1.0, 1.0)
    again.train(resume_from_checkpoint=True)
    assert Path(again.state.best_model_checkpoint).resolve() == out / "checkpoint-2"
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-8"}  # rotation keeps it
    again.save_model()
    saved, best = (folder / "adapter_model.safetensors" for folder in (out, out / "checkpoint-2"))
    assert file_sha256(saved) == file_sha256(best)


def test_the_end_of_a_run_removes_no_folder_of_others_and_none_for_a_best_one_elsewhere(make_trainer, tmp_path):
    """transformers compares folders with the best one, and takes every name that begins like a checkpoint's."""
    keys = KEYS | BEST | {"trainer_kwargs": QUESTIONS, "save_total_limit": 1}
    first = make_trainer(output_dir=str(tmp_path / "a"), **keys)
    (tmp_path / "a" / "checkpoint-1-keep").mkdir(parents=True)
    set_evaluations(first, 9.0, 1.0).train()
    assert {path.name for path in (tmp_path / "a").glob("checkpoint-*")} >= {"checkpoint-1-keep", "checkpoint-2"}
    assert first.args.save_total_limit == 1
    here = set_evaluations(make_trainer(output_dir=str(tmp_path / "b"), **keys | {"max_steps": 6}), 1.0)
    here.train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-4"))
    assert here.state.best_model_checkpoint == str(tmp_path / "a/checkpoint-2")
    assert (tmp_path / "b" / "checkpoint-6" / "manifest.json").is_file()


def test_auto_begins_without_a_checkpoint_and_goes_on_with_one(make_trainer, tmp_path):
    out = str(tmp_path / "run")
    # TRL makes a folder for completions with the trainer.
    job = {"output_dir": out, "save_strategy": "steps", "save_steps": 2, "log_completions": True}

    def start(**keys):  # one command for each start of a preemptible job
        make_trainer(**job, **keys).train(resume_from_checkpoint="auto")

    start(max_steps=2)
    (tmp_path / "run" / "checkpoint-2" / "manifest.json").unlink()  # preempted within the first save
    start(max_steps=2)
    assert [row["step"] for row in read_rows(out)] == [1, 2]
    start(max_steps=4)
    assert [event["step_applied"] for event in read_events(out, "resume")] == [2]


def test_auto_does_not_repeat_a_finished_run(make_trainer, tmp_path):
    finished = make_trainer(output_dir=str(tmp_path / "run"), max_steps=1)
    finished.train()
    finished.save_model()
    with pytest.raises(ValueError, match="finished run"):
        make_trainer(output_dir=str(tmp_path / "run"), max_steps=1).train(resume_from_checkpoint="auto")


@pytest.mark.parametrize("resume", ["True", "auto"])
def test_a_checkpoint_of_another_version_is_not_resumed(tmp_path, resume):
    manifest = write(tmp_path, 5) / MANIFEST_FILE
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"layout": 2}))
    with pytest.raises(ValueError, match="another version of trl-prorl"):
        RunFolder(tmp_path).find(resume)
