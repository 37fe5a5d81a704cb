"""What README says, done: its blocks one after the other, as they stand. Model and data come from the Hub's cache."""

import json
import shlex
import subprocess

import pytest
from doc_pages import ROOT, blocks, commands, named_file
from hub_cache import COMMIT


README = (ROOT / "README.md").read_text()
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
