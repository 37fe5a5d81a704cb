"""
What README and docs/own-script.md say, done: their blocks one after the other, as they stand. Model and data come from
the Hub's cache.
"""

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
import torch
from doc_pages import ROOT, blocks, commands, named_file
from hub_cache import COMMIT


README = (ROOT / "README.md").read_text()
OWN_SCRIPT = (ROOT / "docs" / "own-script.md").read_text()
THREE = README[README.index("## Three commands") : README.index("## Results")]
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
    exec(named_file(OWN_SCRIPT, "own.py").partition("\ntrainer = ")[0], names)
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
    files = {"adapter_config.json", "README.md", "config.yaml", "metrics.jsonl", "env.json", "passk.json"}
    assert files <= {path.name for path in made.iterdir()}
    measured = json.loads((made / "passk.json").read_text())
    assert (measured["prompts"], measured["n"]) == (4, 16)
    # Of random text, which ends with the right number now and then; the question has the two numbers to add.
    is_right = functions_of_script()["is_right"]
    verdicts = []
    for folder in (made / "samples").glob("base-*"):
        if json.loads((folder / "_settings.json").read_text())["temperature"]:
            for sample in pd.read_parquet(folder / "samples.parquet").itertuples():
                total = sum(map(int, re.findall(r"\d+", sample.prompt)))
                verdicts.append(is_right(sample.completion, {"answer": f"#### {total}"}))
    assert len(verdicts) == 4 * 16
    assert measured["base"]["pass@1"] == sum(verdicts) / len(verdicts)
    assert commands(OWN_SCRIPT) == ["trl-prorl report --runs 'runs/*'"]
    run(*commands(OWN_SCRIPT))
    assert (tmp_path / "runs" / "report.html").is_file()
    # The card's own lines, from the same folder.
    (usage,) = [block.text for block in blocks((made / "README.md").read_text()) if block.language == "python"]
    (tmp_path / "usage.py").write_text(usage)
    run("usage.py")
    # pass@k says at once what such a run lacks.
    written = run("trl-prorl passk --run runs/my-run", expected=2)
    (line,) = [line for line in written.splitlines() if line.startswith("error: ")]
    assert "'runs/my-run' is the run of a script" in line
    assert "give --plugin FILE.py, a file with held_out_rows() and verify(completion, row)" in line
    # Longer: its schedule is constant, so a larger max_steps and a resume are all that it takes.
    longer = script.replace("max_steps=2", "max_steps=4").replace(".train()", ".train(resume_from_checkpoint=True)")
    (tmp_path / "own.py").write_text(longer)
    run("own.py")
    steps = [json.loads(line)["step"] for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]
    learning_rates = {json.loads(line)["lr"] for line in (made / "metrics.jsonl").read_text().splitlines()}
    assert len(learning_rates) == 1


@pytest.mark.parametrize(
    "completion, answer, right",
    [
        ("42.", "42", True),
        ("So **1,042**", "42", False),
        ("\\boxed{42}", "42", True),
        ("it is 42.0", "42", True),
        ("6 * 7 = 42\n#### 42", "42", True),
        ("42, no: 41", "42", False),
        ("84-42", "42", False),
        ("-42", "42", False),
        ("", "42", False),
        ("1000", "1,000", True),
        ("So \\boxed{9{,}500}", "9,500", True),
        ("So \\boxed{9{,}500}", "500", False),
        ("it is \u22125", "-5", True),
        ("it is \u22125", "5", False),
        ("it is .5", "5", False),
        ("it is 1e3", "3", False),
        ("it is 1e3", "1,000", True),
        ("it is 2/4", "4", False),
    ],
)
def test_what_the_script_calls_right(completion, answer, right):
    names = functions_of_script()
    assert names["is_right"](completion, {"answer": f"6 * 7 = 42\n#### {answer}"}) is right
    assert names["reward"]([[{"content": completion}]], [f"#### {answer}"]) == [float(right)]


