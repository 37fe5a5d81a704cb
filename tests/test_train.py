"""Recipe scripts as a user starts them, in processes of their own."""

import json
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
TINY = ROOT / "recipes" / "tiny" / "variantA.yaml"
SMALL = "--max_steps 3 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --ref_reset_every 2 "
SMALL = f"{SMALL} --lora_r 4 --disable_tqdm true".split()


@pytest.fixture
def recipe(forks, tiny_model, tmp_path):
    """A function that runs variant A's script in `run`: exit status, and what it wrote."""

    def start(options=""):
        given = ["--model_name_or_path", tiny_model, "--output_dir", tmp_path / "run", *SMALL]
        return forks.run(SCRIPT, *given, *options.split())

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


def test_the_tokenizer_is_of_the_model_s_revision(tiny_model, tmp_path, monkeypatch):
    asked = []

    def load(name, revision, **kwargs):
        asked.append(revision)
        raise KeyboardInterrupt

    monkeypatch.setattr("trl_prorl.train.load_tokenizer", load)
    line = f"--config {TINY} --model_name_or_path {tiny_model} --use_cpu true --output_dir {tmp_path / 'run'}"
    for more in ("", " --model_revision v2", ' --model_revision v2 --model_init_kwargs {"revision":"v3"}'):
        with pytest.raises(KeyboardInterrupt):
            build(*parse_recipe((line + more).split()))
    assert asked == ["main", "v2", "v3"]


# An example of each place that refuses keys beside the configuration and the command line, whose tests are
# test_refusals.py and cli/, and what the line names.
REFUSED = {
    "--optimizer_reset hard --optim sgd": "optimizer_reset",
    "--resume_from_checkpoint nowhere": "resume_from_checkpoint='nowhere'",
    "--task stem --task_level 6 --dataset_name nowhere": "task_level=6 has no effect with dataset_name='nowhere'",
}


@pytest.mark.parametrize("options", REFUSED)
def test_keys_that_do_not_fit_are_one_line_and_exit_code_two(recipe, tmp_path, options):
    status, written = recipe(options)
    assert status == 2 and "Traceback" not in written, written
    (line,) = error_lines(written)
    assert REFUSED[options] in line
    assert not (tmp_path / "run").exists()


def test_an_error_of_the_launcher_s_process_is_our_line_too(forks, tmp_path):
    command = f"accelerate.commands.launch --num_processes 1 --cpu {SCRIPT} --config tiny/varianA --output_dir"
    home = {"HF_HOME": str(tmp_path / "home")}  # without a user's own default
    status, written = forks.run("-m", *command.split(), tmp_path / "run", env=home)
    assert status != 0
    assert not (tmp_path / "run").exists()
    (line,) = error_lines(written)
    assert "(did you mean 'tiny/variantA'?)" in line


def test_the_same_command_begins_a_run_and_goes_on_with_it_and_another_one_is_refused(recipe, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "metrics.jsonl").touch()  # ended before its first row
    command = "--save_strategy steps --save_steps 2 --resume_from_checkpoint"
    assert recipe(f"{command} auto")[0] == 0
    assert len(read_rows(out)) == 3
    assert (tmp_path / "run.1").exists()
    (out / "checkpoint-3" / "manifest.json").unlink()  # as if killed while it saved its last checkpoint
    (out / RUN_ID_FILE).unlink()
    assert recipe(f"{command} auto")[0] == 0
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3]
    assert unusable_reason(out / "checkpoint-3") is None
    event = read_events(out, "resume")[-1]
    assert (event["checkpoint"], event["step_applied"]) == ("checkpoint-2", 2)
    loads = {row["step"]: row["time_load"] for row in read_rows(out) if "time_load" in row}
    assert list(loads) == [3]
    assert 0.0 < loads[3] < 60.0  # of the first step after the resume alone
    before = modification_times(out)
    status, written = recipe(f"{command} auto --beta 0.7")
    assert status == 2
    assert "beta: 1.0 -> 0.7" in written
    assert modification_times(out) == before


def test_a_reward_sees_plain_text_and_its_own_row():
    def same(completions, rows):
        return [float(text == row["answer"]) for text, row in zip(completions, rows, strict=True)]

    reward = task_reward(SimpleNamespace(name="echo", reward_many=same))
    completions = [[{"role": "assistant", "content": text}] for text in ("1", "2")]
    assert reward(completions=completions, answer=["1", "0"], trainer_state=object()) == [1.0, 0.0]
    assert reward.__name__ == "echo"


def test_a_run_that_has_to_stop_is_one_line_and_exit_code_one(recipe):
    status, written = recipe("--learning_rate 1e39")
    (line,) = error_lines(written)
    assert status == 1
    assert "Traceback" not in written
    assert "NaN or infinity at step 1: weights" in line
