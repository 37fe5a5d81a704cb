"""
Does `trl-prorl why` name the cause in runs that are broken on purpose (why_runs.yaml), and none in others?

    python scripts/why_runs.py FOLDER               # trains what is missing in FOLDER, and prints the table
    python scripts/why_runs.py FOLDER --logs        # what it says about finished runs, from their tables of rows

Twenty minutes of a processor.
"""

import argparse
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import yaml

from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.eval.run_folder.run import RecordedRun
from trl_prorl.eval.why import find_causes


LIST = Path(__file__).with_suffix(".yaml")


def train(folder: Path, command: str) -> None:
    """Train a recipe into a folder, unless its log files are there."""
    if (folder / "metrics.jsonl").exists():
        return
    words = ["train", *shlex.split(command), "--output_dir", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "trl_prorl", *words], env=environment, capture_output=True, text=True)
    if not (folder / "metrics.jsonl").exists():
        raise SystemExit(f"{command}: {done.stderr[-2000:]}")


def print_table(folder: Path) -> None:
    """Train the runs of the list, and print a line for each: what is broken, and what is named first."""
    content = yaml.safe_load(LIST.read_text())
    print("| run | broken by | named first | step | evidence |\n|---|---|---|---|---|")
    for name, given in content["runs"].items():
        place = folder / name.replace(" ", "-").replace(",", "").replace("/", "-")
        train(place, f"{given['run']} {content['small']}")
        causes = find_causes(load_run(place))
        cells = ["none", "", ""]
        if causes:
            rule, found = causes[0]
            cells = [rule.cause, str(found.step), found.evidence]
        is_right = (causes[0][0].cause if causes else None) == given["cause"]
        mark = "" if is_right else " **(not named)**" if given["cause"] else " **(false alarm)**"
        print(f"| {name} | {given['cause'] or 'nothing'} | {cells[0]}{mark} | {cells[1]} | {cells[2]} |", flush=True)


def print_logs(folder: Path) -> None:
    """Print how many finished runs get which cause first, from a table of rows for each run."""
    named = Counter()
    for path in sorted(folder.glob("*.csv.xz")):
        rows = pd.read_csv(path).rename(columns={"gold": "accuracy"})
        run = RecordedRun(path, path.name.removesuffix(".csv.xz"), {}, {}, rows, None, None)
        causes = find_causes(run)
        named[causes[0][0].cause if causes else "none"] += 1
        if causes:
            print(f"{run.name}: {causes[0][0].cause}, step {causes[0][1].step}: {causes[0][1].evidence}")
    print(dict(named))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--logs", action="store_true", help="the folder has tables of rows of finished runs")
    args = parser.parse_args()
    if args.logs:
        print_logs(args.folder)
    else:
        print_table(args.folder)


if __name__ == "__main__":
    main()
