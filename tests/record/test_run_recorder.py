"""TRL's own trainer leaves the log files of a run, and goes on with them after a resume."""

import pytest
from datasets import Dataset
from run_record import hash_files, read_lines, read_rows
from trl import GRPOTrainer

from trl_prorl import RunRecorder
from trl_prorl.eval.run_folder.reading import load_run


KEYS = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "beta": 0.1, "logging_steps": 1}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4}
QUESTIONS = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"say {i}"}] for i in range(2)]})


def recorded(make_trainer, folder, **keys):
    given = {"callbacks": [RunRecorder()], "eval_dataset": QUESTIONS}
    return make_trainer(GRPOTrainer, **KEYS, **keys, output_dir=str(folder), trainer_kwargs=given)


def test_a_plain_run_has_the_rows_of_ours(make_trainer, run, tmp_path):
    """The policy, the data and the seeds are the same, so the numbers are, under our names."""
    plain = recorded(make_trainer, tmp_path / "plain")
    plain.train()
    ours = run(**KEYS, fast=False, num_iterations=2)
    rows = read_rows(tmp_path / "plain")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    generated = [(row, other) for row, other in zip(rows, read_rows(ours), strict=True) if "reward" in row]
    assert len(generated) == 2
    for row, other in generated:
        for name in ("reward", "reward_std", "completion_length", "truncated_fraction", "grad_norm", "loss", "lr"):
            assert row[name] == pytest.approx(other[name], rel=1e-6), name
        assert "kl_ref" not in row and row["time_step"] > 0
    read = load_run(tmp_path / "plain")
    assert read.variant == "TRL" and read.seed == plain.args.seed and read.events == []
    assert read.measured("kl_ref") is None and read.measured("grad_norm") is not None


def test_a_resume_writes_on_and_a_new_run_does_not(make_trainer, tmp_path):
    out = tmp_path / "run"
    recorded(make_trainer, out, **EVALUATED).train()
    recorded(make_trainer, out, **EVALUATED).train(resume_from_checkpoint=str(out / "checkpoint-2"))
    lines = read_lines(out / "metrics.jsonl")
    assert [(row["step"], row["attempt"]) for row in lines] == [(1, 0), (2, 0), (3, 0), (4, 0), (3, 1), (4, 1)]
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3, 4]
    assert [event["step_applied"] for event in read_rows(out, "events.jsonl")] == [2]
    record = load_run(out)
    assert list(record.evaluations["step"]) == [2, 4] and record.validation_seconds > 0
    before = hash_files(out)
    with pytest.raises(ValueError, match="output_dir"):
        recorded(make_trainer, out, **EVALUATED).train()
    assert hash_files(out) == before


def test_a_checkpoint_of_another_run_adds_no_rows(make_trainer, tmp_path):
    """Nor does one without a recorder. In a new folder its run goes on, and a checkpoint there is resumed."""
    first = recorded(make_trainer, tmp_path / "first")
    first.train()
    recorded(make_trainer, tmp_path / "second").train()
    plain = make_trainer(GRPOTrainer, **KEYS, output_dir=str(tmp_path / "plain"))
    plain.train()
    before = hash_files(tmp_path / "second")
    for other in ("first", "plain"):
        with pytest.raises(ValueError, match="another run, not of the checkpoint's"):
            recorded(make_trainer, tmp_path / "second").train(str(tmp_path / other / "checkpoint-2"))
        assert hash_files(tmp_path / "second") == before
        recorded(make_trainer, tmp_path / f"new-{other}").train(str(tmp_path / other / "checkpoint-2"))
        recorded(make_trainer, tmp_path / f"new-{other}").train(resume_from_checkpoint=True)
        steps = [row["step"] for row in read_lines(tmp_path / f"new-{other}" / "metrics.jsonl")]
        assert steps == [3, 4, 5]  # a finished run of TRL's trainer takes a step more


@pytest.mark.parametrize("name", ["config.yaml", "env.json", "events.jsonl", "evaluations.jsonl"])
def test_a_file_of_somebody_else_is_not_overwritten(make_trainer, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=name):
        recorded(make_trainer, tmp_path).train()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}
