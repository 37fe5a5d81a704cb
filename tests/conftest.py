"""The environment of all tests; their fixtures are in shared_fixtures.py."""

import os
import sys
from pathlib import Path

import pytest


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ["OMP_NUM_THREADS"] = "1"  # here and in every process of a test: there is one worker for each core
# The processes of a test do not depend on what the shell exports. pytest-xdist adds the working directory to
# PYTHONPATH, which would help them to find our packages.
for name in [name for name in os.environ if name.startswith("PYTHON")]:
    del os.environ[name]

sys.path.append(str(Path(__file__).parent))  # last: the folders here must not hide packages of their names
pytest.register_assert_rewrite("shared_fixtures")


def pytest_configure(config):
    """Import the fixtures, but for the process that only hands out tests: PyTorch and the others take 10 seconds."""
    is_worker = hasattr(config, "workerinput")
    if is_worker or not getattr(config.option, "numprocesses", None):
        import trl_prorl  # noqa: F401  before PEFT, see trl_prorl/cli/quiet.py

        config.pluginmanager.import_plugin("shared_fixtures")
