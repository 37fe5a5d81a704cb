"""docs/howto-task.md, followed to the letter in a copy of the tasks."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from doc_pages import ROOT, named_file


PAGE = (ROOT / "docs" / "howto-task.md").read_text()
TRIVIA = '    "trivia": "trl_prorl.tasks.trivia:Trivia",\n'


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A copy of `tasks/` and its tests of the registry, to which the page's files and line were added."""
    folder = tmp_path_factory.mktemp("followed")
    shutil.copytree(ROOT / "tasks", folder / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "trl_prorl").mkdir()
    for path in (ROOT / "trl_prorl").iterdir():
        (folder / "trl_prorl" / path.name).symlink_to("../tasks" if path.name == "tasks" else path)
    (folder / "tests" / "tasks").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "tasks" / "test_registry.py", folder / "tests" / "tasks")
    for name in ("tasks/roman.py", "tasks/trivia.py", "tests/tasks/test_roman.py"):
        (folder / name).write_text(named_file(PAGE, name))
    line = named_file(PAGE, "tasks/registry.py").split("\n", 1)[1]
    registry = folder / "tasks" / "registry.py"
    text = registry.read_text()
    place = text.index("}\n# Prefix")  # the end of TASKS
    registry.write_text(text[:place] + line + TRIVIA + text[place:])
    return folder


LOOKS = """
import pytest
from trl_prorl.tasks import task_of_recipe
from trl_prorl.tasks.__main__ import main


@pytest.fixture
def show(capsys):
    def run(*words, code=0):
        assert main(["show", *words]) == code
        return capsys.readouterr()

    return run


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


def test_the_task_its_line_and_its_test(followed):
    """One process, which imports the copy: the page's own test, those of the registry, and what the page promises."""
    (followed / "tests" / "tasks" / "test_looks.py").write_text(LOOKS)
    env = {**os.environ, "PYTHONPATH": str(followed), "COLUMNS": "120"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/tasks"]
    done = subprocess.run(command, cwd=followed, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


def test_a_plugin_trains_and_evaluates(forks, tiny_model, tmp_path):
    """Outside the repository: roman.py next to own.py."""
    (tmp_path / "roman.py").write_text(named_file(PAGE, "tasks/roman.py"))
    (tmp_path / "own.py").write_text(named_file(PAGE, "own.py"))
    small = "--max_steps 2 --per_device_train_batch_size 8 --num_generations 4 --disable_tqdm true --output_dir run"
    of_the_task = f"--task roman --task_level 1 --train_rows 256 --model_name_or_path {tiny_model}"
    train = f"train tiny/variantA --plugin own.py {of_the_task} {small}"
    for line, shown in ((train, ""), ("passk --plugin own.py --run run --prompts 4 --n 2", "roman, test split, 4")):
        status, written = forks.run("-m", "trl_prorl", *line.split(), cwd=tmp_path)
        assert status == 0 and shown in " ".join(written.split()), written[-3000:]


def test_the_script_trains_and_evaluates(forks, tmp_path):
    """The page's first script, with one step and four held-out prompts."""
    script = named_file(PAGE, "my_script.py").replace("max_steps=100", "max_steps=1").replace("50_128", "50_004")
    (tmp_path / "my_script.py").write_text(script)
    status, written = forks.run("my_script.py", cwd=tmp_path)
    assert status == 0, written[-3000:]
    assert json.loads((tmp_path / "runs" / "mine" / "passk.json").read_text())["prompts"] == 4