# A recipe of the Hub's Qwen takes what the tiny one, whose model comes with the package, does not need.
RECIPES = {"tiny/gamed/control": TINY, "gsm8k/qwen2.5-0.5b/plain": SMALL}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_three_commands(recipe, run, tmp_path):
    """As they stand, and with the recipe that the page names for a GPU."""
    assert f"`{recipe}`" in THREE or f" {recipe}\n" in THREE
    told = [line.replace("tiny/gamed/control", recipe) for line in commands(THREE) if line.startswith("trl-prorl ")]
    assert len(told) == 3
    preflight, train, passk = told
    of_qwen = recipe.startswith("gsm8k")
    if of_qwen:
        train = train.replace(" --kl_target 0.13", "")  # plain has no KL
    written = run(f"{preflight} --prompts 2 {RECIPES[recipe]}", expected=1 if of_qwen else 0)
    if of_qwen:  # random weights solve nothing
        assert "cannot learn: groups without signal" in " ".join(written.split())
    assert not list(tmp_path.iterdir())
    run(f"{train} {RECIPES[recipe]}")
    run(f"{passk} {FEW}")
    made = tmp_path / "runs" / recipe
    measured = json.loads((made / "passk.json").read_text())
    assert measured["task"] == ("gsm8k" if of_qwen else "sorting")
    folder = Path(recipe).parent
    (report,) = re.findall(r"`(trl-prorl report [^`]+)`", THREE)
    run(report.replace("tiny/gamed", str(folder)))
    assert (tmp_path / "runs" / folder / "report.html").is_file()
    if of_qwen:
        # Which model of the Hub it was: in the record of training, and of every evaluation.
        assert json.loads((made / "env.json").read_text())["base_commit"] == COMMIT
        samples = [json.loads(path.read_text()) for path in (made / "samples").glob("base-*/_settings.json")]
        assert [one["model"] for one in samples] == [{"name": "Qwen/Qwen2.5-0.5B-Instruct", "commit": COMMIT}]


def test_what_the_three_commands_print(run):
    """The names of findings, columns and rows that the page shows are those that are printed."""
    shown = " ".join(" ".join(block.text for block in blocks(THREE)).split())
    written = run(f"trl-prorl preflight tiny/gamed/control {TINY}", COLUMNS="300")  # no cell is broken into lines
    for finding in ("base pass rate (verify)", "the reward can be gamed: mend it, or watch gold"):
        assert finding in shown
        assert finding in " ".join(re.sub("[│┃]", " ", written).split())


def test_both_trainers_of_the_diff_have_a_folder_of_their_own():
    (diff,) = [block.text for block in blocks(README) if block.language == "diff"]
    folders = re.findall(r'output_dir="([^"]+)"', diff)
    assert len(set(folders)) == 2


def test_a_step_takes_a_third_of_the_time():
    """With the same KL: of the rounds of which the picture is drawn."""
    (measured,) = json.loads((ROOT / "study" / "tables" / "step_cost.json").read_text())["results"].values()
    seconds = pd.DataFrame({name: values["whole"] for name, values in measured.items()})
    plain = (seconds["plain packed"] / seconds["TRL β=0"]).median()
    with_reference = (seconds["A packed"] / seconds["TRL β>0"]).median()
    assert f"({plain:.2f} without a KL, {with_reference:.2f} with A's; that model, on a CPU)" in README


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_recipe_is_refused_in_one_line(forks, tmp_path):
    recipe = ROOT / "recipes" / "gsm8k" / "qwen2.5-0.5b" / "variantA.yaml"
    status, written = forks.run(ROOT / "recipes" / "grpo_variantA.py", "--config", str(recipe), cwd=tmp_path)
    (line,) = [line for line in written.splitlines() if line.startswith("error: ")]
    assert status == 2
    assert "Traceback" not in written
    assert line.startswith("error: bf16=True needs a GPU")
    assert "bf16: false" in line
    assert "use_cpu: true" in line
