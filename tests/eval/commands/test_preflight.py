"""Preflight of set-ups that are broken in a known way, and of the demo's recipe, with the embedded model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tiny_run import SETTINGS
from transformers import AutoTokenizer

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.embedded.shipped import embedded_model
from trl_prorl.eval.preflight import main, preflight
from trl_prorl.eval.readiness.finding import exit_code
from trl_prorl.eval.readiness.first_steps import first_steps
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
        args=ProRLConfig(output_dir=str(folder / "run"), **keys),
        train_dataset=TASK.rows("train", 24) if rows is None else Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model or embedded_model("embedded")),
        peft_config=peft_config,
    )


def own_reward(function):
    """A reward function of one's own beside the task's verifier."""
    function.verifier = task_reward(TASK).verifier
    return function


@pytest.fixture
def found(tmp_path):
    """A function: what the preflight of a trainer found, by its name, and the exit code."""

    def of(prompts=12, task=TASK, **keys):
        findings = preflight(make(tmp_path, **keys), task, prompts)
        return {finding.what: finding for finding in findings}, exit_code(findings)

    return of


PAID = "reward of gold answers, of other rows'"
SILENT = "groups without signal, expected"
PASS_RATE = "base pass rate (verify)"


def test_no_end_token(tmp_path, found):
    """A tokenizer and a model whose end token is another than the one that was learnt."""
    folder = tmp_path / "model"
    shutil.copytree(embedded_model("embedded"), folder)
    for name in ("config.json", "generation_config.json"):
        prompt_text = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(prompt_text | {"eos_token_id": 200}))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(200)
    tokenizer.save_pretrained(folder)
    findings, code = found(model=folder, max_completion_length=24)
    cut = findings["completions cut off"]
    assert cut.values["cut"] > 0.9
    assert cut.level != "fine"
    assert "end token" in cut.change
    assert code == 1


@pytest.mark.parametrize("paid", ["nothing", "wrong answers"])
def test_a_wrong_reward_is_no_weak_base(found, paid):
    def reward(completions, answer, **columns):
        texts = [completion[-1]["content"].strip() for completion in completions]
        return [float(paid != "nothing" and text != right) for text, right in zip(texts, answer, strict=True)]

    findings, code = found(reward=own_reward(reward))
    assert findings[PAID].level == "look"
    assert not any("base does not solve" in finding.change for finding in findings.values())
    if paid == "nothing":
        assert findings[SILENT].level == "stop"
        assert code == 1
    else:
        assert findings["groups that pay a wrong answer like a right one"].level == "look"
        assert code == 0


def test_a_verifier_that_refuses_its_own_answers(tmp_path, monkeypatch):
    """No model is asked: nothing that it does could be judged."""
    trainer = make(tmp_path)
    monkeypatch.setattr(trainer, "sample_rows", None)
    broken = get_task("reverse_digits", level=3)
    broken.verify = lambda completion, row: False
    findings = preflight(trainer, broken, prompts=4)
    assert exit_code(findings) == 1
    assert findings[0].level == "stop"


def test_own_rewards_without_a_verifier_have_their_way(found):
    def digits(completions, **columns):
        return [float(completion[-1]["content"].strip().isdigit()) for completion in completions]

    findings, _ = found(task=None, reward=digits, temperature=1.5)
    assert "base pass rate (full reward of 1: no verifier)" in findings
    assert findings["verifier beside the reward"].number == "none"


def test_a_generation_batch_that_does_not_fit(tmp_path, monkeypatch):
    """Room for two of four groups; and with the key that is advised nothing is left to change."""
    monkeypatch.setattr("trl_prorl.eval.readiness.memory.process_share", lambda device: (0, room))

    def look(**keys):
        trainer = make(tmp_path, compact_generation="on", **keys)
        found = preflight(trainer, TASK, 12)
        (finding,) = [finding for finding in found if finding.what == "memory of a generation batch"]
        return trainer, finding, exit_code(found)

    room = 10**12
    trainer, fits, _ = look()
    assert fits.level == "fine"
    room = int((fits.values["needed_gib"] / 2 * 1.1) * 2**30 / 0.9)
    room += 2 * sum(param.numel() * 4 for param in trainer.model.parameters()) * 10 // 9  # Adam's, of all weights
    assert look()[1].change == "set compact_max_rows: 8"
    _, finding, code = look(compact_max_rows=8)
    assert (finding.level, code) == ("fine", 0)


def test_a_model_that_does_not_fit_is_a_finding(tmp_path, monkeypatch):
    def full(rows):
        raise torch.OutOfMemoryError

    trainer = make(tmp_path)
    monkeypatch.setattr(trainer, "sample_rows", full)
    findings = preflight(trainer, TASK, prompts=4)
    assert exit_code(findings) == 1


def test_it_samples_as_a_step_does(tmp_path):
    """With the seed of the step, the same completions and rewards as TRL's own generation batch."""
    trainer = make(tmp_path, num_iterations=1)
    rows = [trainer.train_dataset[place] for place in range(4)]
    torch.manual_seed(5)
    sampled = trainer.sample_rows(rows)
    torch.manual_seed(5)
    batch = trainer._generate_and_score_completions([row for row in rows for _ in range(4)])
    lengths = batch["completion_mask"].sum(1).tolist()
    assert sampled.ids == [ids[:n] for ids, n in zip(batch["completion_ids"].tolist(), lengths, strict=True)]
    groups = sampled.total.view(4, 4)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    assert torch.allclose(advantages.flatten(), batch["advantages"], atol=1e-5)
    assert sampled.cut == [ids[-1] not in trainer.eos_token_ids for ids in sampled.ids]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ["--per_device_train_batch_size", "32", "--train_rows", "64", "--seed", "2"]


