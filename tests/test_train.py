"""Recipe scripts as a user starts them, in processes of their own."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml
from datasets import Dataset
from run_record import read_rows, untimed
from trl import ModelConfig

from trl_prorl import ProRLConfig, train
from trl_prorl.train import check_folder, task_reward


ROOT = Path(__file__).parent.parent
GSM8K = ROOT / "recipes" / "gsm8k" / "qwen2.5-0.5b" / "variantA.yaml"
SMALL = ["--max_steps", "3", "--per_device_train_batch_size", "8", "--num_generations", "4", "--train_rows", "32"]
SMALL += ["--ref_reset_every", "2", "--lora_r", "4", "--disable_tqdm", "true"]


def test_a_recipe_leaves_a_run_folder_from_which_it_can_be_started_again(forks, tiny_model, tmp_path):
    recipe = ROOT / "recipes" / "grpo_variantA.py"
    first, again = tmp_path / "first", tmp_path / "again"
    status, written = forks.run(recipe, "--model_name_or_path", tiny_model, "--output_dir", str(first), *SMALL)
    assert status == 0, written[-3000:]
    for file in ("config.yaml", "env.json", "metrics.jsonl", "events.jsonl", "adapter_model.safetensors"):
        assert (first / file).exists()
    config = yaml.safe_load((first / "config.yaml").read_text())
    assert (config["task"], config["beta"], config["ref_reset_every"]) == ("reverse_digits", 1.0, 2)
    env = json.loads((first / "env.json").read_text())
    assert env["variant"] == "A" and env["execution"]["old_logps"] == "first_pass"
    event = json.loads((first / "events.jsonl").read_text())
    assert (event["event"], event["reason"], event["step_applied"]) == ("reset", "periodic", 2)

    # The record is a recipe, and gives the same run.
    status, written = forks.run(recipe, "--config", str(first / "config.yaml"), "--output_dir", str(again))
    assert status == 0, written[-3000:]

    assert untimed(read_rows(first)) == untimed(read_rows(again)) and len(read_rows(first)) == 3

    # A folder that holds a run is not overwritten.
    before = (first / "metrics.jsonl").read_text()
    status, written = forks.run(recipe, "--model_name_or_path", tiny_model, "--output_dir", str(first), *SMALL)
    assert status == 2 and "already holds a run" in written
    assert (first / "metrics.jsonl").read_text() == before


CPU = ["--bf16", "false", "--use_cpu", "true"]
# An example of every place that refuses. All that a key or a combination of keys refuses is in test_refusals.py, all
# that the parser refuses in test_command_line.py, code in recipes in test_recipe_runs_no_code.py.
BAD = {
    "contradiction": (["--kl_estimator", "k1", "--use_bias_correction_kl", "false"], ["kl_estimator='k1'"]),
    "task": (["--task", "reverse_digit"], ["reverse_digit", "reverse_digits"]),
    "task with a base of its own": (
        ["--model_name_or_path", "embedded", "--task", "sums"],
        ["task='sums'", "model_name_or_path: embedded:sums, or embedded:reverse_digits if"],
    ),
    "task option": (["--task", "gsm8k"], ["level=3", "gsm8k", "path"]),
    "dataset": (
        ["--config", str(GSM8K), *CPU, "--dataset_name", "/nowhere"],
        ["/nowhere"],
    ),
    "optimizer": (["--optimizer_reset", "hard", "--optim", "sgd"], ["optimizer_reset", "SGD", "keep"]),
    "optimizer without a bias correction": (
        ["--optimizer_reset", "step", "--optim", "adafactor"],
        ["optimizer_reset='step'", "Adafactor", "hard"],
    ),
    "no checkpoint": (["--resume_from_checkpoint", "True"], ["resume_from_checkpoint=True", "holds no checkpoint"]),
    "wrong type": (["--max_steps", "many"], ["max_steps", "many"]),
    "model folder": (["--model_name_or_path", "./no/such/folder"], ["model_name_or_path='./no/such/folder'"]),
    "few rows": (["--train_rows", "1"], ["1 prompts", "train_rows"]),
    "context": (["--max_completion_length", "4000"], ["max_completion_length=4000", "context of 2048"]),
    "limit of packing": (
        ["--pack_groups", "on", "--pack_max_tokens", "20"],
        ["pack_max_tokens=20 is less than the", "training prompt", "max_completion_length="],
    ),
    "a task reads its data itself": (["--dataset_config", "socratic"], ["dataset_config='socratic'", "task_options"]),
    "temperature": (["--temperature", "0"], ["temperature=0", "positive"]),
    "package": (["--report_to", "mlflow"], ["report_to='mlflow'", "not installed", "report_to: none"]),
    "vLLM": (["--use_vllm", "true", "--compact_generation", "off"], ["use_vllm=True", "pip install"]),
    "bare no": (["--config", "no.yaml"], ['save_strategy: "no"']),
    "output_dir is a file": (["--output_dir", "no.yaml"], ["output_dir=", "is a file"]),
    "remote code": (["--config", "remote.yaml"], ["trust_remote_code=True", "command line"]),
    "empty dataset": (["--config", str(GSM8K), *CPU, "--dataset_name", "empty"], ["empty"]),
    "no such column": (["--config", str(GSM8K), *CPU, "--dataset_name", "columns"], ["question", "columns"]),
    "length reward": (["--length_reward", "cosin"], ["length_reward='cosin'", "cosine"]),
    "thinking": (["--thinking_budget", "5000"], ["thinking_budget=5000", "max_completion_length"]),
    "checkpoint": (["--resume_from_checkpoint", "nowhere"], ["resume_from_checkpoint='nowhere'", "no such folder"]),
    "model without weights": (["--model_name_or_path", "columns"], ["model_name_or_path", "without config.json"]),
    "groups": (
        ["--num_generations", "3"],
        ["num_generations=3 does not divide the 8 completions", "per_device_train_batch_size=8"],
    ),
    "task options": (["--task_options", "{reward"], ["task_options='{reward'", "JSON"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_two(forks, tmp_path, tiny_model, case):
    arguments, parts = BAD[case]
    (tmp_path / "no.yaml").write_text("save_strategy: no\n")
    (tmp_path / "remote.yaml").write_text("model_init_kwargs: {trust_remote_code: true}\n")
    for folder, line in (("empty", ""), ("columns", '{"ask": "1+1", "answer": "#### 2"}\n')):
        (tmp_path / folder).mkdir()
        for split in ("train", "test"):
            (tmp_path / folder / f"{split}.jsonl").write_text(line)
    arguments = [str(tmp_path / a) if (tmp_path / a).exists() and a else a for a in arguments]
    out = tmp_path / "run"
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *SMALL, *arguments]
    status, written = forks.run(ROOT / "recipes" / "grpo_variantA.py", *arguments)
    assert status == 2, written
    errors = [line for line in written.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in written
    for part in parts:
        assert part in errors[0]
    assert not out.exists()


@pytest.fixture
def launched(forks, tmp_path):
    """A function: `accelerate launch` of a variant's own recipe: its exit status, the lines, and the run."""

    def launch(variant, launcher, *arguments):
        command = [str(ROOT / "recipes" / f"grpo_variant{variant}.py"), "--output_dir", str(tmp_path / "run"), *SMALL]
        env = {"HF_HOME": str(tmp_path / "home")}  # without a user's own default
        module = "accelerate.commands.launch"
        status, written = forks.run("-m", module, *launcher, *command, *arguments, env=env)
        return status, written.splitlines(), tmp_path / "run"

    return launch


