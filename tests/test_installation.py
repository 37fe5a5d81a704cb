"""
The wheel in an environment that sees the dependencies but not the project: every file is there, and a user without a
checkout can do what README says, whatever the folders around are called.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from run_record import error_lines

from trl_prorl.cli.quiet import KERNEL_HINT
from trl_prorl.cli.recipe_yaml import read_recipe
from trl_prorl.cli.shipped_recipes import shipped_recipes
from trl_prorl.embedded.shipped import DEFAULT, weights_sha256


ROOT = Path(__file__).parent.parent
PACKAGES = ("trl_prorl", "tasks", "eval")  # of a checkout
SHIPPED = ["embedded:reverse_digits:0", "embedded:sorting:0"]  # which recipes/tiny name
OF_THE_BUILD = ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
DEPENDENCIES = sorted({str(Path(find_spec(name).origin).parent.parent) for name in ("torch", "trl", "numpy", "yaml")})
SMALL = "--max_steps 3 --train_rows 16 --per_device_train_batch_size 8 --num_generations 4 --disable_tqdm true "
SMALL += "--use_cpu true --logging_steps 1 --ref_reset_every 2"


def done(command, **kwargs):
    result = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel, built from a copy of the sources in which a link is a file, as pip unpacks it from a zip."""
    target = tmp_path_factory.mktemp("dist")
    sources = tmp_path_factory.mktemp("sources")
    for name in (*PACKAGES, "accelerate_configs", "recipes"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, sources / name, symlinks=True, ignore=ignore)
    for name in OF_THE_BUILD:
        shutil.copy(ROOT / name, sources)
    (sources / "trl_prorl" / "eval").unlink()
    (sources / "trl_prorl" / "eval").write_text("../eval")
    build = ["wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target)]
    done([*PIP, *build, str(sources)])
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The environment: the folder of its packages, and its `trl-prorl`."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    # Lines of a .pth are paths and no more: what links an editable install to its checkout is not read there.
    (site / "dependencies.pth").write_text("".join(f"{place}\n" for place in DEPENDENCIES))
    hidden = {**os.environ, "PYTHONPATH": ""}
    assert done([str(python), "-c", "import importlib.util as u; print(u.find_spec('trl'))"], env=hidden) != "None\n"
    done([*PIP, f"--python={python}", "install", "--no-index", "--no-deps", "--no-compile", str(wheel)])
    return site, home / "bin" / "trl-prorl"


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """A folder with packages of the user called `eval` and `tasks`."""
    folder = tmp_path_factory.mktemp("users")
    for name in ("eval", "tasks"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('the folder of the user')\n")
    return folder


@pytest.fixture(scope="module")
def run(installed, users, tmp_path_factory):
    """
    A function that runs a command in the user's folder, on a CPU for which bitsandbytes looks for a kernel. Its hint
    is held back; other lines of libraries on stderr depend on the machine.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TRL_", "PYTHON"))}
    asked = tmp_path_factory.mktemp("bitsandbytes") / "asked"
    env |= {"PYTHONPATH": str(ROOT / "tests" / "avx512bf16"), "ASKED": str(asked), "COLUMNS": "120"}

    def run(program, *arguments, imports_all=False):
        command = [str(installed[1].with_name(program)), *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=users, env=env)
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
        assert KERNEL_HINT not in result.stderr and not error_lines(result.stderr), result.stderr[-2000:]
        assert asked.exists() or not imports_all, "bitsandbytes was not imported: nothing was tried"
        return result.stdout

    return run


def files(folder, name):
    found = (path for path in (folder / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_every_file_is_there(installed):
    there = files(installed[0], "trl_prorl")
    wanted = {}
    for name in PACKAGES:
        within = "" if name == "trl_prorl" else "trl_prorl/"
        wanted |= {f"{within}{path}": content for path, content in files(ROOT, name).items()}
    wanted |= {f"trl_prorl/{path}": content for path, content in files(ROOT, "accelerate_configs").items()}
    there = {path: content for path, content in there.items() if not path.startswith("trl_prorl/recipes/")}
    assert there.keys() == wanted.keys()
    assert there == wanted


def test_the_wheel_has_the_version_of_the_changelog(wheel):
    newest = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert wheel.name.split("-")[1] == newest[1]


def test_the_wheel_holds_one_package_and_the_recipes(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"trl_prorl"}
    there = {name for name in names if name.startswith("trl_prorl/recipes/") and not name.endswith(".py")}
    wanted = (ROOT / "recipes").rglob("*.yaml")
    assert there == {f"trl_prorl/{path.relative_to(ROOT).as_posix()}" for path in wanted}


FOUND = """
import json, trl_prorl
from trl_prorl import embedded_model, eval, task_reward, tasks
from trl_prorl.commands import main
from trl_prorl.embedded.shipped import shipped, weights_sha256
from trl_prorl.cli.recipe_yaml import read_recipe
from trl_prorl.cli.shipped_recipes import shipped_recipes

bases = [[*shipped()], weights_sha256({base!r})]
found = shipped_recipes()
recipes = {{name: read_recipe(file) for name, file in found.items()}}
paths = [trl_prorl.__file__, tasks.__file__, eval.__file__, embedded_model(), *map(str, found.values())]
print(json.dumps([bases, recipes, paths]))
assert not any(main(line.split()) for line in {lines})
"""


@pytest.fixture(scope="module")
def shown(run, users):
    """What one process shows, from the first import of PyTorch on: what it finds, a run, its evaluation, a report."""
    a_run = users / "runs" / "tiny" / "variantA"
    lines = [
        f"train tiny/variantA {SMALL}",
        f"passk --run {a_run} --prompts 4 --n 2 --no-greedy",
        f"report --runs {a_run} --out {users / 'page'}",
    ]
    assert "parity, level" in run("trl-prorl", "tasks", "show", "parity", "-n", "1")
    assert "  tiny/variantA " in run("trl-prorl", "train")
    assert {path.name for path in users.iterdir()} == {"eval", "tasks"}
    assert "--prompts" in run("trl-prorl", "demo", "--help")
    return run("python", "-c", FOUND.format(base=DEFAULT, lines=lines), imports_all=True)


def test_the_packages_are_found_in_another_folder(installed, shown):
    bases, recipes, paths = json.loads(shown.splitlines()[0])
    assert all(Path(path).is_relative_to(installed[0]) for path in paths)
    assert len(paths) > 40
    assert bases == [[*SHIPPED], weights_sha256(DEFAULT)]
    assert recipes == {name: read_recipe(file) for name, file in shipped_recipes().items()}


def test_the_first_steps_of_the_demo_without_a_checkout(shown, users):
    """As README says: look, train by name, evaluate, report."""
    assert "reward " in shown
    assert "pass@1" in shown
    a_run = users / "runs" / "tiny" / "variantA"
    assert len((a_run / "metrics.jsonl").read_text().splitlines()) == 3
    assert json.loads((a_run / "passk.json").read_text())["task"] == "reverse_digits"
    assert "variantA" in (users / "page" / "report.html").read_text()


FEW = """
trl-prorl() {
    case $1 in
    preflight) set -- "$@" --prompts 8 ;;
    train) set -- "$@" --max_steps 2 ;;
    passk) set -- "$@" --prompts 2 --n 1 --k 1 ;;
    esac
    command trl-prorl "$@"
}
"""


@pytest.mark.slow
def test_readmes_example_without_a_checkout(installed, tmp_path):
    """As it stands, but for the number of steps and prompts."""
    example = done([sys.executable, ROOT / "docs" / "readme_script.py"])
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PATH"] = f"{installed[1].parent}:{env['PATH']}"
    done(["bash", "-e", "-c", FEW + example], cwd=tmp_path, env=env)
    assert list(tmp_path.rglob("passk.json"))
    assert list(tmp_path.rglob("report.html"))
