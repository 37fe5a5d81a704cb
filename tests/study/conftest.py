"""A checkout of its own for every test of the study, with a small matrix and a base recipe for its family."""

import subprocess
from pathlib import Path

import pytest
import yaml

from study.tables import BASE_COLUMNS, CURVE_COLUMNS, PROMPT_COLUMNS, RUN_COLUMNS, BaseKey, as_written
from trl_prorl.launch.recipe_check import read_recipe


ROOT = Path(__file__).parent.parent.parent
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
    folder = root / "recipes" / "study"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "matrix.yaml").write_text(matrix)
    base = read_recipe(ROOT / "recipes" / "tiny" / "base.yaml")
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
        if (ROOT / name).is_file() and not name.startswith("recipes/study/"):
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


def add_run(tables, key, prompts=4, steps=None, pass1=0.5, base_hash="ab", correct=None, slope=0.1):
    """A run, whose reward rises by `slope` at each step, and its base if it is not there."""
    base = {
        "family": key.family,
        "base_seed": key.base_seed,
        "base_hash": base_hash,
        "prompts_hash": "p",
        "split": "test",
        "samples": 8,
    }
    figures = {"base_pass@1": 0.25, "base_pass@8": 0.5, "base_greedy": 0.5, "commit": "c", "prompts": prompts}

    def counts(of, right):
        rows = (
            {**of._asdict(), "prompt": place, "n": 8, "correct": one, "greedy": 1} for place, one in enumerate(right)
        )
        return [as_written(row, PROMPT_COLUMNS) for row in rows]

    base_key = BaseKey(key.family, key.base_seed)
    tables.add_base(as_written(base | figures, BASE_COLUMNS), counts(base_key.run, [2] * prompts))
    steps = key.steps if steps is None else steps
    row = {
        **{
            **key._asdict(),
            "block": "core",
            "variant": "A",
            "base_hash": base_hash,
            "pass@1": pass1,
            "pass@8": 0.9,
            "greedy": 0.5,
        },
        **{
            "base_pass@1": 0.0,
            "gold": pass1,
            "proxy": None,
            "drift": 1 / 3,
            "drift_tokens": 6.5,
            "collapsed": 0,
            "steps_done": steps,
            "resets": 1,
        },
        **{
            "ref_forward_calls": 7,
            "tokens_generated": 9,
            "recipe": "r",
            "split": "test",
            "prompts": prompts,
            "samples": 8,
        },
        **{"seconds": 12.0, "commit": "c"},
    }
    curve = [{**key._asdict(), "step": step + 1, "reward": slope * step, "event": ""} for step in range(steps)]
    curve = [as_written(one, CURVE_COLUMNS) for one in curve]
    tables.add_run(as_written(row, RUN_COLUMNS), curve, counts(key, correct or [4] * prompts))


@pytest.fixture
def add():
    """A function that adds a made-up run to tables, and its base if it is not there: `add(tables, key, pass1=0.5)`."""
    return add_run
