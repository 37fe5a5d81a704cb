"""A user's rows, reward functions and verifier, as the command line names them."""

import json
import random
import re

import pytest
from run_record import error_lines, write_run

from trl_prorl.errors import InputError
from trl_prorl.tasks import plugin
from trl_prorl.tasks.own import FileRows, check_reward, check_verifier
from trl_prorl.tasks.plugin import find_function


@pytest.fixture
def write_rows(tmp_path):
    """A function that writes rows of these prompts, in this order, and returns the file."""

    def write(prompts):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps({"prompt": prompt, "answer": "a"}) + "\n" for prompt in prompts))
        return str(path)

    return write


def prompts_by_split(path):
    task = FileRows(path, None)
    return {split: task.rows(split, None)["prompt"][:] for split in ("train", "validation", "test")}


@pytest.mark.parametrize(("count", "held_out"), [(3, 1), (45, 15), (60, 20), (150, 20), (500, 50)])
def test_a_tenth_is_held_out_but_at_least_20_and_at_most_a_third(write_rows, count, held_out):
    parts = prompts_by_split(write_rows([f"question {number}" for number in range(count)]))
    assert [len(parts[split]) for split in parts] == [count - 2 * held_out, held_out, held_out]
    assert len(set().union(*parts.values())) == count


def test_the_content_decides_the_split_whatever_the_order(write_rows):
    prompts = [f"question {number}" for number in range(100)]
    before = prompts_by_split(write_rows(prompts))
    random.Random(0).shuffle(prompts)
    assert prompts_by_split(write_rows(prompts)) == before


def test_the_same_question_is_never_on_both_sides(write_rows):
    """Spelt in capitals, and with another system prompt."""
    plain = [[{"role": "user", "content": f"question {number}"}] for number in range(40)]
    again = [[{"role": "user", "content": f"QUESTION  {number}"}] for number in range(40)]
    system = [[{"role": "system", "content": "Be short."}, *prompt] for prompt in plain]
    parts = prompts_by_split(write_rows(plain + again + system))
    split_of = {}
    for split, prompts in parts.items():
        for prompt in prompts:
            split_of.setdefault(prompt[-1]["content"].split()[1], []).append(split)
    assert len(split_of) == 40
    assert all(len(splits) == 3 and len(set(splits)) == 1 for splits in split_of.values())


def test_a_column_of_a_later_row_alone_is_there(tmp_path):
    lines = [{"prompt": f"question {number}"} for number in range(30)]
    lines[-1]["late"] = 1
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert FileRows(str(tmp_path / "rows.jsonl"), None).rows("train", 1).column_names == ["late", "prompt"]


FUNCTIONS = """
from json import loads


def score(completions, answer, **columns):
    return [float(text == right) for text, right in zip(completions, answer)]


def misspelt(completions, answr, **columns):
    return [1.0] * len(completions)


def narrow(completions, answer):
    return [1.0] * len(completions)


def correct(completion, row):
    return completion == row["answr"]
"""
WRONG = {
    "own.py:scor": "has no function 'scor' (did you mean 'score'?). Its functions: correct, misspelt, narrow, score",
    "own.py:misspelt": "wants 'answr', which is no column of the rows. Columns: answer, prompt;",
    "own.py:narrow": "narrow(completions, answer) does not accept all that TRL passes; write narrow(completions, *",
    "other.py:score": "runs only if the command line names it: add --plugin other.py",
    "own.py": "write FILE.py:FUNCTION or PACKAGE.MODULE.FUNCTION",
}


@pytest.mark.parametrize("reference", WRONG)
def test_a_wrong_reward_is_one_line_with_its_cure(load, write_rows, reference):
    load(FUNCTIONS)
    rows = FileRows(write_rows("abc"), None).rows("train", 1)
    check_reward(find_function("own.py:score", "reward"), "own.py:score", rows)
    with pytest.raises(InputError, match=re.escape(WRONG[reference])) as refused:
        check_reward(find_function(reference, "reward"), reference, rows)
    assert "\n" not in str(refused.value)


def test_a_dotted_path_as_trl_takes_it(load, write_rows):
    name = "trl.rewards.think_format_reward"
    plugin.without_plugins(["--reward", name])
    function = find_function(name, "reward")
    check_reward(function, name, FileRows(write_rows("abc"), None).rows("train", 1))
    assert function([[{"content": "<think>x</think>y"}], [{"content": "y"}]]) == [1.0, 0.0]


def test_a_wrong_verifier_is_one_line_with_its_cure(load):
    load(FUNCTIONS)
    row = {"prompt": "x", "answer": "a"}
    with pytest.raises(InputError, match=r"KeyError: 'answr'. The row has the columns: answer, prompt"):
        check_verifier(find_function("own.py:correct", "verify"), row, "own.py:correct")
    with pytest.raises(InputError, match=r"write it as own.py:narrow\(completion, row\)"):
        check_verifier(find_function("own.py:narrow", "verify"), row, "own.py:narrow")


STRANGER = "from pathlib import Path\nPath('ran').touch()\ndef score(completions, **columns):\n    return [0.0]\n"
KEYS = {"model_name_or_path": "embedded", "use_cpu": True, "bf16": False, "dataset_name": "rows.jsonl"}


@pytest.mark.parametrize("reference", ["evil.py:score", "evil.score"])
@pytest.mark.parametrize(
    "line",
    ["train run/config.yaml", "preflight run/config.yaml", "passk --run run", "drift --run run", "report --runs run"],
)
def test_a_stranger_s_folder_runs_no_code_of_its_own(forks, write_rows, tmp_path, reference, line):
    write_rows([f"question {number}" for number in range(9)])
    (tmp_path / "evil.py").write_text(STRANGER)
    config = KEYS | {"task": "own", "reward": [reference], "verify": reference, "output_dir": "new"}
    write_run(tmp_path / "run", config, metrics=[{"step": 1, "attempt": 1, "reward": 0.0}])
    status, written = forks.run("-m", "trl_prorl", *line.split(), cwd=tmp_path)
    assert not (tmp_path / "ran").exists()
    if not line.startswith("report"):
        (error,) = error_lines(written)
        assert status == 2 and "add --plugin evil" in error
