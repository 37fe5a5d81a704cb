"""Recipe scripts as a user starts them, in processes of their own."""

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from run_record import error_lines, modification_times, read_events, read_rows, without_times

from trl_prorl.cli.recipe import parse_recipe
from trl_prorl.run.folder import unusable_reason
from trl_prorl.run.log_files import RUN_ID_FILE
from trl_prorl.train import build, task_reward


ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "recipes" / "grpo_variantA.py"
GSM8K = ROOT / "recipes" / "gsm8k" / "variantA.yaml"
SMALL = "--max_steps 3 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --ref_reset_every 2 "
SMALL = f"{SMALL} --lora_r 4 --disable_tqdm true".split()
SAVES = "--save_strategy steps --save_steps 2"
RESUME = "--resume_from_checkpoint True"
AUTO = "--resume_from_checkpoint auto"


@pytest.fixture
def recipe(forks, tiny_model, tmp_path):
    """A function that runs variant A's script in `run`, unless told otherwise: exit status, and what it wrote."""

    def start(options="", *words, script=SCRIPT, **kwargs):
        given = ["--model_name_or_path", tiny_model, "--output_dir", tmp_path / "run", *SMALL]
        return forks.run(script, *given, *options.split(), *words, **kwargs)

    return start


def test_a_recipe_leaves_a_run_folder_from_which_it_can_be_started_again(forks, recipe, tmp_path):
    first = tmp_path / "run"
    again = tmp_path / "again"
    status, written = recipe()
    assert status == 0, written[-3000:]
    for file in ("config.yaml", "env.json", "metrics.jsonl", "events.jsonl", "adapter_model.safetensors"):
        assert (first / file).exists()
    config = yaml.safe_load((first / "config.yaml").read_text())
    assert (config["task"], config["beta"], config["ref_reset_every"]) == ("reverse_digits", 1.0, 2)
    env = json.loads((first / "env.json").read_text())
    assert env["variant"] == "A"
    assert env["execution"]["old_logps"] == "first_pass"
    event = json.loads((first / "events.jsonl").read_text())
    assert (event["event"], event["reason"], event["step_applied"]) == ("reset", "periodic", 2)

    # The record is a recipe, whole without the base of the one that it comes from, and gives the same run.
    status, written = forks.run(SCRIPT, "--config", first / "config.yaml", "--output_dir", again)
    assert status == 0, written[-3000:]
    assert without_times(read_rows(first)) == without_times(read_rows(again))
    assert len(read_rows(first)) == 3

    # A folder that holds a run is not overwritten.
    before = modification_times(first)
    status, written = recipe()
    assert status == 2
    assert modification_times(first) == before


def test_the_tokenizer_is_of_the_model_s_revision(tiny_model, tmp_path, monkeypatch):
    asked = []

    def load(name, revision, **kwargs):
        asked.append(revision)
        raise KeyboardInterrupt

    monkeypatch.setattr("trl_prorl.train.load_tokenizer", load)
    given = [
        "--config",
        str(ROOT / "recipes/tiny/variantA.yaml"),
        "--model_name_or_path",
        tiny_model,
        "--use_cpu=true",
    ]
    for number, (more, revision) in enumerate(
        [
            ([], "main"),
            (["--model_revision", "v2"], "v2"),
            (["--model_revision", "v2", "--model_init_kwargs", '{"revision": "v3"}'], "v3"),
        ]
    ):
        recipe = parse_recipe([*given, "--output_dir", str(tmp_path / str(number)), *more])
        with pytest.raises(KeyboardInterrupt):
            build(*recipe)
        assert asked[-1] == revision


OF_GSM8K = f"--config {GSM8K} --bf16 false --use_cpu true --dataset_name"
# An example of each place that refuses beside the configuration, the recipe's file and the command line, whose own
# tests are test_refusals.py and cli/: options, and what the line names.
BAD = {
    f"{OF_GSM8K} /nowhere": "/nowhere",
    f"{OF_GSM8K} columns": "question",
    "--optimizer_reset hard --optim sgd": "optimizer_reset",
    "--config no.yaml": "SaveStrategy",
    "--output_dir no.yaml": "no.yaml",
    "--thinking_budget 5000": "thinking_budget=5000",
    "--resume_from_checkpoint nowhere": "resume_from_checkpoint='nowhere'",
    "--task_options {reward": "task_options",
    '--task_options ["reward"]': "task_options",
    "--task sums --dataset_name nowhere": "dataset_name='nowhere' is not an option",
    "--task stem --task_level 6 --dataset_name nowhere": "task_level=6 has no effect with dataset_name='nowhere'",
}


@pytest.mark.parametrize("options, named", BAD.items(), ids=BAD)
def test_bad_input_is_one_line_and_exit_code_two(recipe, tmp_path, options, named):
    (tmp_path / "no.yaml").write_text("save_strategy: no\nuse_cpu: true\nbf16: false\n")
    (tmp_path / "columns").mkdir()
    for split in ("train", "test"):
        (tmp_path / "columns" / f"{split}.jsonl").write_text('{"ask": "1+1", "answer": "#### 2"}\n')
    words = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in options.split()]
    status, written = recipe("", *words)
    assert status == 2 and "Traceback" not in written, written
    (line,) = error_lines(written)
    assert named in line
    assert not (tmp_path / "run").exists()


