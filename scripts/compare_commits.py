"""
Two commits on this machine, side by side: do the first steps of every arm agree, and what does a step cost?

    python scripts/compare_commits.py main HEAD
    python scripts/compare_commits.py v0.1 HEAD --arms variantA --steps 60 --rounds 5

Both run in this environment and on one thread, in turns. A column is "same" if it is so to the bit; else the largest
difference and its step are given. Costs are CPU seconds of a step, the median of the rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Column, Table


SCRIPT = Path(__file__).with_name("trajectory.py").resolve()


def run(tree: Path, arms: list[str] | None, steps: int) -> dict:
    """What `trajectory.py` finds with the code of a tree."""
    out = tree / "trajectory.json"
    command = [sys.executable, str(SCRIPT), "--steps", str(steps), "--out", str(out)]
    if arms:
        command += ["--arms", *arms]
    env = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: the code in {tree.name} did not run to its end:\n{done.stderr[-2000:]}")
    return json.loads(out.read_text())


def difference(then: list[float], now: list[float]) -> str:
    """`same`, or the largest difference and the first step that has one."""
    gaps = [abs(one - other) for one, other in zip(then, now, strict=True)]
    if not any(gaps):
        return "same"
    first = next(step for step, gap in enumerate(gaps, start=1) if gap)
    return f"{max(gaps):.0e} from {first}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("then")
    parser.add_argument("now", nargs="?", default="HEAD")
    parser.add_argument("--arms", nargs="+", help="of trajectory.py (default: all)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found = {args.then: [], args.now: []}
    if len(found) < 2:
        parser.error(f"{args.then} is named twice; name two commits.")
    with TemporaryDirectory() as folder:
        trees = {commit: Path(folder, f"{number}") for number, commit in enumerate(found)}
        for commit, tree in trees.items():
            unpack(commit, tree)
        for _ in range(args.rounds):
            for commit, tree in trees.items():
                found[commit].append(run(tree, args.arms, args.steps))
    columns = ("loss", "grad_norm", "kl_ref", "kl_old", "reward")
    heads = [Column(name, no_wrap=True) for name in ("arm", *columns, "then", "now", "ratio")]
    table = Table(*heads, title=f"{args.then} and {args.now}; CPU seconds a step")
    for arm in found[args.now][0]:
        if arm == "made_with":
            continue
        then = found[args.then][0][arm]
        now = found[args.now][0][arm]
        cells = []
        for name in columns:
            if name in then and name in now:
                cells.append(difference(then[name], now[name]))
            else:
                cells.append("–")
        cost_then = median_cost(found[args.then], arm)
        cost_now = median_cost(found[args.now], arm)
        table.add_row(arm, *cells, f"{cost_then:.3f}", f"{cost_now:.3f}", f"{cost_now / cost_then:.2f}")
    Console().print(table)


def unpack(commit: str, tree: Path) -> None:
    """Write the files of a commit into a new folder."""
    tree.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=SCRIPT.parent.parent, capture_output=True)
    if archive.returncode:
        sys.exit(f"error: {commit} is no commit of this checkout: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)


def median_cost(rounds: list[dict], arm: str) -> float:
    """Return the median CPU seconds of a step over the rounds."""
    return statistics.median(found[arm]["cpu_seconds"][0] for found in rounds)


if __name__ == "__main__":
    main()