def test_an_error_of_the_launcher_s_process_is_our_line_too(launched):
    status, lines, run = launched("A", ["--num_processes", "1", "--cpu"], "--config", "tiny/varianA")
    assert status != 0 and not run.exists()
    (line,) = [line for line in lines if line.startswith("error: ")]
    assert "(did you mean 'tiny/variantA'?)" in line


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the launcher would take the GPU")
def test_the_launcher_s_precision_is_that_of_a_bare_launch(launched):
    status, lines, run = launched("A", ["--config_file", str(ROOT / "accelerate_configs" / "single_gpu.yaml")])
    assert status == 0, lines
    assert "The launcher says bf16, and this run is on a CPU: it computes in bf16 there." in lines
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["bf16"], config["use_cpu"], config["beta"]) == (True, True, 1.0)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the launcher would take the GPU")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--config_file", "cpu"], ""),
        (["--config_file", "multi_gpu"], "error: accelerate launch was told of several GPUs"),
        (["--config_file", "fsdp2"], "error: accelerate launch was told of several GPUs"),
        (["--mixed_precision", "fp16"], "error: accelerate launch says mixed_precision=fp16, which needs a GPU"),
        (["--cpu", "--num_processes", "2"], "accelerate launch was asked for several processes, and has started one"),
        ([], ""),
    ],
)
def test_a_bare_launch_runs_or_says_why_not(launched, arguments, told):
    if "--config_file" in arguments:
        arguments = ["--config_file", str(ROOT / "accelerate_configs" / f"{arguments[1]}.yaml")]
    status, lines, run = launched("A", arguments)
    assert any(line.startswith(told) for line in lines or [""])
    assert (status == 0) == run.is_dir() == (not told.startswith("error"))


