"""Preflight of set-ups that are broken in a known way, and of the demo's recipe, with the embedded model."""

import io
import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from rich.console import Console
from run_record import error_lines, hash_files, write_run
from tiny_run import SETTINGS
from transformers import AutoTokenizer

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.embedded.shipped import embedded_model
from trl_prorl.eval.preflight import main, preflight, print_findings
from trl_prorl.eval.readiness.data import GOLD_REWARD, GOLD_VERIFIES
from trl_prorl.eval.readiness.finding import Finding, exit_code
from trl_prorl.eval.readiness.first_steps import first_steps
from trl_prorl.eval.readiness.samples_of import sample_rows
from trl_prorl.tasks import get_task
from trl_prorl.train import task_reward


ROOT = Path(__file__).parent.parent.parent.parent
RECIPE = str(ROOT / "recipes" / "tiny" / "variantA.yaml")
TASK = get_task("reverse_digits", level=3)


def make(folder, rows=None, reward=None, model=None, peft_config=None, **keys):
    """A trainer on the embedded model; its first reward function is the task's unless one is given."""
    settings = {"per_device_train_batch_size": 16, "num_iterations": 2, "max_completion_length": 12, "max_steps": 10}
    keys = SETTINGS | settings | {"use_cpu": True, "save_strategy": "no", "learning_rate": 1e-4, "seed": 3} | keys
    return ProRLTrainer(
        model=str(model or embedded_model("embedded")),
        reward_funcs=reward or task_reward(TASK),
        args=ProRLConfig(output_dir=str(folder / "run"), overwrite=True, **keys),
        train_dataset=TASK.rows("train", 24) if rows is None else Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model or embedded_model("embedded")),
        peft_config=peft_config,
    )


@pytest.fixture
def check(tmp_path):
    """A function: the findings of a preflight by their names, and the exit code."""

    def check_trainer(prompts=12, task=TASK, **keys):
        findings = preflight(make(tmp_path, **keys), task, prompts)
        return {finding.what: finding for finding in findings}, exit_code(findings)

    return check_trainer


def test_a_recipe_that_no_run_would_accept_is_one_line(capsys):
    assert main([RECIPE, "--optimizer_reset", "nope"]) == 2
    (line,) = error_lines(capsys.readouterr().err)
    assert "nope" in line


def test_a_verifier_that_rejects_reference_answers(tmp_path, monkeypatch):
    """No model is sampled, because no completion could be judged."""
    trainer = make(tmp_path)
    monkeypatch.setattr(trainer, "_sample", None)
    broken = get_task("reverse_digits", level=3)
    broken.verify = lambda completion, row: False
    findings = preflight(trainer, broken, prompts=4)
    assert exit_code(findings) == 1
    assert findings[0].level == "stop"


def test_a_model_that_does_not_fit_is_a_finding(tmp_path, monkeypatch):
    def full(inputs):
        raise torch.OutOfMemoryError

    trainer = make(tmp_path)
    monkeypatch.setattr(trainer, "_sample", full)
    assert exit_code(preflight(trainer, TASK, prompts=4)) == 1


def test_it_samples_as_a_step_does(tmp_path):
    """With the seed of the step, the same completions and rewards as TRL's own generation batch."""
    trainer = make(tmp_path, num_iterations=1)
    rows = [trainer.train_dataset[place] for place in range(4)]
    torch.manual_seed(5)
    sampled = sample_rows(trainer, rows)
    torch.manual_seed(5)
    batch = trainer._generate_and_score_completions([row for row in rows for _ in range(4)])
    lengths = batch["completion_mask"].sum(1).tolist()
    assert sampled.lengths == lengths
    groups = sampled.total.view(4, 4)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    assert torch.allclose(advantages.flatten(), batch["advantages"], atol=1e-5)
    ends = [ids[n - 1] for ids, n in zip(batch["completion_ids"].tolist(), lengths, strict=True)]
    assert sampled.truncated == [end not in trainer.eos_token_ids for end in ends]


SMALL = ["--per_device_train_batch_size", "32", "--train_rows", "64", "--seed", "2"]


