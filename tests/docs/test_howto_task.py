"""docs/howto-task.md, followed to the letter in a copy of the tasks."""

import os
import shutil
import subprocess
import sys

import pytest
from doc_pages import ROOT, named_file


PAGE = (ROOT / "docs" / "howto-task.md").read_text()
TRIVIA = '    "trivia": "tasks.trivia:Trivia",\n'


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A copy of `tasks/` and its tests of the registry, to which the page's files and line were added."""
    folder = tmp_path_factory.mktemp("followed")
    shutil.copytree(ROOT / "tasks", folder / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "trl_prorl").symlink_to(ROOT / "trl_prorl")  # it takes the tasks that lie beside it
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


def python(folder, *arguments):
    env = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "120"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_task_its_line_and_its_test(followed):
    done = python(followed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/tasks")
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout and "failed" not in done.stdout


def test_show_prints_questions_and_rewards(followed):
    done = python(followed, "-m", "tasks", "show", "roman", "--level", "2", "-n", "3")
    assert done.returncode == 0 and done.stdout.count("roman numeral of") == 3, done.stdout + done.stderr


def test_the_task_of_a_file(followed):
    lines = [f'{{"question": "Capital number {i}?", "answer": "Town{i}"}}\n' for i in range(40)]
    (followed / "trivia.jsonl").write_text("".join(lines))
    script = (
        "from tasks import task_of_recipe\n"
        "task = task_of_recipe('trivia', path='trivia.jsonl')\n"
        "rows = {split: task.rows(split, None) for split in ('train', 'validation', 'test')}\n"
        "assert sum(map(len, rows.values())) == 40 and all(map(len, rows.values()))\n"
        "row = rows['train'][0]\n"
        "assert row['prompt'][0]['content'].endswith('Answer in one word.')\n"
        "assert task.verify(' ' + row['answer'].upper() + '.', row) and not task.verify('Town', row)\n"
    )
    done = python(followed, "-c", script)
    assert done.returncode == 0, done.stderr
    (followed / "bad.jsonl").write_text('{"question": "Who?"}\n')
    done = python(followed, "-m", "tasks", "show", "trivia", "--path", "bad.jsonl")
    assert done.returncode == 2 and "'answer' is missing" in done.stderr


def test_a_plugin_trains_and_evaluates(tiny_model, tmp_path):
    """Outside the repository: roman.py and own.py beside one another."""
    (tmp_path / "roman.py").write_text(named_file(PAGE, "tasks/roman.py"))
    (tmp_path / "own.py").write_text(named_file(PAGE, "own.py"))
    small = "--max_steps 2 --per_device_train_batch_size 8 --num_generations 4 --disable_tqdm true --output_dir run"
    of_the_task = f"--task roman --task_level 1 --train_rows 256 --model_name_or_path {tiny_model}"

    def command(line):
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        call = [sys.executable, "-m", "trl_prorl", *line.split()]
        return subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True)

    done = command(f"train tiny/variantA --plugin own.py {of_the_task} {small}")
    assert done.returncode == 0, done.stderr[-3000:]
    done = command("passk --plugin own.py --run run --prompts 4 --n 2")
    assert done.returncode == 0 and "roman, test split, 4 prompts" in " ".join(done.stdout.split()), done.stderr