def test_a_run_that_was_cut_short_goes_on_and_another_one_is_refused(forks, tmp_path, tiny_model):
    out = tmp_path / "run"
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *SMALL, "--save_steps", "2"]
    arguments += ["--save_strategy", "steps"]
    again = [*arguments, "--resume_from_checkpoint", "True"]
    out.mkdir()
    (out / "metrics.jsonl").write_text('{"step": 1}\n')  # ended before its first checkpoint
    recipe = ROOT / "recipes" / "grpo_variantA.py"
    status, written = forks.run(recipe, *again)
    assert status == 0 and "the run begins again at step 0" in written
    whole = (out / "metrics.jsonl").read_text().splitlines()
    assert len(whole) == 3 and (out / "metrics.1.jsonl").exists()
    (out / "checkpoint-3" / "manifest.json").unlink()
    status, written = forks.run(recipe, *again)
    assert status == 0 and "checkpoint-3 is skipped: it has no manifest.json" in written
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    status, written = forks.run(recipe, *again, "--beta", "0.7")
    assert status == 2 and "beta: 1.0 -> 0.7" in written and "allow_config_change" in written
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize("left", ["a killed process", "run.lock", "metrics.jsonl", ""])
def test_a_run_that_was_killed_before_its_first_row_begins_again(forks, tmp_path, tiny_model, left):
    out, recipe = tmp_path / "run", ROOT / "recipes" / "grpo_variantA.py"
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *SMALL]
    out.mkdir()
    if left == "a killed process":
        process = forks.start(run=str(recipe), argv=arguments, log=str(tmp_path / "log"))
        while not (out / "env.json").exists():
            time.sleep(0.001)
        os.kill(process, signal.SIGKILL)
        assert forks.status() == -signal.SIGKILL
        assert (out / "metrics.jsonl").read_text() == "" and (out / "run.lock").exists()
    elif left:  # killed a moment earlier; ended by Ctrl-C
        (out / left).touch()
    status, written = forks.run(recipe, *arguments, "--resume_from_checkpoint", "True")
    if not left:
        assert status == 2 and "holds no checkpoint that is complete. Leave it out to begin a run there" in written
    else:
        assert status == 0 and "the run begins again at step 0" in written
        assert (out / "metrics.jsonl").read_text().count("\n") == 3 and not (out / "metrics.1.jsonl").exists()


