"""Right: the tests marked `gpu`, which a machine without one leaves out."""

import sys
from pathlib import Path

from trl_prorl.eval.gpucheck.folder import ROOT
from trl_prorl.eval.gpucheck.needs import why_skipped
from trl_prorl.eval.gpucheck.process import last_words, run_command
from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.eval.gpucheck.size import Size


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
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *marked_files()]
    status = run_command(command, log, LIMIT, ROOT)
    failed = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("FAILED ", "ERROR "))]
    found = "; ".join([f"exit code {status}", last_words(log), *failed])
    result.check("the tests marked gpu", status == 0, found)
    return result


def marked_files() -> list[str]:
    """The files with such tests: it takes longer to collect all tests than to run these."""
    return [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
