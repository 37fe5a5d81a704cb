"""docs/howto-task.md, followed to the letter in an empty folder."""

import json
import subprocess
import sys

import pytest
from doc_pages import ROOT, named_file


PAGE = (ROOT / "docs" / "howto-task.md").read_text()


@pytest.fixture
def followed(tmp_path):
    for name in ("roman.py", "trivia.py", "my_recipe.yaml"):
        (tmp_path / name).write_text(named_file(PAGE, name))
    return tmp_path


LOOKS = """
import pytest
from trl_prorl.tasks import get_task, task_of_recipe
from trl_prorl.tasks.__main__ import main
from trl_prorl.tasks.plugin import load_plugin
from trl_prorl.tasks.registry import task_class

load_plugin("roman.py")
load_plugin("trivia.py")


@pytest.fixture
def show(capsys):
    def run(*words, code=0):
        assert main(["show", *words]) == code
        return capsys.readouterr()

    return run


@pytest.mark.parametrize("name", ["roman", "trivia"])
def test_the_entry_is_a_task_of_that_name(name):
    assert task_class(name).name == name


@pytest.mark.parametrize(
    "number, numeral",
    [(1, "I"), (4, "IV"), (1994, "MCMXCIV"), (1888, "MDCCCLXXXVIII"), (2421, "MMCDXXI"), (3999, "MMMCMXCIX")],
)
def test_known_numerals(number, numeral):
    from roman import roman

    assert roman(number) == numeral


def test_splits_share_no_question():
    task = get_task("roman", level=2)
    splits = [
        {row[0]["content"] for row in task.rows(split, 60)["prompt"]} for split in ("train", "validation", "test")
    ]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 180


def test_only_the_numeral_is_right():
    task, row = get_task("roman"), {"answer": "XIV"}
    assert task.verify(" XIV\\n", row) and task.reward("XIV", row) == 1.0
    for wrong in ("", "XIIII", "xiv", "XIV or XV", "14"):
        assert not task.verify(wrong, row) and task.reward(wrong, row) == 0.0


def test_show_prints_questions_and_rewards(show):
    assert show("roman", "--level", "2", "-n", "3").out.count("roman numeral of") == 3


def test_the_task_of_a_file(show, tmp_path):
    lines = [f'{{"question": "Capital number {i}?", "answer": "Town{i}"}}\\n' for i in range(40)]
    (tmp_path / "trivia.jsonl").write_text("".join(lines))
    task = task_of_recipe("trivia", path=str(tmp_path / "trivia.jsonl"))
    rows = {split: task.rows(split, None) for split in ("train", "validation", "test")}
    assert sum(map(len, rows.values())) == 40 and all(map(len, rows.values()))
    row = rows["train"][0]
    assert row["prompt"][0]["content"].endswith("Answer in one word.")
    assert task.verify(" " + row["answer"].upper() + ".", row) and not task.verify("Town", row)
    (tmp_path / "bad.jsonl").write_text('{"question": "Who?"}\\n')
    assert "'answer' is missing" in show("trivia", "--path", str(tmp_path / "bad.jsonl"), code=2).err
"""


def test_the_tasks_of_the_page(followed):
    """In a process of their own, because a plugin stays registered."""
    (followed / "test_looks.py").write_text(LOOKS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_looks.py"]
    done = subprocess.run(command, cwd=followed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_recipe_of_the_page_trains_and_is_evaluated(forks, tiny_model, followed):
    small = "--max_steps 2 --per_device_train_batch_size 8 --gradient_accumulation_steps 1 --num_generations 4"
    cpu = f"--model_name_or_path {tiny_model} --use_cpu true --bf16 false --dtype float32 --disable_tqdm true"
    train = f"train my_recipe.yaml --plugin roman.py {small} {cpu}"
    passk = "passk --plugin roman.py --run runs/roman --prompts 4 --n 2"
    for line in (train, passk):
        status, written = forks.run("-m", "trl_prorl", *line.split(), cwd=followed)
        assert status == 0, written[-3000:]
    measured = json.loads((followed / "runs" / "roman" / "passk.json").read_text())
    assert (measured["task"], measured["prompts"]) == ("roman", 4)