def test_the_demo_s_recipe_can_learn_and_nothing_but_the_file_is_written(folder, capsys):
    assert main(["--config", RECIPE, "--prompts", "20", "--json", "found.json", *SMALL]) == 0
    assert [path.name for path in folder.iterdir()] == ["found.json"]
    written = json.loads((folder / "found.json").read_text())
    assert written["exit_code"] == 0
    assert "can learn" in capsys.readouterr().out
    values = {finding["what"]: finding["values"] for finding in written["findings"]}
    assert 0.1 < values["base pass rate (verify)"]["pass_rate"] < 0.45  # 0.25 by 60 runs, in recipes/tiny
    assert values["wall time of 240 steps"]["max_steps"] == 240
    assert values["entropy at the first update"]["entropy"] > 0.3
    assert 1e-5 < values["KL to the policy before the first 2 updates"]["kl"] < 0.02
    assert {finding["level"] for finding in written["findings"]} <= {"fine", "look"}


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--config", RECIPE, "--beta", "0"], "beta=0"),
        (["--config", RECIPE, "--train_rows", "4"], "4 prompts"),
        (["--config", RECIPE, "--prompts", "1"], "--prompts 1"),
        (["--config", RECIPE, "--output_dir", "held"], "already holds a run"),
        ([], "--config RECIPE.yaml"),
        # Before a model is loaded.
        (["--config", RECIPE, "--report_to", "wandb"], "report_to='wandb'"),
        (["--config", RECIPE, "--json", "held"], "--json held"),
    ],
)
def test_what_the_run_would_refuse_is_refused(folder, capsys, monkeypatch, argv, said):
    (folder / "held").mkdir()
    (folder / "held" / "metrics.jsonl").write_text('{"step": 1}\n')
    if argv[2:3] in (["--report_to"], ["--json"]):
        monkeypatch.setattr("trl_prorl.eval.preflight.build", None)
    monkeypatch.setattr("trl_prorl.launch.checks.get_available_reporting_integrations", lambda: [])
    try:
        code = main(argv)
    except SystemExit as ended:  # by the recipe alone
        code = ended.code
    assert code == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert list(folder.iterdir()) == [folder / "held"]


def test_two_steps_are_done_with_the_whole_run_s_schedule(tmp_path):
    first = first_steps(make(tmp_path, max_steps=10, warmup_steps=5, lr_scheduler_type="linear"))
    assert [row["step"] for row in first.rows] == [1, 2]
    assert first.max_steps == 10
    assert [row["lr"] for row in first.rows] == pytest.approx([0.0, 0.2e-4])
    assert first.steps_per_generation == 2
    assert first.total_gib is first.held_gib is None  # no GPU


@pytest.mark.parametrize("rate, fault", [(50, "destroy"), (1e30, "NaN")])
def test_first_updates_that_destroy_the_policy(found, rate, fault):
    """With one update a batch no row of the record compares the policy with the one that sampled."""
    peft_config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    findings, code = found(learning_rate=rate, num_iterations=1, peft_config=peft_config, temperature=1.5)
    last = [finding for finding in findings.values() if finding.level == "stop"][-1]
    assert code == 1
    assert fault in last.change


