"""
What README and docs/own-script.md say, done: their blocks one after the other, as they stand. Model and data come from
the Hub's cache.
"""

import json
import re
import shlex
import subprocess

import pandas as pd
import pytest
from doc_pages import ROOT, blocks, commands, named_file
from hub_cache import COMMIT


README = (ROOT / "README.md").read_text()
OWN_SCRIPT = (ROOT / "docs" / "own-script.md").read_text()
PUBLISHING = (ROOT / "docs" / "publishing.md").read_text()
# What a machine without a GPU, and a test, cannot do as the recipe says.
SMALL = "--bf16 false --use_cpu true --dtype float32 --gradient_checkpointing false --max_steps 2 --train_rows 2"
SMALL += " --per_device_train_batch_size 8 --gradient_accumulation_steps 1 --max_completion_length 4"
SMALL += " --disable_tqdm true"
TINY = "--max_steps 2 --disable_tqdm true"
FEW = "--prompts 2 --n 1 --no-greedy --max-new-tokens 4"


@pytest.fixture
def run(forks, tmp_path):
    """A function that runs `trl-prorl` or a script, in a folder of its own: the status, and what was written."""

    def run(command, expected=0, **env):
        program, *rest = shlex.split(command)
        words = ("-m", "trl_prorl") if program == "trl-prorl" else (tmp_path / program,)
        status, written = forks.run(*words, *rest, cwd=tmp_path, env=env)
        assert status == expected and "Traceback" not in written, written[-3000:]
        return written

    return run


def functions_of_script():
    """What own.py defines before its trainer."""
    names = {}
    exec(named_file(OWN_SCRIPT, "own.py").partition("\nif __name__")[0], names)
    return names


def test_a_script_of_ones_own_and_the_use_of_its_result(run, tmp_path):
    script = named_file(OWN_SCRIPT, "own.py")
    smaller = {"range(128)": "range(4)", "max_steps=1000": "max_steps=2"}  # the stand-in has few rows
    smaller |= {"train_batch_size=16": "train_batch_size=8", "accumulation_steps=8": "accumulation_steps=1"}
    for told, small in smaller.items():
        assert told in script
        script = script.replace(told, small)
    (tmp_path / "own.py").write_text(script)
    run("own.py")
    made = tmp_path / "runs" / "my-run"
    measured = json.loads((made / "passk.json").read_text())
    assert (measured["prompts"], measured["n"]) == (4, 16)
    # Of random text, which ends with the right number now and then; the question has the two numbers to add.
    verify = functions_of_script()["verify"]
    verdicts = []
    for sample in pd.read_parquet(made / "samples" / "base-script.parquet").itertuples():
        total = sum(map(int, re.findall(r"\d+", sample.prompt)))
        verdicts.append(verify(sample.completion, {"answer": f"#### {total}"}))
    assert len(verdicts) == 4 * 16
    assert measured["base"]["pass@1"] == sum(verdicts) / len(verdicts)
    train, report, *later = commands(OWN_SCRIPT)
    assert train == "python own.py"
    run(report)
    assert (tmp_path / "runs" / "report.html").is_file()
    for command in later:  # by the file's two functions
        run(command)
    measured = json.loads((made / "passk.json").read_text())
    assert (measured["task"], measured["prompts"]) == ("own", 4)
    assert (made / "drift.json").is_file()
    (usage,) = [block.text for block in blocks(PUBLISHING) if block.language == "python"]
    (tmp_path / "usage.py").write_text(usage)
    run("usage.py")
    # Longer: its schedule is constant, so a larger max_steps and a resume are all that it takes.
    longer = script.replace("max_steps=2", "max_steps=4").replace(".train()", ".train(resume_from_checkpoint=True)")
    (tmp_path / "own.py").write_text(longer)
    run("own.py")
    steps = [json.loads(line)["step"] for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "completion, answer, right",
    [
        ("So **1,042**", "42", False),
        ("\\boxed{42}", "42", True),
        ("6 * 7 = 42\n#### 42", "42", True),
        ("42, no: 41", "42", False),
        ("-42", "42", False),
        ("So \\boxed{9{,}500}", "9,500", True),
        ("it is \u22125", "-5", True),
        ("it is \u22125", "5", False),
        ("it is .5", "5", False),
        ("it is 1e3", "1,000", True),
        ("it is 2/4", "4", False),
    ],
)
def test_what_the_script_calls_right(completion, answer, right):
    names = functions_of_script()
    assert names["verify"](completion, {"answer": f"6 * 7 = 42\n#### {answer}"}) is right
    assert names["reward"]([[{"content": completion}]], [f"#### {answer}"]) == [float(right)]


# A recipe of the Hub's Qwen needs other settings than the tiny recipe, whose model comes with the package.
RECIPES = {"tiny/plain": TINY, "gsm8k/plain": SMALL}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_start_with_ones_own_rows(recipe, run, tmp_path):
    """As it stands but for the number of steps, and with the recipe that the page names for a GPU."""
    assert recipe in README
    rows = next(block.text for block in blocks(README) if block.text.startswith("cat > rows.jsonl"))
    subprocess.run(["bash", "-e", "-c", rows], cwd=tmp_path, check=True)
    (tmp_path / "rewards.py").write_text(named_file(README, "rewards.py"))
    told = [line.replace("tiny/plain", recipe) for line in commands(README) if line.startswith("trl-prorl ")]
    preflight, train, passk, report = told
    of_qwen = recipe.startswith("gsm8k")
    run(f"{preflight} --prompts 2 {RECIPES[recipe]}", expected=1 if of_qwen else 0)
    run(f"{train} {RECIPES[recipe]}")
    run(f"{passk} {FEW}")
    run(report)
    made = tmp_path / "runs" / "mine"
    assert json.loads((made / "passk.json").read_text())["base"]["pass@1"] is not None
    assert (tmp_path / "runs" / "report.html").is_file() or (made / "report.html").is_file()
    if of_qwen:
        assert json.loads((made / "env.json").read_text())["base_model"]["commit"] == COMMIT
