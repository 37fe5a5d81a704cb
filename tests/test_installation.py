"""`pip install .`, not editable: every file of the packages is there, and the command works in another folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trl_prorl.embedded.shipped import DEFAULT, weights_sha256


ROOT = Path(__file__).parent.parent
PACKAGES = ("trl_prorl", "tasks", "eval")
OF_THE_BUILD = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of an installation from a copy of the sources, and of its command, `bin/trl-prorl`."""
    sources, target = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("site")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in OF_THE_BUILD:
        shutil.copy(ROOT / name, sources)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target), str(sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return target


def run(installed, folder, *command):
    env = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "120"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def files(folder, name):
    found = (path for path in (folder / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_file_is_there(installed, name):
    there, wanted = files(installed, name), files(ROOT, name)
    assert there.keys() == wanted.keys() and there == wanted


def test_the_packages_are_found_in_another_folder(installed, tmp_path):
    code = (
        "import trl_prorl, tasks, eval\n"
        "from trl_prorl.embedded.shipped import embedded_model, weights_sha256\n"
        "print(trl_prorl.__file__, tasks.__file__, eval.__file__, embedded_model(), sep='\\n')\n"
        f"print(weights_sha256({DEFAULT!r}))\n"
    )
    *paths, sha256 = run(installed, tmp_path, "-c", code).splitlines()
    assert all(Path(path).is_relative_to(installed) for path in paths) and len(paths) == 4
    assert sha256 == weights_sha256(DEFAULT)


def test_the_command_works_in_another_folder(installed, tmp_path):
    command = str(installed / "bin" / "trl-prorl")
    assert "parity, level" in run(installed, tmp_path, command, "tasks", "show", "parity", "-n", "1")
    assert run(installed, tmp_path, command, "train", "--help").startswith("usage: trl-prorl train")
    assert not list(tmp_path.iterdir())
