"""Which torch `make` installs: a real pip in an empty environment, with indices and wheels made here."""

import os
import subprocess
import sys
import venv
import zipfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "cpu_torch.py"


@pytest.fixture
def cpu_torch(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return import_module("cpu_torch")


@pytest.fixture
def last(cpu_torch):
    """The newest minor of torch 2 that setup.cfg admits."""
    return cpu_torch.admitted((ROOT / "setup.cfg").read_text())[1][-1]


def wheel(folder, version):
    """An empty package, called torch."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as file:
        file.writestr("torch/__init__.py", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files = ["torch/__init__.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
        file.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files))


def an_index(folder, *versions):
    """A simple index on this disk; its address."""
    for version in versions:
        wheel(folder / "torch", version)
    links = [f'<a href="{path.name}">{path.name}</a>' for path in folder.glob("torch/*.whl")]
    if links:
        (folder / "torch" / "index.html").write_text("<!DOCTYPE html>" + "".join(links))
    return folder.as_uri()


class Environment:
    """An environment that has a pip, and no network. `tools`: the only commands on its PATH."""

    def __init__(self, home):
        venv.create(home, with_pip=False, symlinks=True)
        self.python = home / "bin" / "python"
        (self.site,) = home.glob("lib/*/site-packages")
        (self.site / "pip").symlink_to(Path(find_spec("pip").origin).parent)
        self.tools = home / "tools"
        self.tools.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": an_index(home / "pypi"), "PIP_NO_CACHE_DIR": "1"}
        self.env = kept | pip | {"PATH": str(self.tools)}

    def ask(self, index, **env):
        """What the script prints, and the torch that is there afterwards."""
        command = [str(self.python), str(SCRIPT), index]
        done = subprocess.run(command, env=self.env | env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found = [path.name.removesuffix(".dist-info") for path in self.site.glob("torch-*.dist-info")]
        return done.stdout, found


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path / "environment")


without_driver = pytest.mark.skipif(
    sys.platform != "linux" or Path("/proc/driver/nvidia").exists(), reason="needs Linux without an NVIDIA driver"
)


@without_driver
def test_a_build_for_cpus_is_taken_though_others_are_newer(environment, tmp_path, last):
    index = an_index(tmp_path / "cpu", f"2.{last + 1}.0+cpu", f"2.{last}.0+cpu", f"2.{last - 1}.3+cpu")
    cuda = an_index(tmp_path / "more", f"2.{last}.1", f"2.{last}.0")
    shown, found = environment.ask(index, PIP_EXTRA_INDEX_URL=cuda)
    assert found == [f"torch-2.{last}.0+cpu"]
    assert f"Installed torch 2.{last}.0+cpu." in shown


@without_driver
def test_if_there_is_none_nothing_is_installed_and_a_line_says_so(environment, tmp_path, last):
    index = an_index(tmp_path / "cpu", f"2.{last + 1}.0+cpu", f"2.{last}.0")
    shown, found = environment.ask(index)
    assert found == []
    assert "None is to be had" in shown


@without_driver
@pytest.mark.parametrize("admitted", [True, False])
def test_a_torch_that_setup_cfg_admits_stays(admitted, environment, tmp_path, last):
    index = an_index(tmp_path / "cpu", f"2.{last}.0+cpu")
    there = f"2.{last - 1}.0" if admitted else "2.4.0"
    wheel(tmp_path / "own", there)
    with zipfile.ZipFile(tmp_path / "own" / f"torch-{there}-py3-none-any.whl") as file:
        file.extractall(environment.site)
    shown, found = environment.ask(index)
    assert found == [f"torch-{there}" if admitted else f"torch-2.{last}.0+cpu"]
    assert bool(shown) != admitted


def test_beside_a_driver_nothing_is_asked(environment, tmp_path, last):
    index = an_index(tmp_path / "cpu", f"2.{last}.0+cpu")
    tool = environment.tools / "nvidia-smi"
    tool.write_text("")
    tool.chmod(0o755)
    assert environment.ask(index) == ("", [])
