"""Real processes, killed at any moment, and what a resume makes of them."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from run_record import read_events, read_rows
from slow import needs_two_resumed, slow_but


sys.path.append(str(Path(__file__).parents[1] / "soak"))

from run_record import error_lines
from same_run import differences  # noqa: E402

from trl_prorl.run.folder import step_of, steps_of, unusable_reason  # noqa: E402


def find_newest_checkpoint(out):
    """The newest complete checkpoint in a folder, or `None`."""
    return max((path for path in steps_of(Path(out)) if unusable_reason(path) is None), key=step_of, default=None)


def steps_done(out):
    return len(read_rows(out)) if Path(out, "metrics.jsonl").exists() else 0


def assert_same_run(out, control):
    """Every tensor, every line of the record and every random state, all but times and memory."""
    assert sum(path.is_file() for path in Path(out).rglob("*")) > 15
    assert differences(Path(out), Path(control)) == []


@pytest.fixture
def train(forks, tiny_model, tmp_path):
    """A function that trains as forks/training.py does, in a folder of a name, and looks at the exit status."""
    log = tmp_path / "log"

    def run(out, spec, status=0, kill=None, **more):
        process = forks.start(run="training", model=tiny_model, log=str(log), out=str(tmp_path / out), **spec, **more)
        if kill is not None:  # from outside, once so many rows are written
            while steps_done(tmp_path / out) < kill:
                time.sleep(0.01)
            os.kill(process, signal.SIGKILL)
        assert forks.status() == status, log.read_text()[-3000:]
        return tmp_path / out

    return run


KILLED = -signal.SIGKILL
A = {"beta": 0.3, "ref_reset_every": 3, "num_iterations": 2}
B = {"beta_old": 0.3, "num_iterations": 3, "reuse_old_logps": True}
SPREAD = {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
# No evaluation is better than the one before step 1: a reset at step 2. And the run ends at step 6.
END = {
    "beta": 0.1,
    "stop_stall": 2,
    "ref_reset_min_delta": 9,
    "ref_reset_stall": 1,
    "eval_on_start": True,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "per_device_eval_batch_size": 4,
}
# What the killed trainings of scripts/yardstick.yaml lack.
CASES = {
    # Reset once, at step 4, so that the generation at step 8 depends on a reference that a resume brought back.
    "A, full, a buffer of several steps": A | SPREAD | {"ref_reset_cooldown": 6, "lora": False},
    "B, full": B | SPREAD | {"num_iterations": 2, "lora": False, "log_completions": True},
    "C by a KL spike, hard": {
        "beta": 0.1,
        "num_iterations": 2,
        "lora": True,
        "optimizer_reset": "hard",
        "ref_reset_kl": 5e-4,
        "ref_reset_kl_window": 2,
        "lr_scheduler_type": "cosine",
    },
    "teacher": {"beta": 0.3, "ref_model": "embedded", "kl_target": 1.0, "num_iterations": 2, "lora": True},
    "teacher, full": {"beta": 0.3, "ref_model": "embedded", "fast": True, "lora": False} | SPREAD,
    "trust region": {
        "trust_region": "m2po",
        "trust_region_threshold": 1e-6,
        "num_iterations": 3,
        "reuse_old_logps": True,
        "lora": True,
    },
}
# How many rows are written when a kill comes, mostly just before that step's checkpoint: the resume is from the one
# before. A generation serves 2 to 4 steps, an epoch as many. One run is killed again after it was resumed.
KILLS = {"C by a KL spike, hard": (3, 6)}
IN_THE_MIDDLE = (4,)


@pytest.mark.parametrize("case", slow_but(CASES, "A, full, a buffer of several steps", "teacher"))
def test_a_killed_run_ends_as_one_that_was_never_touched(train, case):
    keys = CASES[case] | {"max_steps": 9}
    spec = {"lora": keys.pop("lora"), "prompts": 2, "keys": keys}
    control = train("control", spec)
    resume = None
    for kill in KILLS.get(case, IN_THE_MIDDLE):
        out = train("run", spec, KILLED, kill, resume=resume, hold_at_step=kill + 2)
        resume = find_newest_checkpoint(out) is not None
    train("run", spec, resume=True)
    assert_same_run(out, control)
    if "reset" in " ".join(keys):
        assert read_events(control)  # what the case is about did happen
    assert read_events(out, "resume")


def test_rows_that_are_skipped_stay_so_between_two_passes(train):
    """The checkpoint has no log-probabilities of theirs. Completions of one token often have equal rewards."""
    keys = {"fast": True, "steps_per_generation": 2, "gradient_accumulation_steps": 2}
    keys |= {"num_iterations": 3, "max_completion_length": 1, "num_generations": 2, "max_steps": 6}
    spec = {"lora": True, "prompts": 4, "keys": keys}
    control = train("control", spec)
    assert sum(row["rows_skipped"] for row in read_rows(control)[4:]) > 0
    out = train("run", spec, KILLED, kill_at_step=5)
    assert find_newest_checkpoint(out).name == "checkpoint-4"  # after the first of three passes
    train("run", spec, resume=True)
    assert_same_run(out, control)


TWO = {"per_device_train_batch_size": 2, "save_total_limit": None, "ddp_find_unused_parameters": False}
TWO_PROCESSES = {
    # A generation serves two steps: 3 is inside its batch, 4 is at its end.
    "A": A | TWO | {"lora": True},
    "teacher": {"beta": 0.3, "ref_model": "embedded", "num_iterations": 2, "fast": True} | TWO | {"lora": True},
    "compact generation": A | TWO | {"compact_generation": "on", "lora": True},
}


@needs_two_resumed
@pytest.mark.parametrize("case", slow_but(TWO_PROCESSES, "A"))
def test_two_processes_go_on_inside_a_generation_batch_and_at_its_end(train, case):
    keys = TWO_PROCESSES[case] | {"max_steps": 6}
    spec = {"ranks": 2, "lora": keys.pop("lora"), "prompts": 6, "keys": keys}
    control = train("control", spec)
    for kill, resume in ((4, None), (5, True)):
        out = train("run", spec, KILLED, resume=resume, kill_at_step=kill)
        found = find_newest_checkpoint(out)
        assert found.name == f"checkpoint-{kill - 1}"
        buffers = sorted(path.name for path in found.glob("buffer-*"))
        assert buffers == (["buffer-0.pt", "buffer-1.pt"] if kill == 4 else [])
    train("run", spec, resume=True)
    assert_same_run(out, control)
    assert [event["checkpoint"] for event in read_events(out, "resume")] == ["checkpoint-3", "checkpoint-4"]


@pytest.mark.slow
def test_two_processes_end_at_the_same_evaluation(train):
    out = train("run", {"ranks": 2, "lora": True, "prompts": 6, "keys": END | TWO})
    assert steps_done(out) == 6
    assert [(event["event"], event["step_applied"]) for event in read_events(out)][-1] == ("stall", 6)


RECIPE = Path(__file__).parents[2] / "recipes" / "tiny" / "variantA.yaml"


FULL_IN_ONE = """
import os, resource, sys
from trl_prorl import ProRLTrainer, train

