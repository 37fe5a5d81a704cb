"""The notebook: its code compiles, imports are there, its outputs are of one run, and (slow) it runs to its end."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys

import nbformat
import pytest
from doc_pages import LINK, ROOT
from run_record import read_rows
from test_links_and_commands import why_wrong

import trl_prorl
from trl_prorl.eval.command_lines import gpu_check
from trl_prorl.launch.shipped_recipes import shipped_recipes
from trl_prorl.train import check_arguments, parse


NOTEBOOK = ROOT / "docs" / "quickstart.ipynb"


def cells(kind):
    return [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == kind]


def test_it_is_valid_and_carries_the_outputs_of_one_run():
    """Of the cells in their order, without what belongs to a machine or to a run that failed."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 8
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [out for cell in code for out in cell.outputs]
    assert not any(out.output_type == "error" or out.get("name") == "stderr" for out in outputs)
    assert not any(cell.metadata for cell in notebook.cells)  # as the time of execution
    pictures = [out.data["image/png"] for out in outputs if "image/png" in out.get("data", {})]
    assert len(pictures) == 1
    assert sum(map(len, pictures)) * 3 / 4 < 200_000
    shown = "".join(str({**out.get("data", {}), "image/png": ""}) + out.get("text", "") for out in outputs)
    assert "reward 1.00, right: False" in shown
    assert "pass@1" in shown
    # Of a machine's folders; those of the runs are relative.
    assert (
        re.findall(r"(?<![\w.-])(?:/[\w.-]+){2,}|\w:\\\\|Warning|\d+%\|", re.sub(r"</?\w+[^>]*>|\\n", " ", shown))
        == []
    )


def test_code_compiles_and_imports_resolve():
    nodes = [node for source in cells("code") for node in ast.walk(ast.parse(source))]
    for alias in [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]:
        importlib.import_module(alias.name)
    named = [(node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert len(named) > 8
    assert [one for one in named if not hasattr(importlib.import_module(one[0]), one[1])] == []


def test_of_ours_it_uses_public_names_alone():
    imported = [node for source in cells("code") for node in ast.walk(ast.parse(source))]
    ours = ("trl_prorl", "eval", "tasks")
    named = []
    for node in imported:
        if isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] in ours for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ours:
            named += [(node.module, alias.name) for alias in node.names]
    assert named.pop() == ("trl_prorl.tasks", "get_task")
    assert {module for module, _ in named} == {"trl_prorl"}
    assert {name for _, name in named} <= {*trl_prorl.__all__}


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
    for arm in ("plain", "control", "A", "B"):
        result = json.loads((runs / arm / "passk.json").read_text())
        assert (result["prompts"], result["n"]) == (3, 8)
        assert [row["step"] for row in read_rows(runs / arm)] == [1, 2]


def test_links_lead_somewhere():
    found = [link for text in cells("markdown") for link in LINK.findall(text)]
    assert found
    assert [link for link in found if not (NOTEBOOK.parent / link.partition("#")[0]).exists()] == []


@pytest.mark.parametrize("below_a_clone", [True, False])
def test_the_first_cell_ends_wherever_jupyter_was_started(tmp_path, below_a_clone):
    start = tmp_path / "some" / "folder"
    start.mkdir(parents=True)
    if below_a_clone:
        (tmp_path / "trl_prorl").mkdir()
    source = f"{cells('code')[0]}\nprint(Path.cwd())"
    # The limit is for a search that never ends.
    ran = subprocess.run([sys.executable, "-c", source], cwd=start, capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == str((tmp_path if below_a_clone else start).resolve()), ran.stderr


def test_it_says_that_b_is_another_objective():
    assert any("B optimises a different\nobjective from A's" in text for text in cells("markdown"))


@pytest.mark.slow
def test_it_runs_from_top_to_bottom():
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert "reward 1.00, right: False" in "".join(out.get("text", "") for out in outputs)
    assert len([out for out in outputs if "image/png" in out.get("data", {})]) == 1
    if output := os.environ.get("QUICKSTART_OUTPUT"):  # to look at it
        nbformat.write(notebook, output)


def test_the_notebook_for_a_t4_names_commands_keys_and_files_that_exist():
    notebook = nbformat.read(ROOT / "docs" / "colab" / "gpu_check.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.get("outputs") for cell in notebook.cells)  # nobody has run it there
    shell = [line.removeprefix("!") for line in "\n".join(code).replace("\\\n", "").split("\n") if line[:1] == "!"]
    ours = [re.sub(r"^timeout --signal INT \d+ ", "", line) for line in shell if "trl-prorl " in line]
    assert [line.split()[1] for line in ours] == ["env", "gpu-check", "train"]
    assert [reason for line in ours if (reason := why_wrong(line, ""))] == []
    assert gpu_check(ours[1].split()[2:]).minutes == 20
    assert " --fp16 true " in ours[2]  # which needs a card
    _, _, recipe, *keys = ours[2].replace("--fp16 true", "--use_cpu true").split()
    _, args, model = parse(check_arguments(shipped_recipes()[recipe], keys))
    assert (args.bf16, model.dtype, args.beta_old > 0) == (False, "float32", True)
    compile(code[-2], "cell", "exec")
