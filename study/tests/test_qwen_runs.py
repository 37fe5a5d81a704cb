"""The Qwen's new runs: how it is asked, the score of a text that is cut, what a stopped drawing keeps, its recipes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from trl import ModelConfig

from study import qwen_runs
from trl_prorl import ProRLConfig
from trl_prorl.launch.recipe import RecipeParser
from trl_prorl.launch.recipe_yaml import read_recipe
from trl_prorl.tasks.registry import get_task
from trl_prorl.train import TaskArguments


ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(tmp_path):
    for name, count in (("train", 30), ("test", 100)):
        lines = []
        for number in range(count):
            answer = f"Two of them are <<2*{number}={2 * number}>>{2 * number}.\n#### {2 * number}"
            lines.append(json.dumps({"question": f"{name} {number}?", "answer": answer}) + "\n")
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def test_three_ways_to_ask_the_same_questions(data):
    asked = {name: qwen_runs.task_and_rows(name, ROOT, data) for name in ("A", "base", "base_default", "base_4shot")}
    assert asked["A"][1] == asked["base"][1]
    names = [names for _, _, names in asked.values()]
    assert all(other == names[0] for other in names)
    (own,) = asked["base"][1][0]["prompt"]
    assert own["content"].endswith("the number alone after ####")
    *turns, question = asked["base_4shot"][1][0]["prompt"]
    assert [question] == asked["base_default"][1][0]["prompt"]
    assert question["content"].partition("?")[0] == own["content"].partition("?")[0]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 4
    assert turns[2]["content"].startswith("train 1?\nReason step by step")
    assert turns[3]["content"] == "Two of them are 2.\n#### 2"


def text_of(ids, correct=True):
    return SimpleNamespace(ids=ids, text=" ".join(map(str, ids)), truncated=False, correct=correct)


class Words:
    """A tokenizer whose tokens are words."""

    def decode(self, ids, skip_special_tokens):
        return " ".join(map(str, ids))


def test_a_text_is_scored_again_where_it_is_cut():
    task = get_task("gsm8k", path="owner/name")
    row = {"answer": "42"}
    early = ["#### 42\n", *["on"] * 300]
    late = [*["on"] * 300, "#### 42"]
    scores = [qwen_runs.record(text_of(ids), Words(), task, row) for ids in (["#### 42"], early, late)]
    assert [(one["truncated_200"], one["correct_200"], one["tokens"]) for one in scores] == [
        *((0, 1, 1), (1, 1, 301), (1, 0, 301))
    ]


def test_a_stopped_drawing_goes_on(monkeypatch, tmp_path):
    calls = []

    def sample(model, tokenizer, task, rows, n, sampling, compact):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append((len(rows), n, sampling.temperature, sampling.max_new_tokens))
        return [[text_of([row["answer"]] * 3)] * n for row in rows]

    monkeypatch.setattr(qwen_runs, "sample", sample)
    task = get_task("gsm8k", path="owner/name")
    rows = [{"answer": str(number)} for number in range(40)]
    drawing = (None, False, Words(), task, rows, 2, False, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        qwen_runs.draw(*drawing)
    calls.clear()
    found = qwen_runs.draw(*drawing)
    assert calls == [(8, 2, 1.0, 512)]
    assert [json.loads(texts[0]["text"]) for texts in found] == [
        f"{row['answer']} " * 2 + row["answer"] for row in rows
    ]


def test_the_variants_differ_in_their_keys_alone(tmp_path):
    seen = []
    for name, keys in qwen_runs.TRAINED.items():
        path = tmp_path / "run.yaml"
        of_run = {"model_name_or_path": "model", "dataset_name": "owner/name", "output_dir": str(tmp_path / "run")}
        path.write_text(yaml.safe_dump(read_recipe(ROOT / qwen_runs.RECIPE) | qwen_runs.OF_ALL | keys | of_run))
        _, config, model = RecipeParser((TaskArguments, ProRLConfig, ModelConfig)).parse_args_and_config(
            ["--config", str(path)]
        )
        assert (config.seed, config.max_steps, config.bf16, model.dtype) == (2, 20, True, "bfloat16")
        assert config.kl_target is None
        assert config.variant == name.split("_")[0]
        seen.append((config.beta, config.ref_reset_every, config.optimizer_reset))
    assert len(set(seen)) == 5
