"""A checkout of its own for every test of the study, with a small matrix and a base recipe for its family."""

import subprocess
from pathlib import Path

import pytest
import yaml

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