def test_a_finished_run_is_not_trained_a_second_time(forks, tmp_path, tiny_model):
    out, recipe = tmp_path / "run", ROOT / "recipes" / "grpo_variantA.py"
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *SMALL]
    assert forks.run(recipe, *arguments, "--save_strategy", "no")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    status, written = forks.run(recipe, *arguments, "--save_strategy", "no", "--resume_from_checkpoint", "True")
    (line,) = [line for line in written.splitlines() if line.startswith("error: ")]
    assert status == 2 and "holds a finished run" in line and "adapter_model.safetensors" in line
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before

    # Killed inside the save at its end: the run's id is written after the weights.
    (out / "prorl_run.json").unlink()
    arguments += ["--save_strategy", "steps", "--save_steps", "3", "--resume_from_checkpoint", "True"]
    status, written = forks.run(recipe, *arguments)
    assert status == 0 and "the run begins again at step 0" in written
    weights = (out / "adapter_model.safetensors").read_bytes()
    status, written = forks.run(recipe, *arguments)
    assert status == 0 and f"finished, nothing to do: checkpoint-3 is the last step of {out}" in written
    assert (out / "adapter_model.safetensors").read_bytes() == weights
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3]


def test_a_resume_from_another_working_directory_is_the_same_run(forks, tmp_path, tiny_model):
    (tmp_path / "here").mkdir(), (tmp_path / "there").mkdir()
    recipe = ROOT / "recipes" / "grpo_variantA.py"
    arguments = ["--model_name_or_path", tiny_model, *SMALL, "--save_strategy", "steps", "--save_steps", "2"]
    out = tmp_path / "here" / "run"
    status, written = forks.run(recipe, *arguments, "--output_dir", "run", cwd=tmp_path / "here")
    assert status == 0, written[-2000:]
    whole = (out / "adapter_model.safetensors").read_bytes()
    shutil.rmtree(out / "checkpoint-3")
    for name in ("adapter_model.safetensors", "prorl_run.json"):
        (out / name).unlink()
    again = [*arguments, "--output_dir", "../here/run", "--resume_from_checkpoint", "True"]
    status, written = forks.run(recipe, *again, cwd=tmp_path / "there")
    assert status == 0, written[-2000:]
    assert (out / "adapter_model.safetensors").read_bytes() == whole and not list((tmp_path / "there").iterdir())
    assert [row["step"] for row in read_rows(out)] == [1, 2, 3]


@pytest.mark.parametrize("key", ["output_dir", "run_dir"])
def test_a_read_only_folder_is_told_before_a_model_is_loaded(tmp_path, monkeypatch, key):
    (tmp_path / "disk").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "disk" and real(path, mode))
    folders = {"output_dir": str(tmp_path / "out"), key: str(tmp_path / "disk" / "deep" / "run")}
    with pytest.raises(ValueError, match=f"deep/run' cannot be written: {tmp_path}/disk is read-only"):
        check_folder(ProRLConfig(use_cpu=True, bf16=False, **folders), ())


def test_the_tools_of_prolonged_training_in_one_recipe(forks, tmp_path, tiny_model):
    """What the prorl_v2 recipe asks, and interrupted thinking, at the size of a test."""
    out = tmp_path / "run"
    keys = yaml.safe_load((ROOT / "recipes" / "prorl_v2" / "gsm8k_qwen2.5-0.5b.yaml").read_text())
    keys |= {"model_name_or_path": tiny_model, "output_dir": str(out), "task": "reverse_digits", "dtype": "float32"}
    del keys["dataset_name"]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(keys | {"gradient_checkpointing": False}))
    arguments = ["--config", str(tmp_path / "recipe.yaml"), *CPU]
    arguments += [*SMALL, "--gradient_accumulation_steps", "1", "--max_completion_length", "24", "--save_steps", "2"]
    arguments += ["--thinking_text", "so ", *"--thinking_budget 8 --thinking_answer_tokens 4 --length_on 2".split()]
    status, written = forks.run(ROOT / "recipes" / "grpo_variantA.py", *arguments)
    assert status == 0, written[-3000:]
    rows = read_rows(out)
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert {"groups_undecided", "rows_skipped", "interrupted_fraction", "reward/reverse_digits"} <= set(row)
    assert json.loads((out / "env.json").read_text())["execution"]["packing"] == "on"


def test_a_run_that_has_to_stop_is_one_line_and_exit_code_one(forks, tmp_path, tiny_model):
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(tmp_path / "run"), *SMALL]
    status, written = forks.run(ROOT / "recipes" / "grpo_variantA.py", *arguments, "--learning_rate", "inf")
    errors = [line for line in written.splitlines() if line.startswith("error: ")]
    assert status == 1 and len(errors) == 1 and "Traceback" not in written
    assert "NaN or infinity at step 1: weights" in errors[0]


