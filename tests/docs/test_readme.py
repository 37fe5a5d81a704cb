"""What README says, done: its blocks one after the other, as they stand. Model and data come from the Hub's cache."""

import json
import shlex

import pytest
import torch
from doc_pages import ROOT, blocks, commands
from hub_cache import COMMIT


README = (ROOT / "README.md").read_text()
# What a machine without a GPU, and a test, cannot do as the recipe says.
SMALL = "--bf16 false --use_cpu true --dtype float32 --gradient_checkpointing false --max_steps 2 --train_rows 2"
SMALL += " --per_device_train_batch_size 8 --gradient_accumulation_steps 1 --max_completion_length 4"
SMALL += " --disable_tqdm true"
FEW = "--prompts 2 --n 1 --no-greedy --max-new-tokens 4"


@pytest.fixture
def run(forks, tmp_path):
    """A function that runs `trl-prorl` or a script, in a folder of its own: the status, and what was written."""

    def run(command, expected=0):
        program, *rest = shlex.split(command)
        words = ("-m", "trl_prorl") if program == "trl-prorl" else (tmp_path / program,)
        status, written = forks.run(*words, *rest, cwd=tmp_path)
        assert status == expected and "Traceback" not in written, written[-3000:]
        return written

    return run


def test_a_script_of_ones_own_and_the_use_of_its_result(run, tmp_path):
    (script,) = [block.text for block in blocks(README) if block.language == "python"]
    assert "range(128)" in script  # the stand-in has four rows
    (tmp_path / "own.py").write_text(script.replace("range(128)", "range(4)"))
    run("own.py")
    made = tmp_path / "runs" / "my-run"
    files = {"adapter_config.json", "README.md", "config.yaml", "metrics.jsonl", "env.json", "passk.json"}
    assert files <= {path.name for path in made.iterdir()}
    measured = json.loads((made / "passk.json").read_text())
    assert (measured["prompts"], measured["n"]) == (4, 16)
    assert measured["base"]["pass@1"] == 0.0
    run("trl-prorl report --runs runs/*")
    assert (tmp_path / "runs" / "report.html").is_file()
    # The card's own lines, from the same folder.
    (usage,) = [block.text for block in blocks((made / "README.md").read_text()) if block.language == "python"]
    (tmp_path / "usage.py").write_text(usage)
    run("usage.py")
    # pass@k says at once what such a run lacks.
    written = run("trl-prorl passk --run runs/my-run", expected=2)
    (line,) = [line for line in written.splitlines() if line.startswith("error: ")]
    assert "has no model_name_or_path and no task; add" in line
    assert "model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct, task: …" in line


def test_the_commands_for_one_gpu(run, tmp_path):
    section = README[README.index("## A recipe, on one GPU") : README.index("## Evidence")]
    install, check, train, passk, report = commands(section)
    assert install == "pip install -e ."
    written = run(f"{check} --prompts 2 {SMALL}", expected=1)  # random weights solve nothing
    assert "cannot learn: groups without signal" in " ".join(written.split())
    assert not list(tmp_path.iterdir())
    for command, further in ((train, SMALL), (passk, FEW), (report, "")):
        assert command.startswith("trl-prorl ")
        run(f"{command} {further}")
    runs = tmp_path / "runs" / "gsm8k" / "qwen2.5-0.5b"
    assert json.loads((runs / "plain" / "passk.json").read_text())["task"] == "gsm8k"
    # Which model of the Hub it was: in the record of training, and of every evaluation.
    assert json.loads((runs / "plain" / "env.json").read_text())["base_commit"] == COMMIT
    samples = [json.loads(path.read_text()) for path in (runs / "plain" / "samples").glob("base-*/_settings.json")]
    assert [one["model"] for one in samples] == [{"name": "Qwen/Qwen2.5-0.5B-Instruct", "commit": COMMIT}]
    assert (runs / "report.html").is_file()


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