MEMBERS = {name: {"task": "reverse_digits", "level": level, "weight": 1} for name, level in (("easy", 1), ("hard", 4))}
MIXTURE = json.dumps({"tasks": MEMBERS})
REWARDS = "rewards in a step that generates"


@pytest.mark.parametrize(
    "argv, what",
    [
        (["--task", "mixture", "--task_options", MIXTURE, "--task_level", "null"], "base pass rate of hard, level 4"),
        (["--thinking_budget", "9", "--thinking_answer_tokens", "1", "--thinking_text", ":"], REWARDS),
        (["--length_reward", "target", "--length_target", "6", "--dynamic_sampling_rounds", "1"], REWARDS),
    ],
    ids=["mixture", "thinking", "length, dynamic sampling"],
)
def test_what_else_a_recipe_can_ask_for(folder, argv, what):
    if "mixture" in argv:
        recipe = folder / "mixture.yaml"
        recipe.write_text(f"base: {RECIPE.replace('variantA', 'base')}\noutput_dir: out\ntask_level: null\n")
        argv = ["--config", str(recipe), *argv[:4]]
    else:
        argv = ["--config", RECIPE, *argv]
    assert main([*argv, "--prompts", "8", "--json", str(folder / "found.json"), *SMALL]) == 0
    written = json.loads((folder / "found.json").read_text())
    assert what in {finding["what"] for finding in written["findings"]}


def test_rewards_are_judged_by_their_sum(found):
    """A first function for the form alone pays right and wrong answers alike; what the run is paid by tells."""

    def form(completions, **columns):
        return [float(completion[-1]["content"].strip().isdigit()) for completion in completions]

    def right(completions, answer, **columns):
        pairs = zip(completions, answer, strict=True)
        return [float(completion[-1]["content"].strip() == one) for completion, one in pairs]

    paid = found(8, reward=[form, right])[0][PAID]
    assert (paid.number, paid.level) == ("2.00, 1.00", "fine")


def test_a_verdict_is_the_task_s_where_the_rewards_have_no_verifier(found):
    """Rewards of 1 for everything do not make the base perfect."""
    findings, code = found(reward=lambda completions, **columns: [1.0] * len(completions))
    assert findings[PASS_RATE].values["pass_rate"] < 0.6
    assert code == 1
    assert not any("perfect" in finding.change for finding in findings.values())


@pytest.mark.parametrize("fault", ["raises", "is nan"])
def test_a_reward_that_fails_is_a_finding_among_the_others(tmp_path, fault):
    def reward(completions, **columns):
        return [float("nan") if fault == "is nan" else 1 / 0 for _ in completions]

    findings = preflight(make(tmp_path, reward=own_reward(reward)), TASK, prompts=4)
    assert findings[0].number == "4 of 4"
    assert findings[-1].level == "stop"
    assert "'reward'" in findings[-1].change
    assert exit_code(findings) == 1


def test_rows_that_hold_a_completion_and_a_reward_that_abstains(found):
    """TRL hands the column `completion` to no reward function, and leaves out completions without a reward."""

    def reward(completions, answer, **columns):
        assert "completion" not in columns
        assert len(columns["completion_ids"]) == len(completions)
        texts = [completion[-1]["content"].strip() for completion in completions]
        return [float(text == one) if one < "5" else None for text, one in zip(texts, answer, strict=True)]

    rows = [{**row, "completion": "gold"} for row in TASK.rows("train", 24)]
    paid = found(rows=rows, reward=own_reward(reward))[0][PAID]
    assert (paid.number, paid.level) == ("1.00, 0.00", "fine")


def test_an_evaluation_on_the_training_set_is_found(tmp_path):
    trainer = make(tmp_path)
    trainer.eval_dataset = trainer.train_dataset
    (found,) = [one for one in preflight(trainer, prompts=4) if one.what == "prompts of validation in train"]
    assert found.level == "look"


def test_what_is_not_there_to_look_at_is_refused(tmp_path):
    trainer = make(tmp_path)
    trainer.train_dataset = trainer.train_dataset.rename_column("prompt", "question")
    with pytest.raises(ValueError, match="no column 'prompt'"):
        preflight(trainer)
    trainer.train_dataset = trainer.train_dataset.to_iterable_dataset()
    with pytest.raises(ValueError, match="is a stream"):
        preflight(trainer)
