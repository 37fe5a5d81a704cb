import json
import math
import shutil

import pandas as pd
import pytest
from peft import PeftModel
from run_record import error_lines, write_run
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from trl_prorl.eval import drift, passk
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.models import load_tokenizer
from trl_prorl.run.log_files import write_run_id


def measure(run_dir, options):
    """Run the command, and return what it wrote."""
    assert passk.main(["--run", str(run_dir), *options.split()]) == 0
    return json.loads((run_dir / "passk.json").read_text())


def test_greedy_is_what_each_model_says_alone(base, run_dir, task, greedy_by_hand):
    """Prompts of several lengths in one batch, adapter and all, against a plain loop over single prompts."""
    greedy = measure(run_dir, "--prompts 5 --n 2 --k 1")["greedy"]
    tokenizer = load_tokenizer(base)
    rows = task.rows("test", 5)
    plain = AutoModelForCausalLM.from_pretrained(base)
    said = {}
    for side in ("base", "trained"):
        model = plain if side == "base" else PeftModel.from_pretrained(plain, run_dir)
        said[side] = [greedy_by_hand(model, tokenizer, row["prompt"][0]["content"] + ">") for row in rows]
        correct = [int(task.verify(text, row)) for text, row in zip(said[side], rows, strict=True)]
        assert greedy[side]["correct"] == correct
        assert greedy[side]["accuracy"] == pytest.approx(sum(correct) / 5)
    assert said["base"] != said["trained"]


def test_cli_writes_what_it_measured(run_dir, task):
    options = "--prompts 6 --n 8 --k 1 4 --batch-size 20 --no-greedy"
    result = measure(run_dir, options)
    sizes = {"prompts": 6, "n": 8, "k": [1, 4], "temperature": 0.7, "max_new_tokens": 6}
    assert sizes.items() <= result.items()
    assert len(set(result["prompt_ids"])) == 6
    rows = task.rows("test", 6)
    seen = task.seen
    for side, verdicts in (("base", seen[:48]), ("trained", seen[48:])):
        counts = [sum(task.verify(text, rows[i]) for text in verdicts[8 * i : 8 * i + 8]) for i in range(6)]
        assert result[side]["correct"] == counts
        assert result[side]["pass@1"] == pytest.approx(sum(counts) / 48)
        assert result[side]["interval@1"] == [None, None]  # of 6 prompts
        expected = [1 - math.comb(8 - count, 4) / math.comb(8, 4) for count in counts]
        assert result[side]["pass@4"] == pytest.approx(sum(expected) / 6)
        (file,) = run_dir.glob(f"samples/{side}-*.parquet")
        samples = pd.read_parquet(file)
        assert result[side]["mean_tokens"] == samples["ids"].map(len).mean()
        assert result[side]["truncated"] == samples["truncated"].mean()
    for k in ("pass@1", "pass@4"):
        assert result["gain"][k] == [pytest.approx(result["trained"][k] - result["base"][k]), None, None]
    assert measure(run_dir, f"{options} --seed 1")["base"]["correct"] != result["base"]["correct"]


def test_full_model(run_dir, base, task):
    for file in run_dir.glob("adapter_*"):
        file.unlink()
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(run_dir)
    result = measure(run_dir, "--prompts 4 --n 4 --k 1")
    # The trained model is base here, and each is sampled from the same seed.
    assert result["trained"] == result["base"]


def test_every_checkpoint_is_in_the_order_of_its_step_if_the_best_one_was_kept(run_dir, task, add_checkpoints, capsys):
    add_checkpoints(run_dir, 30, 20, 10)
    shutil.copy(run_dir / "checkpoint-10" / "adapter_model.safetensors", run_dir)
    write_run_id(run_dir, "1", 10)
    result = measure(run_dir, "--prompts 20 --n 8 --k 1 --no-greedy --checkpoints all")
    points = result["checkpoints"]
    assert [point["step"] for point in points] == [10, 20, 30]
    assert result["trained"].items() <= points[0].items()
    assert len({tuple(point["correct"]) for point in (result["base"], *points)}) == 4
    assert [point["pass@1"] for point in points] == pytest.approx([sum(point["correct"]) / 160 for point in points])
    assert "alpha" in capsys.readouterr().out
    assert (run_dir / "passk.png").is_file()


