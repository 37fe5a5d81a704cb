"""`--plugin FILE`, and the command that a run's record keeps."""

import shlex
from pathlib import Path

import pytest
import yaml

from trl_prorl.record.provenance import command_of, evaluation_of, plugin_options


OWN = """
from roman import roman
from tasks.generated import GeneratedTask
from tasks.registry import TASKS


class RomanNumerals(GeneratedTask):
    \"\"\"Roman numerals.\"\"\"

    name = "roman"

    def sample(self, rng):
        number = rng.randint(1, 500 * self.level - 1)
        return f"roman numeral of {number}", roman(number)


TASKS["roman"] = "own:RomanNumerals"
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
    assert "--plugin own.py" in env and "secret" not in env
    assert "--plugin own.py" in (own / "run" / "README.md").read_text()


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
BAD += [("broken.py", "1 / 0", "stopped with ZeroDivisionError", command) for command in COMMANDS]


@pytest.mark.parametrize("file, content, said, begin", BAD)
def test_refused_in_one_line(tmp_path, command, file, content, said, begin):
    if content is not None:
        (tmp_path / file).write_text(content)
    status, written = command(f"{begin} --plugin {file}")
    assert status == 2 and written.count("\n") == 1, written[-2000:]
    assert written.startswith("error: --plugin") and said in written


def test_a_recipe_names_none(own, command):
    (own / "recipe.yaml").write_text(yaml.safe_dump({"plugin": "own.py", "max_steps": 1}))
    status, written = command("train recipe.yaml")
    assert status == 2 and "unknown key 'plugin'" in written and written.count("\n") == 1


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
    assert shlex.split(command_of(words)) == shlex.split(shown)


def test_what_evaluates_a_run():
    env = {"command": "trl-prorl train x --plugin own.py --plugin='my task.py' --task roman"}
    assert plugin_options(env) == " --plugin own.py --plugin='my task.py'"
    recipe = {"model_name_or_path": "m", "task": "roman"}
    assert evaluation_of(recipe, env, "a b").startswith("`trl-prorl passk --plugin own.py --plugin=")
    assert "--run 'a b'" in evaluation_of(recipe, env, "a b")
    assert "`python my_script.py`" in evaluation_of({}, {"command": "python my_script.py"}, "run")