@pytest.fixture
def launched(forks, tmp_path):
    """A function: `accelerate launch` of variant A's own recipe: its exit status, the lines, and the run."""

    def launch(launcher, *arguments):
        command = ["accelerate.commands.launch", *launcher, SCRIPT, "--output_dir", tmp_path / "run", *SMALL]
        env = {"HF_HOME": str(tmp_path / "home")}  # without a user's own default
        status, written = forks.run("-m", *command, *arguments, env=env)
        return status, written.splitlines(), tmp_path / "run"

    return launch


def test_an_error_of_the_launcher_s_process_is_our_line_too(launched):
    status, lines, run = launched(["--num_processes", "1", "--cpu"], "--config", "tiny/varianA")
    assert status != 0
    assert not run.exists()
    (line,) = (line for line in lines if line.startswith("error: "))
    assert "(did you mean 'tiny/variantA'?)" in line


def test_a_run_that_was_cut_short_goes_on_and_another_one_is_refused(recipe, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "metrics.jsonl").write_text('{"step": 1}\n')  # ended before its first checkpoint
    status, written = recipe(f"{SAVES} {AUTO}")
    assert status == 0
    assert len(read_rows(out)) == 3
    assert len(read_rows(tmp_path / "run.1")) == 1
    (out / "checkpoint-3" / "manifest.json").unlink()  # as if killed while it saved its last checkpoint
    (out / RUN_ID_FILE).unlink()
    status, written = recipe(f"{SAVES} {AUTO}")
    assert status == 0
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3]
    assert unusable_reason(out / "checkpoint-3") is None
    event = read_events(out, "resume")[-1]
    assert (event["checkpoint"], event["step_applied"]) == ("checkpoint-2", 2)
    loads = {row["step"]: row["time_load"] for row in read_rows(out) if "time_load" in row}
    assert list(loads) == [3]
    assert 0.0 < loads[3] < 60.0  # of the first step after the resume alone
    before = modification_times(out)
    status, written = recipe(f"{SAVES} {RESUME} --beta 0.7")
    assert status == 2
    assert "beta: 1.0 -> 0.7" in written
    assert modification_times(out) == before


@pytest.mark.parametrize("left", ["a killed process", "metrics.jsonl", ""])
def test_a_run_that_was_killed_before_its_first_row_begins_again(forks, recipe, tmp_path, tiny_model, left):
    out = tmp_path / "run"
    if left:  # else it was killed before it had its lock
        out.mkdir()
    if left == "a killed process":
        argv = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *SMALL]
        process = forks.start(run=str(SCRIPT), argv=argv, log=str(tmp_path / "log"))
        while not (out / "env.json").exists():
            time.sleep(0.001)
        os.kill(process, signal.SIGKILL)
        assert forks.status() == -signal.SIGKILL
        assert (out / "metrics.jsonl").read_text() == ""
        assert (out / "run.lock").exists()
    elif left:  # killed a moment earlier; ended by Ctrl-C
        (out / left).touch()
    status, written = recipe(AUTO)
    assert status == 0
    assert len(read_rows(out)) == 3
    assert (tmp_path / "run.1").exists() == bool(left)


def test_a_finished_run_is_not_trained_a_second_time(recipe, tmp_path):
    out = tmp_path / "run"
    assert recipe("--save_strategy no")[0] == 0
    before = modification_times(out)
    status, written = recipe(f"--save_strategy no {RESUME}")
    (line,) = error_lines(written)
    assert status == 2 and "output_dir" in line
    assert modification_times(out) == before

    # Killed inside the save at its end: the run's id is written after the weights.
    (out / "prorl_run.json").unlink()
    again = f"--save_strategy steps --save_steps 3 {AUTO}"
    status, written = recipe(again)
    assert status == 0
    weights = (out / "adapter_model.safetensors").read_bytes()
    status, written = recipe(again)
    assert status == 0
    assert (out / "adapter_model.safetensors").read_bytes() == weights
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3]


def test_a_run_that_has_to_stop_is_one_line_and_exit_code_one(recipe):
    status, written = recipe("--learning_rate 1e39")
    (line,) = error_lines(written)
    assert status == 1
    assert "Traceback" not in written
    assert "NaN or infinity at step 1: weights" in line


BROKEN = """
from trl_prorl.train import main
from trl_prorl.trainer import ProRLTrainer

def broken(self, *args, **kwargs):
    raise {error}

ProRLTrainer.compute_loss = broken
main({recipe!r})
"""


@pytest.mark.parametrize(
    ("error", "traceback"), [("ValueError('too many values')", True), ("OSError(28, 'No space left')", False)]
)
def test_a_bug_in_the_middle_of_training_keeps_its_traceback(recipe, tmp_path, error, traceback):
    path = tmp_path / "broken.py"
    path.write_text(BROKEN.format(error=error, recipe=str(ROOT / "recipes" / "tiny" / "variantA.yaml")))
    status, written = recipe(script=path)
    assert status == 1
    assert ("Traceback" in written and "in broken" in written) == traceback
    assert bool(error_lines(written)) != traceback


def test_a_reward_sees_plain_text_and_its_own_row():
    def same(completions, rows):
        return [float(text == row["answer"]) for text, row in zip(completions, rows, strict=True)]

    reward = task_reward(SimpleNamespace(name="echo", reward_many=same))
    completions = [[{"role": "assistant", "content": text}] for text in ("1", "2")]
    assert reward(completions=completions, answer=["1", "0"], trainer_state=object()) == [1.0, 0.0]
    assert reward.__name__ == "echo"
