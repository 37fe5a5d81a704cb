"""The id of a run stands in its record and beside all weights that it saves."""

import json

import pytest
from run_record import write_run

from trl_prorl.hub.card import read_record
from trl_prorl.hub.publish import files_to_push
from trl_prorl.record.run_id import RUN_ID_FILE, other_run, recorded_run_id, saved_run_id


SIDE = {"correct": [0, 1], "pass@1": 0.5, "interval@1": [None, None]}
PASSK = {"split": "test", "prompts": 2, "n": 1, "k": [1], "temperature": 1.0, "seed": 0, "task": "parity"}
PASSK |= {"base": SIDE, "trained": SIDE}


@pytest.fixture
def train(make_trainer, tmp_path):
    def train(name, resume=None, steps=2, save=True):
        keys = {"output_dir": str(tmp_path / name), "run_dir": str(tmp_path / f"record_{name}"), "max_steps": steps}
        trainer = make_trainer(**keys, num_iterations=1, save_strategy="steps", save_steps=1)
        if save:
            trainer.train(resume_from_checkpoint=resume)
        trainer.save_model()
        return trainer

    return train


def test_one_id_from_the_first_checkpoint_to_the_model_at_the_end_and_through_a_resume(train, tmp_path):
    train("a")
    run = recorded_run_id(tmp_path / "record_a")
    assert len(run) == 32
    folders = [tmp_path / "a", *(tmp_path / "a").glob("checkpoint-*")]
    assert len(folders) == 3 and {saved_run_id(folder) for folder in folders} == {run}
    train("a", resume=True, steps=3)
    assert recorded_run_id(tmp_path / "record_a") == run == saved_run_id(tmp_path / "a/checkpoint-3")
    # Moved and resumed, it is the same run; begun from a checkpoint in another folder, it is another.
    (tmp_path / "a").rename(tmp_path / "b")
    train("b", resume=True, steps=4)
    assert recorded_run_id(tmp_path / "record_b") == run == saved_run_id(tmp_path / "b")
    train("fork", resume=str(tmp_path / "b/checkpoint-3"), steps=4)
    fork = recorded_run_id(tmp_path / "record_fork")
    assert fork != run and fork == saved_run_id(tmp_path / "fork")
    # A model that was not trained is no run's, wherever it is saved.
    train("b", save=False)
    assert not (tmp_path / "b" / RUN_ID_FILE).exists()


def test_a_second_call_of_train_is_another_run(make_trainer):
    trainer = make_trainer(max_steps=1, num_iterations=1)
    ids = []
    for _ in range(2):
        trainer.train()
        ids.append(recorded_run_id(trainer.args.output_dir))
    assert None not in ids and len(set(ids)) == 2


def test_an_evaluation_of_the_run_that_had_the_folder_before_goes_nowhere(tmp_path):
    write_run(tmp_path, env={"run_id": "2"}, passk={**PASSK, "run_id": "1"}, drift={"points": []})
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert set(files_to_push(tmp_path, tmp_path)) == {"config.json", "model.safetensors", "env.json", "drift.json"}
    assert read_record(tmp_path).passk is None
    (tmp_path / "passk.json").write_text(json.dumps({**PASSK, "run_id": "2"}))
    assert "passk.json" in files_to_push(tmp_path, tmp_path) and read_record(tmp_path).passk["run_id"] == "2"
    assert not other_run({}, "2") and not other_run({"run_id": "1"}, None)