def test_every_task_and_level_apart(run_dir, task, monkeypatch, capsys):
    """Of a mixture's prompts each group's numbers are those of its own samples."""
    rows = task.rows("test", 4).add_column("task", ["x", "y"] * 2).add_column("level", [1, None] * 2)
    monkeypatch.setattr(task, "rows", lambda *args, **keys: rows)
    result = measure(run_dir, "--prompts 4 --n 4 --k 1 --no-greedy")
    assert [(part["task"], part["level"]) for part in result["by"]] == [("x", 1), ("y", None)]
    for place, part in enumerate(result["by"]):
        for side in ("base", "trained"):
            counts = result[side]["correct"][place::2]
            assert (part[side]["correct"], part[side]["pass@1"]) == (counts, pytest.approx(sum(counts) / 8))
    shown = capsys.readouterr().out
    assert "x@1" in shown and "None" not in shown


@pytest.mark.parametrize(
    ("keys", "options", "named"),
    [
        ({"task": None}, "", "--plugin"),
        ({"model_name_or_path": None}, "", "model_name_or_path"),
        ({}, "--temperature 0", "--temperature "),
        ({}, "--checkpoints all", "checkpoints"),
    ],
)
def test_bad_input_is_one_line(run_dir, task, change_config, capsys, keys, options, named):
    change_config(run_dir, **keys)
    assert passk.main(["--run", str(run_dir), *options.split()]) == 2
    (message,) = error_lines(capsys.readouterr().err)
    assert named in message
    assert not (run_dir / "passk.json").exists()
    assert not task.seen


def test_the_result_is_what_the_last_command_asked_and_no_sample_is_drawn_twice(run_dir, task, add_checkpoints):
    add_checkpoints(run_dir, 10)
    write_run(run_dir, metrics=[{"step": 30}])
    everything = "--prompts 6 --n 4 --k 1 4 --checkpoints all --others parity@2"
    whole = measure(run_dir, everything)
    assert {"checkpoints", "others", "greedy"} <= set(whole)
    sampled = len(task.seen)
    part = measure(run_dir, "--prompts 6 --n 4 --k 2 --no-greedy")
    assert part["k"] == [2] and not {"checkpoints", "others", "greedy"} & set(part)
    assert part["trained"]["correct"] == whole["trained"]["correct"]
    assert measure(run_dir, everything) == whole
    assert len(task.seen) == sampled


@pytest.mark.parametrize(("command", "options"), [(passk, "--n 4 --k 1 --no-greedy"), (drift, "--samples 1")])
def test_weights_that_a_run_saves_meanwhile_are_not_scored_as_the_old_ones(
    run_dir, task, monkeypatch, capsys, command, options
):
    """The base is sampled first; then the run ends and saves its last weights."""
    path = run_dir / "adapter_model.safetensors"
    samples = HeldOut.samples

    def end_run_then(self, point, *given, **keys):
        if point is self.trained:
            save_file({name: tensor * 3 for name, tensor in load_file(path).items()}, path)
        return samples(self, point, *given, **keys)

    arguments = ["--run", str(run_dir), "--prompts", "4", *options.split()]
    with monkeypatch.context() as patch:
        patch.setattr(HeldOut, "samples", end_run_then)
        assert command.main(arguments) == 1
    assert "saved other weights while they were evaluated" in capsys.readouterr().err
    assert not list(run_dir.glob("passk.json")) + list(run_dir.glob("drift.json"))
    assert command.main(arguments) == 0
