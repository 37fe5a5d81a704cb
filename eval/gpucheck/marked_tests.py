"""Right: the tests marked `gpu`, which a machine without one leaves out."""

import os
import subprocess
import sys
from pathlib import Path

from eval.gpucheck.folder import ROOT
from eval.gpucheck.needs import why_skipped
from eval.gpucheck.process import last_words
from eval.gpucheck.result import Result
from eval.gpucheck.size import Size


LIMIT = 100.0


def marked_tests(size: Size, folder: Path) -> Result:
    """`pytest -m gpu`, from a checkout."""
    result = Result()
    reason = why_skipped(("cuda", "pytest"), size)
    if reason is None and not (ROOT / "tests").is_dir():
        reason = "the tests are in a checkout of the project only"
    if reason is not None:
        result.skipped["the tests marked gpu"] = reason
        return result
    log = folder / "tests.log"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", str(ROOT / "tests")]
    with open(log, "w") as written:
        try:
            done = subprocess.run(
                command, cwd=ROOT, stdout=written, stderr=written, timeout=LIMIT, env={**os.environ}, check=False
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = None
    result.check("the tests marked gpu", status == 0, f"exit code {status}; {last_words(log)}")
    return result
