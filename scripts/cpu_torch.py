"""
Install a CPU build of torch in this environment, if this is Linux and there is no NVIDIA driver. `make` calls it.

    .venv/bin/python scripts/cpu_torch.py

PyPI's torch for Linux is a build for CUDA: with its libraries it takes 5 GB. Builds for CPUs, whose versions end in
`+cpu`, take 0.7 GB; PyTorch's own index has them, and so may the places that pip is configured to ask. If none has
one, this installs nothing and says so, and pip takes what it finds.
"""

import argparse
import configparser
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://download.pytorch.org/whl/cpu"
DRIVER = Path("/proc/driver/nvidia")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
# Where an index does not answer, pip by itself tries six times, 15 seconds each.
PATIENCE = ["--timeout", "10", "--retries", "1"]


def has_nvidia_driver() -> bool:
    return DRIVER.exists() or shutil.which("nvidia-smi") is not None


def admitted(setup: str) -> tuple[str, range]:
    """torch's line in the text of `setup.cfg`, and the minors of torch 2 that it admits."""
    parser = configparser.ConfigParser()
    parser.read_string(setup)
    line = re.search(r"^torch>=2\.(\d+),<2\.(\d+)$", parser["options"]["install_requires"], re.MULTILINE)
    first = int(line[1])
    end = int(line[2])
    return line[0], range(first, end)


def is_admitted(number: str, minors: range) -> bool:
    major, minor = number.split(".")[:2]
    return major == "2" and int(minor) in minors


def installed() -> str | None:
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def newest_cpu_build(listing: str, minors: range) -> str | None:
    """Return the first version for CPUs among those that `pip index versions` printed, the newest first."""
    for build in listing.replace(",", " ").split():
        if build.endswith("+cpu") and is_admitted(build, minors):
            return build
    return None


def main() -> int:
    """The exit status of pip, if it was asked to install; else 0."""
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument(
        "index", nargs="?", default=INDEX, help="asked beside those that pip knows (default: %(default)s)"
    )
    index = parser.parse_args().index
    if platform.system() != "Linux" or has_nvidia_driver():
        return 0
    line, minors = admitted((ROOT / "setup.cfg").read_text())
    there = installed()
    if there is not None and is_admitted(there, minors):  # whatever build it is, somebody chose it
        return 0
    print(f"No NVIDIA driver is here: looking for a CPU build of torch, at {index} too.", flush=True)
    where = ["--extra-index-url", index, *PATIENCE]
    listing = subprocess.run([*PIP, "index", "versions", "torch", *where], capture_output=True, text=True).stdout
    build = newest_cpu_build(listing, minors)
    if build is None:
        print("None is to be had. PyPI's torch for CUDA follows, on Linux 5 GB with its libraries.", flush=True)
        return 0
    # What it depends on comes with the project, from where pip is configured to look.
    install = ["install", "--quiet", "--no-compile", "--no-deps", *where, f"torch=={build}"]
    status = subprocess.run([*PIP, *install]).returncode
    if status == 0:
        print(f"Installed torch {build}. For a GPU: {sys.executable} -m pip install --force-reinstall '{line}'")
    return status


if __name__ == "__main__":
    sys.exit(main())
