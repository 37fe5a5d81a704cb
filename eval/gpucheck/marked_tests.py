"""Right: the tests marked `gpu`, with a GPU for their device."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from trl_prorl.eval.gpucheck.parts import Result, Size
from trl_prorl.eval.gpucheck.runner import ROOT


NAME = "the tests marked gpu"


def marked_tests(size: Size, folder: Path) -> Result:
    """`pytest -m gpu`, from a checkout; a check for every test."""
    result = Result()
    if (reason := why_not(size)) is not None:
        result.skipped[NAME] = reason
        return result
    report = (folder / "tests.xml").resolve()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}"]
    status = subprocess.run([*command, *marked_files()], cwd=ROOT, check=False).returncode
    if report.is_file():
        read_report(report, result)
    if not result.checks or (status != 0) != bool(result.failed):
        result.check(NAME, False, f"pytest ended with exit code {status}, and its report has no reason: see tests.log")
    return result


def why_not(size: Size) -> str | None:
    """Why they do not run here, in a few words, or `None`."""
    if not size.on_card:
        return "needs a GPU; `make test` runs most of them on a CPU"
    if not (ROOT / "tests" / "test_on_gpu.py").is_file():
        return "the tests come with a checkout of the project only"
    return None if importlib.util.find_spec("pytest") else "pytest is not installed (pip install -e '.[dev]')"


def marked_files() -> list[str]:
    """The files with such tests: it takes longer to collect all tests than to run these."""
    return [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]


def read_report(report: Path, result: Result) -> None:
    """Every test of pytest's report in JUnit's format as a check, or as skipped."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}: {case.get('name')}"
        wrong = [child for kind in ("failure", "error") for child in case.findall(kind)]
        if (skipped := case.find("skipped")) is not None:
            result.skipped[name] = skipped.get("message", "")
        else:
            said = " ".join(child.get("message", "") for child in wrong)
            result.check(name, not wrong, " ".join(said.split())[:300] or "passed")
