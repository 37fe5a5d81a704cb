"""`--plugin FILE`, and the command that a run's record keeps."""

import shlex

import pytest

from trl_prorl.errors import InputError
from trl_prorl.run.provenance import describe_evaluation, plugin_options, spell_command


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


@pytest.fixture
def command(forks, tmp_path):
    """A function that runs `trl-prorl` in the folder of the test: exit status, and what it wrote."""
    return lambda line: forks.run("-m", "trl_prorl", *line.split(), cwd=tmp_path, env={"COLUMNS": "200"})


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "roman.py").write_text("def roman(number):\n    return 'I' * number\n")
    return tmp_path


def test_a_run_and_what_is_made_of_it_name_the_plugin(own, command):
    train = "train tiny/variantA --plugin own.py --task roman --task_level 1 --train_rows 64 --max_steps 2 "
    train += "--output_dir run --report_to none --hub_token secret --eval_strategy no --max_completion_length 16 "
    train += "--per_device_train_batch_size 8 --num_generations 4"
    for line in (train, "report --runs run"):
        status, written = command(line)
        assert status == 0, written[-2000:]
    page = (own / "report.html").read_text()
    assert "trl-prorl passk --plugin own.py --run run" in page
    status, written = command("passk --run run --prompts 4 --n 2")
    assert status == 2 and "--plugin FILE.py" in written, written[-2000:]
    env = (own / "run" / "env.json").read_text()
    assert "--plugin own.py" in env
    assert "secret" not in env
    assert "--plugin own.py" in (own / "run" / "README.md").read_text()


# A file, what it has, and what is said of it when it is loaded.
WRONG = [
    ("own.py", "raise SystemExit(0)", "SystemExit"),
    ("own.py", "x = 1", "registers no task"),
    ("json.py", "def reward(): pass", "a module called json"),
]


@pytest.mark.parametrize("file, content, words", WRONG)
def test_what_is_no_plugin_is_refused(load, file, content, words):
    with pytest.raises(InputError, match=words):
        load(content, file)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["/usr/bin/python3.11", "my_script.py", "--lr", "1e-5"], "python3.11 my_script.py --lr 1e-5"),
        (["python", "x.py", "--hub_token", "abc", "--seed", "1"], "python x.py --hub_token '[removed]' --seed 1"),
        (["python", "x.py", "--name", "hf_" + "a" * 30], "python x.py --name '[removed]'"),
        (
            ["python", "x.py", '--model_init_kwargs={"token": "abc"}'],
            """python x.py '--model_init_kwargs={"token": [removed]}'""",
        ),
        (["python", "x.py", "{token: abc, b: 1}"], "python x.py '{token: [removed], b: 1}'"),
        (["python", "-c", "token = 'abc'"], "python -c 'token = [removed]'"),
    ],
)
def test_the_command(words, shown):
    assert shlex.split(spell_command(words)) == shlex.split(shown)


def test_what_evaluates_a_run():
    env = {"command": "trl-prorl train x --plugin own.py --plugin='my task.py' --task roman"}
    assert plugin_options(env) == " --plugin own.py --plugin 'my task.py'"
    recipe = {"model_name_or_path": "m", "task": "roman"}
    assert "passk --plugin own.py --plugin 'my task.py' --run 'a b'" in describe_evaluation(recipe, env, "a b")
