"""What a training shows, by real processes, on a pseudo-terminal and into a file; and what a tracker receives."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
from run_record import read_rows

from trl_prorl.record.terminal import describe_processes, write_event_line, write_log_line


SMALL = "--max_steps 4 --per_device_train_batch_size 8 --num_generations 4 --train_rows 32 --logging_steps 1".split()
SMALL += "--ref_reset_every 2 --log_completions true --num_completions_to_print 1".split()
SCRIPT = """
from datasets import Dataset
from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.embedded.shipped import embedded_model
from peft import LoraConfig

def short(completions, **columns):
    return [-float(len(completion[0]["content"])) for completion in completions]

rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": f"reverse {i}"}] for i in range(16)]})
keys = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "bf16": False, "use_cpu": True}
args = ProRLConfig("run", beta=0.1, ref_reset_every=40, report_to="none", **keys)
ProRLTrainer(embedded_model("embedded"), short, args, rows, peft_config=LoraConfig()).train()
"""

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


def test_a_run_on_a_terminal_from_its_banner_to_the_next_command(train):
    lines = train("--save_strategy", "steps", "--save_steps", "2")
    text = "\n".join(lines)
    for told in ("trains", "variant", "resets", "pack_groups", "compact_generation", "run folder"):
        assert len([line for line in lines if line.startswith(f"{told} ")]) == 1, told
    assert "LoRA, " in text
    assert "4 steps" in text
    assert "A: KL to a frozen reference that is set to the policy" in text
    assert "first after step 2" in text
    assert lines[-1] == "next: trl-prorl passk --run 'the run'"
    resets = [line for line in lines if line.startswith("step 2: reset, ")]
    assert len(resets) == 1
    assert "the reference becomes the policy, optimizer keep" in resets[0]
    logs = [line for line in lines if re.match(r"step \d: (reward|loss) ", line)]
    assert [line[:7] for line in logs] == ["step 1:", "step 2:", "step 3:", "step 4:"]
    # The dict of all metrics was 900 characters; pages are no wider than the terminal.
    assert max(map(len, lines)) <= 200
    assert "{'" not in text
    assert text.count("Step 4 ") == 1
    assert "Warning" not in text  # of the table's title

    again = train("--max_steps", "6", "--resume_from_checkpoint", "the run/checkpoint-2")
    assert "resumed from checkpoint-2" in again
    assert "nothing to do" not in "\n".join(again)
    over = train("--max_steps", "2", "--resume_from_checkpoint", "the run/checkpoint-2")
    assert "finished, nothing to do: checkpoint-2 is the last step of the run" in over


@pytest.mark.parametrize(
    "processes, accumulated, line",
    [
        (1, 8, None),
        (2, 8, "a step trains on 256 completions, 2 times those of one; gradient_accumulation_steps: 4 keeps 128"),
        (3, 8, "a step trains on 384 completions, 3 times those of one"),
        (4, 4, "a step trains on 256 completions, 4 times those of one; gradient_accumulation_steps: 1 keeps 64"),
    ],
)
def test_several_processes_say_that_the_batch_grows(processes, accumulated, line):
    args = SimpleNamespace(
        world_size=processes, per_device_train_batch_size=16, gradient_accumulation_steps=accumulated
    )
    assert describe_processes(args) == (None if line is None else f"{processes} processes: {line}")


@pytest.mark.parametrize(
    "lora, rate, warned", [(True, 1e-6, True), (True, 1e-7, True), (True, 1e-5, False), (False, 1e-6, False)]
)
def test_an_adapter_at_trl_s_default_rate_is_warned_of(run, caplog, lora, rate, warned):
    run(lora=lora, learning_rate=rate, max_steps=1)
    assert [f"learning_rate={rate:g}" in message for message in caplog.messages] == [True] * warned


def test_completions_may_be_written_and_not_printed(run, capsys):
    trainer = run(log_completions=True, num_completions_to_print=0, max_steps=1)
    assert "Completion" not in capsys.readouterr().out
    (table,) = Path(trainer.args.output_dir, "completions").glob("*.parquet")
    assert len(pandas.read_parquet(table)) == 8


@pytest.mark.parametrize("silent", ["--disable_tqdm", ""])
def test_off_a_terminal_or_without_bars_there_is_no_banner(train, silent):
    options = [silent, "true"] if silent else []
    lines = train("--ref_reset_every", "4", *options, terminal=bool(silent))
    assert not [line for line in lines if line.startswith(("trains ", "variant ", "run folder", "next: "))]
    warned = [line for line in lines if "A never resets: ref_reset_every=4" in line]
    assert len(warned) == 1
    assert "it is the control" in warned[0]
    logs = [line[:7] for line in lines if re.match(r"step \d: (reward|loss)", line)]
    assert logs == [f"step {n}:" for n in (1, 2, 3, 4)]


def test_a_script_sees_no_future_warning_that_is_not_its_own(forks, tmp_path):
    """In a process that has imported nothing yet."""
    lines = lines_of(forks.run("exec", sys.executable, "-c", SCRIPT, cwd=tmp_path, env=ENV, terminal=True))
    assert not [line for line in lines if "FutureWarning" in line]
    text = "\n".join(lines)
    assert "reward              short" in text
    assert "A never resets" in text
    assert "next: " not in text


def test_all_metrics_stay_in_the_log_history(run):
    trainer = run(beta=0.1, ref_reset_every=2, num_iterations=2, epsilon=0.0)
    row, *others = trainer.state.log_history
    assert {"completions/mean_length", "clip_ratio/region_mean", "prorl/ref_time_fraction", "epoch"} <= row.keys()
    assert len(str(row)) > 600
    clipped = [one["clip_ratio/region_mean"] for one in (row, *others) if "clip_ratio/region_mean" in one]
    assert [one["clip_region_mean"] for one in read_rows(trainer.run_dir)] == pytest.approx(clipped)
    assert any(clipped)


@pytest.mark.parametrize(
    "logs, line",
    [
        ({"loss": 0.123456, "epoch": 1.0, "reward": 1, "x": "y" * 999}, "step 3: reward 1  loss 0.1235"),
        ({"eval_reward": 0.5, "eval_pass@4": 0.25, "eval_reward_std": 1.0, "eval_loss": 1.0},
         "step 3: eval_reward 0.5  eval_pass@4 0.25"),
        ({"eval_a_reward": 0.5, "eval_a_rewards/f/mean": 1.0}, "step 3: eval_a_reward 0.5"),
        ({"mine": 2, "text": "long"}, "step 3: mine 2"),
        ({f"m{i}": i for i in range(99)}, "step 3: " + "  ".join(f"m{i} {i}" for i in range(12))),
        ({"train_runtime": 12.3456, "train_loss": 1.0}, "trained to step 3 in 12.35 s"),
        ({"reward": None, "loss": float("nan")}, "step 3: reward None  loss nan"),
        ({"reward": 1.0, "rewards/a/mean": 1.0, "completions/clipped_ratio": 0.25},
         "step 3: reward 1  clipped_ratio 0.25"),
        ({"reward": 1.0, "rewards/a/mean": 0.75, "rewards/b/mean": 0.25, "rewards/b/std": 0.0},
         "step 3: reward 1  rewards/a 0.75  rewards/b 0.25"),
    ],
)  # fmt: skip
def test_a_log_is_a_line(logs, line):
    assert write_log_line(logs, 3) == line


@pytest.mark.parametrize(
    "event, line",
    [
        ({"event": "reset", "ref_reset_mix": 0.25, "optimizer_reset": "soft", "reason": "kl_spike+stall"},
         "step 8: reset, the reference moves by 0.25, optimizer soft (kl_spike+stall)"),
        ({"event": "reset", "ref_reset_mix": 0.0, "optimizer_reset": "hard", "reason": "periodic", "kl_before": 0.5},
         "step 8: reset, the reference stays, optimizer hard, kl_ref was 0.5 (periodic)"),
        ({"event": "elastic_reset", "reason": "periodic"}, "step 8: elastic reset (periodic)"),
        ({"event": "growth", "rank_before": 4, "rank": 8}, "step 8: growth, rank 4 becomes 8"),
    ],
)  # fmt: skip
def test_an_event_is_a_line(event, line):
    assert write_event_line({"step_applied": 8, **event}) == line


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
    status, text = forks.run(ROOT / "recipes" / "grpo_variantA.py", *options.split())
    assert status == 0, text[-3000:]
    (file,) = out.rglob("events.out.tfevents.*")
    events = reader.EventAccumulator(str(file.parent))
    events.Reload()
    scalars = {tag: {point.step: point.value for point in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    return scalars, {row["step"]: row for row in read_rows(out)}


@pytest.mark.parametrize("name", ["kl_ref", "kl_old", "kl_base", "kl_penalty", "beta", "ref_forward_calls"])
def test_the_tracker_has_the_values_of_the_record(written, name):
    scalars, rows = written
    assert scalars[f"train/prorl/{name}"] == pytest.approx({k: row[name] for k, row in rows.items() if name in row})


def test_what_trl_logs_is_there_with_resets_and_evaluations(written):
    scalars, rows = written
    generated = [step for step, row in rows.items() if row["tokens_generated"]]
    assert scalars["train/reward"] == pytest.approx({step: rows[step]["reward"] for step in generated})
    assert scalars["train/prorl/resets"] == {3: 1.0, 5: 1.0}  # after the steps 2 and 4
    assert set(scalars["eval/pass@1"]) == {3, 6}


def test_every_name_of_the_page_is_written(written):
    page = (ROOT / "docs" / "trackers.md").read_text()
    named = {name.replace("NAME", "reverse_digits") for name in re.findall(r"`((?:train|eval)/[\w/@]+)`", page)}
    assert len(named) > 20
    assert named - set(written[0]) == set()


def test_a_shipped_recipe_leaves_the_tracker_to_the_user():
    asking = [recipe for recipe in ROOT.glob("recipes/**/*.yaml") if "report_to" in recipe.read_text()]
    assert asking == []
