"""`--plugin FILE`, and the command that a run's record keeps."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from trl_prorl.record.provenance import describe_evaluation, plugin_options, spell_command


OWN = """
from roman import roman
from trl_prorl.tasks.generated import GeneratedTask
from trl_prorl.tasks.registry import TASKS


class RomanNumerals(GeneratedTask):
    \"\"\"Roman numerals.\"\"\"

    name = "roman"

    def sample(self, rng):
        number = rng.randint(1, 500 * self.level - 1)
        return f"roman numeral of {number}", roman(number)


TASKS["roman"] = "own:RomanNumerals"
"""


ONE_SPLIT = """
RomanNumerals.rows = lambda self, split, n, seed=0: GeneratedTask.rows(self, "train", n, seed)
"""


@pytest.fixture
def command(forks, tmp_path):
    """A function that runs `trl-prorl` in the folder of the test: exit status, and what it wrote."""
    return lambda line: forks.run("-m", "trl_prorl", *line.split(), cwd=tmp_path, env={"COLUMNS": "200"})


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "roman.py").write_text("def roman(number):\n    return 'I' * number\n")
    return tmp_path


def test_show(own, command):
    status, written = command("tasks show roman --plugin own.py --level 1 -n 2")
    assert status == 0, written
    assert written.count("roman numeral of") == 2
    status, written = command("tasks show roman --plugin nowhere.py")
    assert (status, written) == (2, "error: --plugin nowhere.py: there is no such Python file\n")


def test_train_evaluate_report(own, command):
    train = "train tiny/variantA --plugin own.py --task roman --task_level 1 --train_rows 64 --max_steps 2 "
    train += "--output_dir run --report_to none --hub_token secret --eval_strategy no --max_completion_length 16 "
    train += "--per_device_train_batch_size 8 --num_generations 4"
    for line in (train, "report --runs run"):
        status, written = command(line)
        assert status == 0, written[-2000:]
    page = (own / "report.md").read_text()
    assert "trl-prorl passk --plugin own.py --run run" in page
    status, written = command("passk --run run --prompts 4 --n 2")
    assert status == 2 and "--plugin own.py" in written, written[-2000:]
    status, written = command("passk --plugin own.py --run r*n --prompts 4 --n 2")
    assert status == 0 and (own / "run" / "passk.json").is_file(), written[-2000:]
    env = (own / "run" / "env.json").read_text()
    assert "--plugin own.py" in env
    assert "secret" not in env
    assert "--plugin own.py" in (own / "run" / "README.md").read_text()

    # A task whose splits are one.
    (own / "own.py").write_text(OWN + ONE_SPLIT)
    status, written = command("passk --plugin own.py --run run --prompts 4 --n 2 --replace --no-greedy")
    assert status == 0 and "in the training set" in written, written[-2000:]
    assert json.loads((own / "run" / "passk.json").read_text())["in_training"] == 4


TRAIN = "train tiny/variantA"
BAD = [
    ("nowhere.py", None, "there is no such Python file", TRAIN),
    ("words.txt", "TASKS", "there is no such Python file", TRAIN),
    ("ends.py", "raise SystemExit(0)", "stopped with SystemExit", TRAIN),
    ("wrong.py", "def", "stopped with SyntaxError", TRAIN),
    ("nothing.py", "x = 1", "registers no task", TRAIN),
    ("json.py", "x = 1", "a module called json is loaded already", TRAIN),
]
COMMANDS = (TRAIN, "preflight tiny/variantA", "passk --run x", "report --runs x")
# What a registry's value, or a class, is in the place of what it should be; the complaint.
CLASS = """
from datasets import Dataset
from trl_prorl.tasks.base import Task
from trl_prorl.tasks.registry import TASKS


class Own(Task):
    \"\"\"Own.\"\"\"

    name = "own"

    def __init__(self, level=1):
        self.level = level

    def rows(self, split, n, seed=0):
        return {rows}

    def verify(self, completion, row):
        return True

    {more}


