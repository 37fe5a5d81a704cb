"""What a training shows, by real processes, on a pseudo-terminal and into a file, and what a tracker receives."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from run_record import read_rows


SMALL = "--max_steps 4 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --logging_steps 1".split()
SMALL += "--ref_reset_every 2 --log_completions true --num_completions_to_print 1".split()
ENV = {"COLUMNS": "200", "TERM": "dumb"}


def lines_of(done):
    """Everything that the process shows, as lines; what a bar writes over is a line as well."""
    status, shown = done
    assert status == 0, shown
    return [line.strip() for line in re.split("[\r\n]+", shown) if line.strip()]


@pytest.fixture
def train(forks, tmp_path):
    """A function that trains with further options: the lines that it shows on a terminal, or writes into a file."""

    def run(*options, terminal=True):
        command = ["trl_prorl", "train", "tiny/variantA", "--output_dir", "the run", *SMALL, *options]
        return lines_of(forks.run("-m", *command, cwd=tmp_path, env=ENV, terminal=terminal))

    return run


LOG = r"step {}: reward [\d.e-]+  accuracy [\d.e-]+  loss [\d.e-]+  entropy [\d.e-]+  grad_norm [\d.e-]+"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_line_for_each_log_and_for_each_reset(train, terminal):
    """On a terminal below transformers' bar, and in a file."""
    lines = train(terminal=terminal)
    shown = [line for line in lines if re.match(r"step \d: (reward|loss) ", line)]
    assert [line[:7] for line in shown] == ["step 1:", "step 2:", "step 3:", "step 4:"]
    assert re.match(LOG.format(1), shown[0]) and re.match(LOG.format(3), shown[2])
    assert re.search(r"mean_length [\d.e-]+  .*kl_ref [\d.e-]+  kl_old [\d.e-]+$", shown[0])
    assert max(map(len, shown)) <= 200
    assert len([line for line in lines if line.startswith("step 2: reset, ") and "optimizer keep" in line]) == 1
    assert lines[-1] == "run folder: the run, next: trl-prorl passk --run 'the run'"
    assert not [line for line in lines if line.startswith("{")]  # transformers' dict of all metrics
    assert terminal or any("4/4" in line for line in lines)  # its bar; the pseudo-terminal has no width


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def written(forks, tiny_model, tmp_path_factory):
    """The scalars of a short run by name and step, and its record by step."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path_factory.mktemp("tracked")
    options = "--max_steps 6 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --ref_reset_every 2 "
    options += (
        "--lora_r 4 --logging_steps 1 --report_to tensorboard --eval_strategy steps --eval_steps 3 --eval_rows 4"
    )
    options += f" --num_generations_eval 8 --beta_base 0.1 --output_dir {out} --model_name_or_path {tiny_model}"
    options += " --save_strategy steps --save_steps 6"
    status, text = forks.run(ROOT / "recipes" / "grpo_variantA.py", *options.split())
    assert status == 0, text[-3000:]
    (file,) = out.rglob("events.out.tfevents.*")
    events = reader.EventAccumulator(str(file.parent))
    events.Reload()
    scalars = {tag: {point.step: point.value for point in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    history = json.loads((out / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    return scalars, history, read_rows(out), read_rows(out, "evaluations.jsonl")


def test_tracker_log_and_row_have_the_same_number(written):
    """TRL's metrics are its means of batches in the log, and ours in a row."""
    scalars, history, rows, evaluations = written
    rows = {row["step"]: row for row in rows}
    evaluations = {row["step"]: row for row in evaluations}
    seen = set()
    for entry in history:
        row = (rows if "loss" in entry else evaluations)[entry["step"]]
        for name in entry.keys() - {"epoch", "step"}:
            if name.startswith(("prorl/", "eval_pass@")) and name != "prorl/resets":
                assert entry[name] == row[name.removeprefix("prorl/")], name
            tag = name.replace("eval_", "eval/", 1) if name.startswith("eval_") else f"train/{name}"
            assert scalars[tag][entry["step"]] == np.float32(entry[name]), name
            seen.add(name)
    assert {"loss", "step_time", "learning_rate", "entropy", "kl", "reward", "prorl/kl_ref", "prorl/accuracy"} <= seen
    assert {"eval_loss", "eval_reward", "eval_pass@1", "eval_entropy"} <= seen
    assert len(history) == 8
