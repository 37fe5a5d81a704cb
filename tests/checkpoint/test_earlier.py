"""A script that is run twice in one output_dir loses nothing of the first run."""

import pytest
from run_record import hash_files, read_rows
from trl import GRPOTrainer

from trl_prorl import ProRLTrainer
from trl_prorl.checkpoint_files import find_checkpoint


SAVED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}


def train(make_trainer, out, cls=ProRLTrainer, **keys):
    trainer = make_trainer(cls, output_dir=str(out), **SAVED | keys)
    trainer.train()
    trainer.save_model()
    return trainer


@pytest.mark.parametrize("cls", [ProRLTrainer, GRPOTrainer], ids=["ours", "TRL's"])
def test_the_second_run_sets_the_first_aside_and_says_so(make_trainer, tmp_path, caplog, cls):
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    train(make_trainer, out, cls)
    first = hash_files(out)
    train(make_trainer, out, beta=0.3, max_steps=2)
    assert f"{out}/earlier-1" in caplog.text
    assert hash_files(out / "earlier-1") == {name: sha for name, sha in first.items() if name != "notes.txt"}
    assert (out / "notes.txt").read_text() == "mine"
    assert [row["step"] for row in read_rows(out)] == [1, 2]
    assert find_checkpoint(True, str(out))[0].name == "checkpoint-2"  # of this run, not checkpoint-4 of the first
    train(make_trainer, out, max_steps=2)
    assert {path.name for path in out.glob("earlier-*")} == {"earlier-1", "earlier-2"}


def test_two_folders_give_way_together(make_trainer, tmp_path):
    out = tmp_path / "run"
    record = tmp_path / "record"
    for _ in range(2):
        train(make_trainer, out, run_dir=str(record))
    assert (out / "earlier-1" / "checkpoint-4").is_dir()
    assert (record / "earlier-1" / "metrics.jsonl").exists()


def test_what_is_no_second_run_moves_nothing(make_trainer, tmp_path):
    out = tmp_path / "run"
    train(make_trainer, out)
    first = hash_files(out)
    again = make_trainer(output_dir=str(out), **SAVED)
    assert hash_files(out) == first
    again.train(resume_from_checkpoint=True)
    assert not list(out.glob("earlier-*"))


def test_a_model_that_would_move_with_the_earlier_run_is_refused(make_trainer, tmp_path):
    out = tmp_path / "run"
    train(make_trainer, out, lora=False)
    first = hash_files(out, without=["run.lock"])
    for model in (out / "checkpoint-4", out):
        trainer = make_trainer(output_dir=str(out), model=str(model), lora=False, **SAVED)
        with pytest.raises(ValueError, match="output_dir"):
            trainer.train()
    assert hash_files(out) == first