BROKEN = """
import sys
sys.path.insert(0, {root!r})
from trl_prorl.train import main
from trl_prorl.trainer import ProRLTrainer

def broken(self, *args, **kwargs):
    raise {error}

ProRLTrainer._compute_loss = broken
main({recipe!r})
"""


@pytest.mark.parametrize(
    ("error", "traceback"), [("ValueError('too many values')", True), ("OSError(28, 'No space left')", False)]
)
def test_a_bug_in_the_middle_of_training_keeps_its_traceback(forks, tmp_path, tiny_model, error, traceback):
    path = tmp_path / "broken.py"
    recipe = str(ROOT / "recipes" / "tiny" / "variantA.yaml")
    path.write_text(BROKEN.format(root=str(ROOT), error=error, recipe=recipe))
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(tmp_path / "run"), *SMALL]
    status, written = forks.run(path, *arguments)
    assert status == 1 and ("Traceback" in written and "in broken" in written) == traceback
    assert any(line.startswith("error: ") for line in written.splitlines()) != traceback


def test_evaluations_are_kept_and_go_on_after_a_resume(forks, tmp_path, tiny_model):
    out = tmp_path / "run"
    recipe = ROOT / "recipes" / "grpo_variantA.py"
    arguments = ["--model_name_or_path", tiny_model, "--output_dir", str(out), *SMALL, "--save_strategy", "steps"]
    arguments += ["--save_steps", "2", "--eval_strategy", "steps", "--eval_steps", "1", "--eval_rows", "2"]
    arguments += ["--per_device_eval_batch_size", "4"]
    status, written = forks.run(recipe, *arguments)
    assert status == 0, written[-2000:]
    rows = read_rows(out, "evaluations.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3] and all(0 <= row["eval_reward"] <= 1 for row in rows)
    assert all([name for name in row if "pass@" in name] == [f"eval_pass@{k}" for k in (1, 2, 4)] for row in rows)
    shutil.rmtree(out / "checkpoint-3")
    status, written = forks.run(recipe, *arguments, "--resume_from_checkpoint", "true")
    assert status == 0, written[-2000:]
    assert read_rows(out, "evaluations.jsonl") == rows


def test_a_reward_sees_plain_text_and_its_own_row():
    class Echo:
        name = "echo"

        def reward_many(self, completions, rows):
            return [float(text == row["answer"]) for text, row in zip(completions, rows, strict=True)]

    reward = task_reward(Echo())
    completions = [[{"role": "assistant", "content": text}] for text in ("1", "2", "3")]
    assert reward(completions=completions, answer=["1", "0", "3"], trainer_state=object()) == [1.0, 0.0, 1.0]
    assert reward.__name__ == "echo"


@pytest.mark.parametrize("which", ["training", "validation"])
def test_a_limit_of_packing_that_a_prompt_exceeds_is_told_before_a_model_is_loaded(
    tmp_path, tiny_model, monkeypatch, which
):
    class Prompts:
        """A task whose longest prompt stands in one of its sets."""

        name = "prompts"

        def rows(self, split, number, seed):
            long = {"training": "train", "validation": "validation"}[which] == split
            texts = ["1", "2" * (100 if long else 1), *"3456"]
            return Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in texts]})

    monkeypatch.setattr(train, "ProRLTrainer", lambda **kwargs: pytest.fail("a model was loaded"))
    monkeypatch.setattr(train.TaskArguments, "make_task", lambda self: Prompts())
    args = ProRLConfig(
        str(tmp_path),
        use_cpu=True,
        bf16=False,
        pack_groups="on",
        pack_max_tokens=100,
        max_completion_length=6,
        eval_strategy="steps",
        eval_steps=5,
        per_device_train_batch_size=8,
    )
    with pytest.raises(ValueError, match=f"pack_max_tokens=100 is less than .* tokens of {which} prompt 1 "):
        train.build(train.TaskArguments(), args, ModelConfig(model_name_or_path=tiny_model))