script, rank, size, *arguments = sys.argv
save = ProRLTrainer._save_checkpoint

def save_on_a_full_disk(self, *given):
    if self.state.global_step == 4 and os.environ["RANK"] == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
    save(self, *given)

ProRLTrainer._save_checkpoint = save_on_a_full_disk
train.main(None, arguments)
"""


SMALL = "--train_rows 4 --max_steps 6 --per_device_train_batch_size 4 --num_generations 4 --max_completion_length 4 "
SMALL += "--eval_rows 2 --eval_strategy steps --eval_steps 2 --per_device_eval_batch_size 4 --disable_tqdm True "
SMALL += "--save_strategy steps --save_steps 2 --load_best_model_at_end True --metric_for_best_model eval_reward"


# The first writes the weights before Trainer's barrier for the best checkpoint, the second its random state after it.
@pytest.mark.parametrize("rank, size", [pytest.param(0, 20_000, marks=pytest.mark.slow), (1, 1_000)])
def test_a_disk_that_is_full_for_one_of_two_processes_ends_both_with_one_line(forks, tiny_model, tmp_path, rank, size):
    script = tmp_path / "full.py"
    out = tmp_path / "run"
    log = tmp_path / "log"
    script.write_text(FULL_IN_ONE)
    arguments = f"{rank} {size} --config {RECIPE} --model_name_or_path {tiny_model} --output_dir {out} {SMALL}".split()
    forks.start(run=str(script), argv=arguments, log=str(log), ranks=2, patient=True)
    status = forks.status()
    written = log.read_text()
    assert status == 1 and "Traceback" not in written, written[-3000:]
    (line,) = error_lines(written)
    assert f"process {rank}" in line and str(out / "checkpoint-4") in line and "GiB free" in line
    assert [path.name for path in out.glob("*checkpoint*")] == ["checkpoint-2"]
    assert find_newest_checkpoint(out) == out / "checkpoint-2"
