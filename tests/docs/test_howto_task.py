"""docs/howto-task.md, followed to the letter in an empty folder."""

import json
import subprocess
import sys

import pandas as pd
import pytest
from doc_pages import ROOT, blocks, commands, named_file


PAGE = (ROOT / "docs" / "howto-task.md").read_text()
(ROWS,) = [block.text for block in blocks(PAGE) if block.language == "json"]


@pytest.fixture
def followed(tmp_path):
    for name in ("rewards.py", "squares.py"):
        (tmp_path / name).write_text(named_file(PAGE, name))
    (tmp_path / "rows.jsonl").write_text(ROWS)
    return tmp_path


LOOKS = """
import pytest
from trl_prorl.tasks import get_task
from trl_prorl.tasks.__main__ import main
from trl_prorl.tasks.plugin import load_plugin
from trl_prorl.tasks.registry import task_class

load_plugin("squares.py")


@pytest.fixture
def show(capsys):
    def run(*words, code=0):
        assert main(["show", *words]) == code
        return capsys.readouterr()

    return run


def test_the_entry_is_a_task_of_that_name():
    assert task_class("squares").name == "squares"


def test_splits_share_no_question():
    task = get_task("squares", level=2)
    splits = [
        {row[0]["content"] for row in task.rows(split, 60)["prompt"]} for split in ("train", "validation", "test")
    ]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 180


def test_show_prints_questions_and_rewards(show):
    assert show("squares", "--level", "2", "-n", "3").out.count("square of") == 3
"""


def test_the_tasks_of_the_page(followed):
    """In a process of their own, because a plugin stays registered."""
    (followed / "test_looks.py").write_text(LOOKS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_looks.py"]
    done = subprocess.run(command, cwd=followed, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_ones_own_rows_and_reward(forks, followed):
    """The commands as they stand but for the number of steps; then a branch, which trains in processes of its own."""
    preflight, train, passk, report = commands(PAGE)[:4]
    of_run = "--plugin rewards.py --run runs/mine"
    few = "--max_steps 2 --save_strategy steps --save_steps 2 --disable_tqdm true"
    branch = f"trl-prorl branch {of_run} --steps 1 --try learning_rate=1e-4 --n 1 --no-greedy"
    outputs = []
    for line in (preflight, f"{train} {few}", f"{passk} --n 2", f"trl-prorl drift {of_run}", branch, report):
        status, written = forks.run("-m", "trl_prorl", *line.split()[1:], cwd=followed, env={"COLUMNS": "200"})
        assert status == 0, written[-3000:]
        outputs.append(written)
    assert "The run can learn" in outputs[0]
    assert f"next: {passk}\n" in outputs[1]
    names = {}
    exec(named_file(PAGE, "rewards.py"), names)
    answers = {row["prompt"][0]["content"]: row["answer"] for row in map(json.loads, ROWS.splitlines())}
    samples = pd.concat(map(pd.read_parquet, (followed / "runs" / "mine" / "samples").glob("base-*.parquet")))
    assert list(samples["correct"]) == [
        names["correct"](sample.completion, {"answer": answers[sample.prompt]}) for sample in samples.itertuples()
    ]
    measured = json.loads((followed / "runs" / "mine" / "passk.json").read_text())
    assert (measured["task"], measured["prompts"]) == ("own", 1)
    assert "(n/a)" in outputs[2]
