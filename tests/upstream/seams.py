"""
Which seam of TRL moved: the contract, parity and TRL's own suite, run with the installed TRL, as one page.

    python tests/upstream/seams.py /path/to/trl --page page.md     # exit status 1 if anything moved
    python tests/upstream/seams.py --versions     # what CI installs, as JSON: ["trl==1.15.*", "trl==1.16.*", "trl"]
"""

import argparse
import configparser
import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from comparison import read_outcomes


HERE = Path(__file__).resolve().parent
TESTS = {"Contract": "test_upstream_contract.py", "Parity": "test_equivalence.py"}


def versions(setup: str, upstream: str) -> list[str]:
    """The lower bound in the text of `setup.cfg`, the newest tested in that of `upstream.py`, the newest there is."""
    parser = configparser.ConfigParser()
    parser.read_string(setup)
    lowest = re.search(r"^trl>=(\d+\.\d+),", parser["options"]["install_requires"], re.MULTILINE)
    tested = re.search(r'"trl": "(\d+\.\d+)', upstream)
    return [f"trl=={lowest[1]}.*", f"trl=={tested[1]}.*", "trl"]


def moved(report: str) -> list[str]:
    """A line for each test that failed, of pytest's report in XML: its name, and the first line of its error."""
    found = read_outcomes(report).items()
    return [f"- `{test.partition('::')[2]}`: {end.reason[:300]}" for test, end in found if end.outcome == "failed"]


def tested(file: str) -> tuple[str, list[str]]:
    """The last line of pytest for a file of ours, and what moved."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--junitxml={report}", str(HERE.parent / file)]
        ran = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True)
        lines = moved(report.read_text()) if report.exists() else []
    last = (ran.stdout.strip().splitlines() or ["no output"])[-1]
    if ran.returncode and not lines:  # not one test began
        lines = [f"- pytest ended with status {ran.returncode}: {(ran.stderr or ran.stdout).strip()[-1500:]}"]
    return last, lines


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
        texts = [(HERE.parents[1] / file).read_text() for file in ("setup.cfg", "trl_prorl/upstream.py")]
        print(json.dumps(versions(*texts)))
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