TASKS[{name}] = {place}
"""
ROWS = "Dataset.from_list([dict(prompt=[dict(role='user', content=str(k))], answer='a') for k in range(n)])"


def plugin(rows=ROWS, more="pass", name="'own'", place="'own:Own'"):
    return CLASS.format(rows=rows, more=more, name=name, place=place)


WRONG = [
    (
        plugin(place="Own"),
        "is registered as <class 'own.Own'>, which is not of the form 'module:Class'",
    ),
    (plugin(place="'Own'"), "registered as 'Own', which is not of the form"),
    (plugin(place="5"), "registered as 5, which is not of the form"),
    (plugin(place="'nowhere:Own'"), "and there is no module 'nowhere'"),
    (plugin(place="'own:Onw'"), "and 'Onw' is nothing there; name a class"),
    (plugin(place="'own:TASKS'"), "and 'TASKS' is a dict there; name a class"),
    (plugin(place="'trl_prorl.tasks:Task'"), "that class lacks rows, verify; write"),
    (plugin(name="5"), "registers a task as 5; its name must be a text"),
]
BAD += [("own.py", content, said, TRAIN) for content, said in WRONG]
# Told once the task is made: before a model is loaded.
WRONG_TASKS = [
    (plugin(more="rows = [1]"), "Own.rows is a list: write it as a method"),
    (plugin(more="turns = '3'"), "Own.turns='3' must be an integer"),
    (plugin(more="turns = 0"), "Own.turns=0 must be at least 1"),
    (plugin(more="name = None"), "Own.name=None must be a text"),
    (plugin(more="reply = None"), "Own has no method 'reply': derive it from trl_prorl.tasks.Task"),
    (plugin(rows=f"list({ROWS})"), "Own.rows returned a list: return a datasets.Dataset"),
    (plugin(rows=f"{ROWS}.remove_columns('prompt')"), "Own.rows returned a dataset without the column 'prompt'"),
]


@pytest.mark.parametrize("content, said", WRONG_TASKS)
@pytest.mark.parametrize("begin", [TRAIN, "preflight tiny/variantA"])
def test_a_class_that_is_no_task_is_refused_in_one_line(tmp_path, command, content, said, begin):
    (tmp_path / "own.py").write_text(content)
    status, written = command(f"{begin} --plugin own.py --task own --output_dir run --report_to none")
    announced, line = written.splitlines()
    assert status == 2
    assert announced.startswith(("train: ", "preflight: "))
    assert line.startswith("error: ")
    assert said in line
    assert not (tmp_path / "run").exists()


def test_a_reply_that_raises_stops_training_and_preflight(tmp_path, command):
    more = "turns = 2\n\n    def reply(self, turns, row):\n        return row['secret']"
    rows = "__import__('tasks').get_task('reverse_digits').rows(split, n, seed)"  # which the base ends
    (tmp_path / "own.py").write_text(plugin(rows, more))
    keys = "--plugin own.py --task own --output_dir run --report_to none --max_completion_length 32 --train_rows 16 "
    keys += "--per_device_train_batch_size 8 --num_generations 4 --max_steps 1 --eval_strategy no --pack_groups off"
    status, written = command(f"{TRAIN} {keys} --disable_tqdm true")
    (line,) = (line for line in written.splitlines() if line.startswith("error: "))
    assert status == 1 and "Traceback" not in written, written[-2000:]
    assert "reply of task 'own' raised KeyError: 'secret' (" in line
    assert "own.py, line " in line
    status, written = command(f"preflight tiny/variantA --prompts 2 {keys.replace('run', 'other')}")
    assert status == 1 and "Traceback" not in written, written[-2000:]
    assert "cannot learn: first samples and steps: the run stops" in written
    assert "reply of task 'own'" in written


BAD += [("broken.py", "1 / 0", "stopped with ZeroDivisionError", command) for command in COMMANDS]


@pytest.mark.parametrize("file, content, said, begin", BAD)
def test_refused_in_one_line(tmp_path, command, file, content, said, begin):
    if content is not None:
        (tmp_path / file).write_text(content)
    status, written = command(f"{begin} --plugin {file}")
    assert status == 2 and written.count("\n") == 1, written[-2000:]
    assert written.startswith("error: --plugin")
    assert said in written


def test_a_recipe_names_none(own, command):
    (own / "recipe.yaml").write_text(yaml.safe_dump({"plugin": "own.py", "max_steps": 1}))
    status, written = command("train recipe.yaml")
    assert status == 2
    assert "unknown key 'plugin'" in written
    assert written.count("\n") == 1


HOME = str(Path.home())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["/usr/bin/python3.11", "my_script.py", "--lr", "1e-5"], "python3.11 my_script.py --lr 1e-5"),
        ([f"{HOME}/venv/bin/python", f"{HOME}/venv/bin/trl-prorl", "train", "x"], "trl-prorl train x"),
        (["python", f"{HOME}/a/train.py"], "python ~/a/train.py"),
        (["python", "x.py", "--hub_token", "abc", "--seed", "1"], "python x.py --seed 1"),
        (["python", "x.py", "--hub-token=abc", "--seed", "1"], "python x.py --seed 1"),
        (["python", "x.py", "--hub_token", "--seed", "1"], "python x.py --seed 1"),
        (["python", "x.py", "--eos_token", "</s>"], "python x.py --eos_token '</s>'"),
        (["python", "x.py", "--name", "hf_" + "a" * 30], "python x.py --name '[removed]'"),
        (["python", "x.py", '--model_init_kwargs={"token": "abc"}'], "python x.py '--model_init_kwargs={}'"),
        (["python", "x.py", "{token: abc, b: 1}"], """python x.py "{'b': 1}" """),
        (["python", "-c", "token = 'abc'"], "python -c …"),
    ],
)
def test_the_command(words, shown):
    assert shlex.split(spell_command(words)) == shlex.split(shown)


def test_what_evaluates_a_run():
    env = {"command": "trl-prorl train x --plugin own.py --plugin='my task.py' --task roman"}
    assert plugin_options(env) == " --plugin own.py --plugin 'my task.py'"
    recipe = {"model_name_or_path": "m", "task": "roman"}
    assert describe_evaluation(recipe, env, "a b").startswith("`trl-prorl passk --plugin own.py --plugin ")
    assert "--run 'a b'" in describe_evaluation(recipe, env, "a b")
    of_script = describe_evaluation({}, {"command": "python my_script.py"}, "run")
    assert (
        "at the end of the script (`python my_script.py`) or `trl-prorl passk --plugin FILE.py --run run`" in of_script
    )
