"""Rejection-sampling fine-tuning: its demonstrations, the loss that is trained, and a folder that is read like any."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoTokenizer, set_seed

from study.bases import model_of
from study.fine_tuning import (
    demonstrations,
    draw,
    fine_tune,
    load_policy,
    make_trainer,
    metric_rows,
    paid_texts,
    read_recipe,
    settings,
)
from study.matrix import MODEL, read_matrix
from study.runner import SETTINGS
from trl_prorl.errors import RunError
from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.models import load_point
from trl_prorl.tasks.registry import get_task
from trl_prorl.train import find_model
from trl_prorl.weights import load_model


ROOT = Path(__file__).parent.parent.parent
MATRIX = """
evaluation: {prompts: 24, samples: 8, drift_samples: 2}
blocks:
  rivals:
    families: [reverse_digits]
    pairs: [[1, 41]]
    steps: 3
    keys: {train_rows: 6, per_device_train_batch_size: 4, num_generations: 4, task_options: {reward: ends}}
    arms:
      rejection_sampling: {trained_by: study.fine_tuning}
"""


@pytest.fixture
def recipe(study, tmp_path):
    (run,) = read_matrix(study(MATRIX)).runs
    path = tmp_path / "rejection_sampling.yaml"
    own = {MODEL: model_of(ROOT, run.recipe[MODEL]), "output_dir": str(tmp_path / "run")}
    path.write_text(yaml.safe_dump({**run.product_recipe, **SETTINGS, **own}))
    return read_recipe(path)


def test_different_texts_with_full_reward_are_demonstrations():
    task = get_task("reverse_digits", reward="ends")
    rows = [{"prompt": [{"role": "user", "content": "reverse 123"}], "answer": "321"}]
    texts = ["301", "32", "321", "301", "021", "321 "]
    assert paid_texts(task, rows[0], texts) == ["301", "321", "321 "]
    (first, *_, last) = demonstrations(task, rows, [texts])
    assert first == {"prompt": rows[0]["prompt"], "completion": [{"role": "assistant", "content": "301"}]}
    assert last["completion"][0]["content"] == "321 "
    assert demonstrations(task, rows, [["12"]]) == []


def test_graded_rewards_pay_in_full_at_one_alone():
    task = get_task("sorting", reward="inclusion_ordering")
    row = {"answer": "1 1 2"}
    assert paid_texts(task, row, ["1 2 1", "1 2 2", "1 1 2"]) == ["1 2 2", "1 1 2"]


def test_the_tokens_of_the_drawing_stand_at_the_first_update():
    history = [{"step": 1, "loss": 2.0, "grad_norm": 1.0}, {"step": 2, "loss": 1.0, "grad_norm": 0.5}]
    rows = metric_rows([*history, {"step": 2, "train_runtime": 9.0}], 77)
    assert [row["tokens_generated"] for row in rows] == [77, 0]
    assert [row["loss"] for row in rows] == [2.0, 1.0]


def test_too_few_demonstrations_are_one_line(recipe, tmp_path):
    with pytest.raises(RunError, match="the model wrote 3 different texts with full reward, and an update needs 4"):
        make_trainer(recipe, None, None, [{}] * 3, settings(recipe, tmp_path, 0, 1))


def test_the_loss_is_that_of_the_completion_and_its_end(recipe, tmp_path):
    """The first loss, before the adapter has moved, by the base's own log-probabilities."""
    base = find_model(recipe.model.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    asked = {"prompt": [{"role": "user", "content": "reverse 123"}]}
    texts = ["321", "301", "32107", "021"]
    rows = [asked | {"completion": [{"role": "assistant", "content": text}]} for text in texts]
    recipe.training.max_steps = 1
    args = settings(recipe, tmp_path / "sft", 0, 1)
    trainer = make_trainer(recipe, load_policy(base, None), tokenizer, rows, args)
    trainer.train()
    model = load_model(base, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(asked["prompt"], add_generation_prompt=True, return_dict=False)
    losses = []
    for text in texts:
        answer = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        losses += torch.nn.functional.cross_entropy(logits, torch.tensor(answer), reduction="none").tolist()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    config = trainer.model.peft_config["default"]
    assert (config.r, config.lora_alpha) == (recipe.model.lora_r, recipe.model.lora_alpha)
    assert (trainer.args.learning_rate, trainer.args.lr_scheduler_type) == (recipe.training.learning_rate, "constant")


def test_the_folder_is_read_like_any_other(recipe, tmp_path):
    fine_tune(recipe)
    folder = tmp_path / "run"
    run = load_run(folder)
    assert run.metrics["step"].tolist() == [1, 2, 3]
    assert run.measured("reward") is None
    assert run.variant == "fine-tuning"
    assert run.seed == 41
    base = str(ROOT / "study" / "bases" / "reverse_digits-1")
    assert run.env["base_model"]["name"] == base
    assert len(run.env["base_model"]["sha256"]) == 64
    assert run.config["task_options"] == {"reward": "ends"}
    assert "trained_by" not in run.config
    held_out = HeldOut(folder, "test", 2)
    assert (held_out.trained.step, held_out.trained.folder) == (3, folder)
    tuned = load_point(held_out.trained, held_out.config)
    assert any(bool(value.any()) for name, value in tuned.named_parameters() if "lora_B" in name)
    assert not list(tmp_path.glob("*.tmp"))
    # What it drew, once more.
    base = find_model(recipe.model.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(base)
    task = recipe.task.make_task()
    set_seed(41)
    drawn = draw(
        load_policy(base, None), tokenizer, task, list(task.rows("train", 6)), recipe.training.max_completion_length
    )
    assert [len(texts) for texts in drawn.texts] == [16] * 6
    first = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert first["tokens_generated"] == drawn.tokens


def test_a_round_draws_from_the_model_as_it_is_then_and_trains_it_on(recipe, tmp_path):
    recipe.training.learning_rate = 0.005
    fine_tune(recipe, rounds=3)
    folder = tmp_path / "run"
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    drawn = [row["tokens_generated"] for row in rows]
    assert all(drawn)
    assert drawn[2] != drawn[0]  # the base's seed is not set again, and this rate leaves no base
    tuned = load_policy(find_model(recipe.model.model_name_or_path), folder)
    assert all(value.requires_grad == ("lora" in name) for name, value in tuned.named_parameters())
