"""
Which seam of TRL moved: the contract, parity and TRL's own suite, run with the installed TRL, as one page.

    python tests/upstream/seams.py /path/to/trl --page page.md     # exit status 1 if anything moved
    python tests/upstream/seams.py --versions     # what CI installs, as JSON: ["trl==1.15.*", "trl==1.16.*", "trl"]
"""

import argparse
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path


HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = {"Contract": ROOT / "tests" / "test_upstream_contract.py", "Parity": ROOT / "tests" / "test_equivalence.py"}


def versions() -> list[str]:
    """The lower bound of `setup.cfg`, the newest version in `upstream.py` that was tested, the newest there is."""
    lowest = re.search(r"^ *trl>=(\d+\.\d+),", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    tested = re.search(r'"trl": "(\d+\.\d+)', (ROOT / "trl_prorl" / "upstream.py").read_text())
    return [f"trl=={lowest[1]}.*", f"trl=={tested[1]}.*", "trl"]


def tested(file: Path) -> tuple[str, list[str]]:
    """The last line of pytest for a file of tests, and its line for each test that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--tb=no", str(file)]
    # In lines as long as they are.
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, "COLUMNS": "400"}, capture_output=True, text=True)
    lines = [f"- {line}" for line in ran.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if ran.returncode and not lines:  # not one test began
        lines = [f"- pytest ended with status {ran.returncode}: {(ran.stderr or ran.stdout).strip()[-1500:]}"]
    return (ran.stdout.strip().splitlines() or ["no output"])[-1], lines


def upstream_suite(checkout: str) -> tuple[str, list[str]]:
    ran = subprocess.run([sys.executable, str(HERE / "run_trl_suite.py"), checkout], capture_output=True, text=True)
    text = (ran.stdout or ran.stderr).strip()[-20_000:]
    return f"exit status {ran.returncode}", [f"```\n{text}\n```"] if ran.returncode else []


def page(results: dict[str, tuple[str, list[str]]]) -> str:
    """A page in Markdown: what ran, and below it each seam that moved."""
    parts = [f"TRL {version('trl')}.", "", "| tests | result |", "|---|---|"]
    parts += [f"| {name} | {last} |" for name, (last, _) in results.items()]
    for name, (_, lines) in results.items():
        parts += ["", f"## {name}", "", *lines] if lines else []
    return "\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n")[0])
    parser.add_argument("trl", nargs="?", help="checkout of TRL, of the version that is installed")
    parser.add_argument("--page", type=Path, help="also write the page here")
    parser.add_argument("--versions", action="store_true", help="print what CI installs, and no more")
    args = parser.parse_args()
    if args.versions:
        print(json.dumps(versions()))
        return 0
    results = {name: tested(file) for name, file in TESTS.items()}
    if args.trl:
        results["TRL's own suite, with our classes"] = upstream_suite(args.trl)
    text = page(results)
    print(text)
    if args.page:
        args.page.write_text(text)
    return 1 if any(lines for _, lines in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
