"""The notebook: its outputs are of one run, its code runs with few rows of one's own, and (slow) as it stands."""

import json
import os

import nbformat
import pytest
from doc_pages import ROOT
from run_record import read_rows

from trl_prorl.cli.shipped_recipes import shipped_recipes
from trl_prorl.train import parse_recipe


NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"


def cells(kind):
    return [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == kind]


def test_it_is_valid_and_carries_the_outputs_of_one_run():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [out for cell in code for out in cell.outputs]
    assert outputs and not any(out.output_type == "error" or out.get("name") == "stderr" for out in outputs)


OWN = """
from datasets import Dataset

model = embedded_model("embedded:sorting")
longest = 4
questions = [[{"role": "user", "content": f"sort {number} {9 - number}"}] for number in range(10)]
rows = [{"prompt": question, "double": str(2 * number)} for number, question in enumerate(questions)] * 4
train_rows = Dataset.from_list(rows)
test_rows = Dataset.from_list(rows[:3])


def verifier(completion, row):
    return completion.strip() == row["double"]


def reward(completions, double, **columns):
    texts = [completion[-1]["content"] for completion in completions]
    return [len(text) + float(answer in text) for text, answer in zip(texts, double, strict=True)]
"""


def test_something_of_one_s_own_is_put_in_by_one_cell(forks, tmp_path):
    """Few rows, with columns of their own, and a reward without a verifier."""
    code = cells("code")
    (place,) = [number for number, source in enumerate(code) if "get_task(" in source]
    code[place] = OWN
    program = "import matplotlib\nmatplotlib.use('Agg')\n" + "\n".join(code)
    for usual, small in (("max_steps=100", "max_steps=2"), ("train_batch_size=128", "train_batch_size=16")):
        assert usual in program
        program = program.replace(usual, small)
    # `os.chdir` looks for a clone above, which is not there.
    (tmp_path / "cells.py").write_text(program)
    status, written = forks.run("cells.py", cwd=tmp_path)
    assert status == 0, written[-3000:]
    runs = tmp_path / "runs" / "quickstart"
    assert {folder.name for folder in runs.iterdir()} == {"plain", "control", "A", "B", "merged"}
    for variant in ("plain", "control", "A", "B"):
        result = json.loads((runs / variant / "passk.json").read_text())
        assert (result["prompts"], result["n"]) == (3, 8)
        assert [row["step"] for row in read_rows(runs / variant)] == [1, 2]


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(monkeypatch):
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for name, value in {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    if output := os.environ.get("QUICKSTART_OUTPUT"):  # to look at it
        nbformat.write(notebook, output)


@pytest.fixture
def t4():
    return nbformat.read(ROOT / "docs" / "colab" / "gpu_check.ipynb", as_version=4)


def test_the_recipe_of_the_notebook_for_a_t4_is_accepted(t4):
    nbformat.validate(t4)
    settings = next(cell.source for cell in t4.cells if "CARD = " in cell.source)
    names = {}
    lines = [line for line in settings.splitlines() if line.startswith(("STEPS", "SMALL", "CARD", "RECIPE", "TRAIN"))]
    exec("\n".join(lines), {"GPU": True}, names)
    recipe, *keys = names["TRAIN"].replace("--fp16 true", "--use_cpu true").split()  # fp16 needs a card
    _, args, _ = parse_recipe(["--config", str(shipped_recipes()[recipe]), *keys])
    assert not args.bf16 and args.max_steps == 20
