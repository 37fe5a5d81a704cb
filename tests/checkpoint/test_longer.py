"""A finished run that is made longer: it goes on as if it had never ended, where its schedule allows that."""

from pathlib import Path

import pytest
import torch
from run_record import read_events, read_rows, without_times
from tiny_run import QUESTIONS

from trl_prorl import train


# Two steps a generation, so that a run of three steps ends inside a generation batch. The checkpoint of its last step
# is one that the longer run never writes.
KEYS = {"save_strategy": "steps", "save_steps": 2}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4}
ARMS = {
    "A": {"beta": 0.3, "ref_reset_every": 2, "optimizer_reset": "hard", **EVALUATED},
    "full, warmed up": {"beta": 0.3, "lora": False, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5},
}


@pytest.mark.parametrize("arm, first", [("A", 3), ("full, warmed up", 4)])
def test_it_is_the_run_that_was_longer_from_the_start(run, make_trainer, arm, first):
    keys = {**KEYS, **ARMS[arm], "trainer_kwargs": QUESTIONS}
    whole = run(**keys, max_steps=7)
    out = run(**keys, max_steps=first).args.output_dir
    longer = make_trainer(**keys, max_steps=7, output_dir=out)
    longer.train(resume_from_checkpoint=True)
    (event,) = read_events(out, "resume")
    assert (event["checkpoint"], event["changed"]) == (f"checkpoint-{first}", {})
    one = dict(longer.model.named_parameters())  # reference and frozen weights too
    other = dict(whole.model.named_parameters())
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert without_times(read_rows(longer)) == without_times(read_rows(whole))
    assert longer.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]


A_SHARE = {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.5}


@pytest.mark.parametrize("keys", [{"lr_scheduler_type": "linear"}, A_SHARE], ids=str)
def test_where_the_past_depends_on_the_length_it_is_refused(run, make_trainer, keys):
    out = run(**KEYS, **keys, max_steps=2).args.output_dir
    before = Path(out, "metrics.jsonl").read_text()
    script = make_trainer(**KEYS, **keys, max_steps=6, output_dir=out)
    script.args.resume_from_checkpoint = "True"
    for start in (lambda: script.train(resume_from_checkpoint=True), lambda: train.check_folder(script.args, ())):
        with pytest.raises(ValueError, match="max_steps: 2 -> 6.*allow_config_change"):
            start()
    assert Path(out, "metrics.jsonl").read_text() == before
