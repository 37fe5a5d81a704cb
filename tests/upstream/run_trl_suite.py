"""TRL's own tests of its GRPO trainer, run with TRL's classes and then with ours: what TRL's pass, ours must pass.

    python tests/upstream/run_trl_suite.py /path/to/trl

The path is that of a checkout of TRL or of its folder `tests`; the environment variable `TRL_TESTS` may hold it. Take
the version that is installed: of another, what neither passes is listed apart. Nothing is downloaded, since models and
data sets are stand-ins, and the checkout stays as it is.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from comparison import Comparison, Outcome, read_outcomes


HERE = Path(__file__).resolve().parent
SUITE = "test_grpo_trainer.py"


def suite_of(path: Path) -> Path:
    """The suite's file, given a checkout of TRL or its folder of tests."""
    for folder in (path, path / "tests"):
        if (folder / SUITE).is_file():
            return (folder / SUITE).resolve()
    raise FileNotFoundError(f"{path} has neither {SUITE} nor tests/{SUITE}: give the path of a checkout of TRL.")


def run_suite(suite: Path, classes: str, work: Path, arguments: list[str]) -> dict[str, Outcome]:
    """The outcomes with `classes`, `"trl"` or `"prorl"`, with stand-ins below `work`, no Hub and no bytecode."""
    report = work / f"{classes}.xml"
    command = [sys.executable, "-m", "pytest", str(suite), "-p", "suite_plugin", "-q", "--tb=short", *arguments]
    # Neither a configuration nor a cache of whatever folder the suite is in.
    command += ["-c", os.devnull, "--rootdir", str(suite.parent), "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", "--basetemp", str(work / f"temporary_{classes}")]
    paths = [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HOME": str(work),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "UPSTREAM_CLASSES": classes,
    }
    for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE"):  # they would take precedence
        environment.pop(name, None)
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # all passed, some failed
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return read_outcomes(report.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trl", nargs="?", help="checkout of TRL or its tests; by default what TRL_TESTS says")
    parser.add_argument("-k", metavar="EXPRESSION", help="run only the tests that match, as in pytest")
    args = parser.parse_args()
    trl = args.trl or os.environ.get("TRL_TESTS")
    if not trl:
        parser.error("which TRL? Give the path of a checkout, or set TRL_TESTS.")
    suite = suite_of(Path(trl))
    chosen = ["-k", args.k] if args.k else []
    with tempfile.TemporaryDirectory() as work:
        comparison = Comparison(*(run_suite(suite, classes, Path(work), chosen) for classes in ("trl", "prorl")))
    print(comparison.text())
    return 0 if comparison.agrees else 1


if __name__ == "__main__":
    sys.exit(main())
