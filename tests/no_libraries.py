"""Start Python where the libraries that take seconds to import cannot be imported."""

import subprocess
import sys
from pathlib import Path


ROOT = Path(__file__).parents[1]
# An interpreter in which the libraries that take seconds cannot be imported.
WITHOUT = """
import runpy, sys

def hook(event, args):
    if event == "import" and args[0] in ("torch", "transformers", "trl", "peft", "datasets", "numpy", "pandas"):
        raise ImportError(args[0])

sys.addaudithook(hook)
first, *sys.argv = sys.argv[1:]
if first == "-m":
    sys.path.insert(0, "")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.argv.insert(0, first)
    sys.path.insert(0, first.rpartition("/")[0])
    runpy.run_path(first, run_name="__main__")
"""


def without_libraries(*argv, **kwargs):
    command = [sys.executable, "-c", WITHOUT, *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, **kwargs)