def test_the_demo_s_recipe_can_learn_and_nothing_but_the_file_is_written(tmp_path, monkeypatch, capsys):
    """Its own folder has a run already."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("mine"), metrics=[{"step": 1}])
    own = hash_files(tmp_path)
    words = ["--config", RECIPE, "--prompts", "20", "--json", "found.json", "--output_dir", "mine", *SMALL]
    assert main(words) == 0
    assert hash_files(tmp_path, without=["found.json"]) == own
    written = json.loads(Path("found.json").read_text())
    assert written["exit_code"] == 0
    assert "can learn" in capsys.readouterr().out
    findings = {finding["what"]: finding for finding in written["findings"]}
    assert findings["output_dir"]["level"] == "look"
    assert {finding["level"] for finding in findings.values()} <= {"fine", "look"}
    values = {what: finding["values"] for what, finding in findings.items()}
    assert 0.1 < values["accuracy of the starting model"]["pass_rate"] < 0.45  # 0.25 by 60 runs, in recipes/tiny
    assert values["expected wall time"]["max_steps"] == 240
    assert 1e-5 < values["KL between the policies before and after the first 2 updates"]["kl"] < 0.02


FINDINGS = [
    Finding("accuracy", "0.95", "harder prompts [level]", "look"),
    Finding("longest prompt", "42"),
    Finding("learning rate", "0", "raise learning_rate", "stop"),
    Finding("expected wall time", "about 9 s"),
]


@pytest.mark.parametrize("with_passed", [False, True])
def test_what_needs_a_change_is_printed_first(with_passed):
    console = Console(file=io.StringIO(), width=120)
    print_findings(FINDINGS, with_passed, console)
    printed = console.file.getvalue()
    places = [
        printed.index(text) for text in ("raise learning_rate", "harder prompts [level]", "cannot learn", "about 9 s")
    ]
    assert places == sorted(places)
    assert ("longest prompt: 42" in printed) == with_passed


def test_a_training_set_that_makes_no_step_stops_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--config", RECIPE, "--train_rows", "4"]) == 1


def test_two_steps_are_done_with_the_whole_run_s_schedule(tmp_path):
    rows = first_steps(make(tmp_path, max_steps=10, warmup_steps=5, lr_scheduler_type="linear"), print)
    assert [row["step"] for row in rows] == [1, 2]
    assert [row["lr"] for row in rows] == pytest.approx([0.0, 0.2e-4])


@pytest.mark.parametrize("rate, fault", [(50, "destroy"), (1e30, "NaN")])
def test_first_updates_that_destroy_the_policy(check, rate, fault):
    """With one update a batch no row of the record compares the policy with the one that sampled."""
    peft_config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    findings, code = check(learning_rate=rate, num_iterations=1, peft_config=peft_config, temperature=1.5)
    last = [finding for finding in findings.values() if finding.level == "stop"][-1]
    assert code == 1
    assert fault in last.change


def reward_of(rate):
    """A reward function: `rate` of a completion's text and the reference answer."""

    def reward(completions, answer, **columns):
        assert "completion" not in columns  # as TRL calls it
        texts = [completion[-1]["content"].strip() for completion in completions]
        return [rate(text, right) for text, right in zip(texts, answer, strict=True)]

    return reward


FORM = reward_of(lambda text, right: float(text.isdigit()))


def test_rewards_are_judged_by_their_sum_where_they_do_not_abstain(check):
    """A format reward is the same for correct and wrong answers; rows may have a column `completion`."""
    exact = reward_of(lambda text, right: float(text == right) if right < "5" else None)
    exact.__name__ = "exact"  # each reward has a name of its own
    rows = [{**row, "completion": "gold"} for row in TASK.rows("train", 24)]
    for rewards, number in (([FORM, exact], None), (exact, "1.00, 0.00")):
        paid = check(8, rows=rows, reward=rewards)[0][GOLD_REWARD]
        assert paid.level == "fine"
        assert number in (None, paid.number)


@pytest.mark.parametrize("weights, silent", [([1.0, 1.0, 1.0], "2 of 4"), ([0.0, 1.0, 0.0], "0 of 4")])
def test_rewards_that_are_normalised_before_their_sum_are_compared_so(check, weights, silent):
    """Their sum is constant; in every second group the first is constant, so the others cancel out."""

    def first(completions, **columns):
        return [float(place % 8 > 5) for place in range(len(completions))]

    def second(completions, **columns):
        return [float(place % 4) for place in range(len(completions))]

    def third(completions, **columns):
        return [-one - other for one, other in zip(first(completions), second(completions), strict=True)]

    keys = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": weights}
    finding = check(4, reward=[first, second, third], **keys)[0]["groups that give no gradient"]
    assert finding.number.startswith(silent)


def test_verdicts_are_the_task_s_where_the_rewards_have_no_verifier(check):
    """A reward of 1 for everything is no accuracy of 1; without a task, a full reward means a correct answer."""
    findings, code = check(reward=reward_of(lambda text, right: 1.0))
    assert findings["accuracy of the starting model"].values["pass_rate"] < 0.6
    assert code == 1
    findings, _ = check(task=None, reward=FORM, temperature=1.5)
    assert findings["separate verifier"].number == "none"


@pytest.mark.parametrize("fault", ["raises", "is nan"])
def test_a_reward_that_fails_is_a_finding_among_the_others(check, fault):
    def reward(completions, **columns):
        return [float("nan") if fault == "is nan" else 1 / 0 for _ in completions]

    reward.batch_verifier = task_reward(TASK).batch_verifier
    findings, code = check(4, reward=reward)
    assert findings[GOLD_VERIFIES].number == "4 of 4"
    (*_, last) = findings.values()
    assert last.level == "stop"
    assert "'reward'" in last.change
    assert code == 1


def test_an_evaluation_on_the_training_set_is_found(tmp_path):
    trainer = make(tmp_path)
    trainer.eval_dataset = trainer.train_dataset
    levels = {finding.what: finding.level for finding in preflight(trainer, prompts=4)}
    assert levels["prompts of validation in train"] == "look"
