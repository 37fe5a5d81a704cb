"""What validation takes is in the record, by the step that it followed; how fast it was is not among its results."""

import json
import time

import pytest
from datasets import Dataset
from run_record import read_rows as rows
from run_record import untimed
from transformers import TrainerCallback

from trl_prorl.record.meter import JsonLines
from trl_prorl.record.run_files import read_jsonl


PROMPTS = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"say {i}"}] for i in range(4)]})
KEYS = {"per_device_eval_batch_size": 4, "num_generations_eval": 2, "eval_strategy": "steps", "eval_steps": 2}


@pytest.fixture
def slow_evaluation(monkeypatch):
    """A clock of its own: an evaluation takes exactly 1000 seconds."""
    from trl import GRPOTrainer

    real, ahead = time.perf_counter, [0.0]
    evaluate = GRPOTrainer.evaluate

    def slowly(self, *args, **kwargs):
        ahead[0] += 1000.0
        return evaluate(self, *args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "evaluate", slowly)
    monkeypatch.setattr("trl_prorl.record.meter.time.perf_counter", lambda: real() + ahead[0])


def thousands(trainer):
    return [row["time_eval"] // 1000 for row in rows(trainer)]


def test_validation_before_the_first_step_is_charged_to_it(run, slow_evaluation):
    trainer = run(max_steps=3, eval_on_start=True, trainer_kwargs={"eval_dataset": PROMPTS}, **KEYS)
    assert thousands(trainer) == [1, 1, 1]


def test_validation_at_the_end_of_an_epoch_finds_its_row_written(run, slow_evaluation):
    """Two prompts a step of two passes: 8 prompts are 8 steps."""
    keys = KEYS | {"eval_strategy": "epoch", "num_train_epochs": 1, "max_steps": -1}
    trainer = run(prompts=8, trainer_kwargs={"eval_dataset": PROMPTS}, **keys)
    assert thousands(trainer) == [0] * (len(rows(trainer)) - 1) + [1] and len(rows(trainer)) > 3


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == 4


def test_validation_is_charged_to_the_step_before_it_after_a_resume_too(make_trainer, tmp_path, slow_evaluation):
    keys = KEYS | {"max_steps": 5, "save_strategy": "steps", "save_steps": 2}
    keys["trainer_kwargs"] = {"eval_dataset": PROMPTS}
    whole = make_trainer(**keys, output_dir=str(tmp_path / "whole"))
    whole.train()
    cut = make_trainer(**keys, output_dir=str(tmp_path / "cut"))
    cut.add_callback(Stop())
    cut.train()
    again = make_trainer(**keys, output_dir=str(tmp_path / "cut"))
    again.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-2"))
    assert thousands(again) == thousands(whole) == [0, 1, 0, 1, 1]  # and after the last
    assert [row["time_eval"] for row in rows(whole)][::2][:2] == [0.0, 0.0]
    assert all(row["time_step"] < 1000 for row in rows(whole))
    assert [row["step"] for row in rows(whole, "evaluations.jsonl")] == [2, 4, 5]
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        assert untimed(rows(again, file)) == untimed(rows(whole, file)), file


def test_how_fast_an_evaluation_was_is_not_among_its_results(run):
    sets = {"easy": PROMPTS, "very_hard": PROMPTS}
    trainer = run(max_steps=2, trainer_kwargs={"eval_dataset": sets}, **KEYS)
    (row,) = rows(trainer, "evaluations.jsonl")
    assert {"eval_easy_loss", "eval_very_hard_loss"} < set(row)
    assert not [name for name in row if name.endswith(("runtime", "per_second", "preparation_time"))]


@pytest.mark.parametrize("lines", [["a"], ["a", "bb", "c" * 99]])
@pytest.mark.parametrize("value", ["", "longer than it was"])
def test_the_last_line_alone_is_changed(tmp_path, lines, value):
    log = JsonLines(tmp_path / "log.jsonl")
    assert not log.change_last(lambda row: pytest.fail("there is no row"))
    for name in lines:
        log.write({"name": name})
    assert not log.change_last(lambda row: None)
    assert [row["name"] for row in read_jsonl(log.path)] == lines
    assert log.change_last(lambda row: {"name": value})
    log.write({"name": "next"})
    assert [json.loads(line)["name"] for line in log.path.read_text().splitlines()] == [*lines[:-1], value, "next"]
