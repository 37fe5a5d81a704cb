"""A checkout of its own for every test of the study, with a small matrix and a base recipe for its family."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

import tests.conftest  # noqa: F401  one thread, no Hub, and the folder of `run_record.py`
from study.findings import _environment
from study.tables import CURVES
from study.third import numbers_of_third
from trl_prorl.launch.recipe_yaml import read_recipe


ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "tests" / "docs"))  # for `doc_pages.py` and `study_findings.py`

from study_findings import findings  # noqa: E402, F401


# What a small study does not take from the real one.
OF_THE_STUDY = tuple(f"study/{name}/" for name in ("recipes", "protocols", "tables", "pages", "pictures", "tests"))
MATRIX = """
evaluation: {prompts: 24, samples: 8, drift_samples: 2}
blocks:
  core:
    families: [reverse_digits]
    pairs: [[0, 1]]
    steps: 3
    keys: {per_device_train_batch_size: 16, num_generations: 4, train_rows: 32}
    arms:
      plain: {}
      A: {beta: 1.0, ref_reset_every: 2}
"""


def write_study(root, matrix=MATRIX, families=("reverse_digits",)):
    """Matrix and base recipes below a root."""
    folder = root / "study" / "recipes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "matrix.yaml").write_text(matrix)
    base = read_recipe(ROOT / "recipes" / "tiny" / "base.yaml")
    base["model_name_or_path"] = "study/bases/reverse_digits"
    for family in families:
        (folder / f"{family}.yaml").write_text(yaml.safe_dump(base))


@pytest.fixture
def study(tmp_path):
    """A function that writes matrix and families below `tmp_path`, and returns it."""

    def write(matrix=MATRIX, families=("reverse_digits",)):
        write_study(tmp_path, matrix, families)
        return tmp_path

    return write


def run_git(root, *arguments):
    name = ("-c", "user.name=Study", "-c", "user.email=study@example.org")
    done = subprocess.run(["git", "-C", str(root), *name, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def git():
    """A function: what a git command prints."""
    return run_git


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository with the code as it stands here, committed or not, and the small study."""
    root = tmp_path_factory.mktemp("study") / "checkout"
    files = run_git(ROOT, "ls-files", "-co", "--exclude-standard", "trl_prorl", "tasks", "eval", "study", "recipes")
    for name in files.splitlines():
        if (ROOT / name).is_file() and not name.startswith(OF_THE_STUDY):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
    (root / ".gitignore").write_text("runs/\n__pycache__/\n")
    write_study(root)
    run_git(root.parent, "init", "--quiet", str(root))
    run_git(root, "config", "user.name", "Study")
    run_git(root, "config", "user.email", "study@example.org")
    run_git(root, "add", ".")
    run_git(root, "commit", "--quiet", "-m", "The code")
    return root


def add_run(tables, key, prompts=4, steps=None, correct=None, base_hash="ab", curve=None, file=CURVES, **row):
    """
    A run, whose reward rises by 0.1 at each step, and its base if it is not there. `row` are columns of `runs.csv`,
    `curve` columns of its curve, in `file`, each a value or one for each step; `correct` of 8 samples, by prompt.
    """

    def counts(right):
        return [{"prompt": place, "n": 8, "correct": one, "greedy": 1} for place, one in enumerate(right)]

    steps = key.steps if steps is None else steps
    asked = {"base_hash": base_hash, "split": "test", "prompts": prompts, "samples": 8, "commit": "c"}
    run = {"block": "core", "variant": "A", "pass@1": 0.5, "pass@8": 0.9, "greedy": 0.5, "drift": 1 / 3}
    run |= {"drift_tokens": 6.5, "collapsed": 0, "steps_done": steps, "resets": 1, "ref_forward_calls": 7}
    run |= {"tokens_generated": 9, "recipe": "r", "seconds": 12.0, **asked, **row}
    base = {"prompts_hash": "p", "base_pass@1": 0.25, "base_pass@8": 0.5, "base_greedy": 0.5, **asked}
    steps = pd.DataFrame({"step": range(1, steps + 1), "reward": [0.1 * step for step in range(steps)], "event": ""})
    rows = {"run": {"gold": run["pass@1"], **run}, "curve": steps.assign(**curve or {}).to_dict("records")}
    rows |= {"prompts": counts(correct or [4] * prompts), "base": base, "base_prompts": counts([2] * prompts)}
    assert tables.add(key, rows, file)


@pytest.fixture(scope="session")
def add():
    """A function that adds a made-up run to tables, and its base if it is not there: `add(tables, key, seconds=5)`."""
    return add_run


def render(block, tables):
    """What the page of findings says of a block of the third protocol alone."""
    return _environment().get_template("third.md.jinja").render(third=numbers_of_third(block, tables))


@pytest.fixture(scope="session")
def section_of():
    """A function: what the page of findings says of a block of the third protocol alone."""
    return render
