"""
A report on run folders: tables, figures and what the numbers say.

    python -m eval.report --runs runs/demo/* --out runs/demo

Writes `report.html`, one page with everything in it, and `report.md` with its pictures beside it. Held-out numbers come
from each run's `passk.json`, which `python -m eval.passk` makes; without it those cells stay open.
"""

import argparse
import glob
import os
import shlex
import sys
from pathlib import Path

from rich.console import Console

from eval.command import command
from eval.document import to_markdown
from eval.html import to_html
from eval.runs import InputError, Run, load_run, sort_runs
from eval.sections import build_report, draw_pictures
from eval.statements import comparison_statements
from eval.tables import DIFFERENT_OBJECTIVE, overview_table
from trl_prorl.files import replaced
from trl_prorl.shown import visible


def find_run_folders(patterns: list[str]) -> list[Path]:
    """
    The run folders among paths and glob patterns, each once, in the given order.

    A shell's `runs/demo/*` also names files and other folders, an earlier report for one; they are left out.

    Raises:
        InputError: If a path does not exist, a pattern matches nothing, or no run folder remains.
    """
    found = {}
    for pattern in patterns:
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
        if not matches:
            raise InputError(f"--runs '{pattern}' matches nothing; give run folders or a glob of them")
        for match in matches:
            if (Path(match) / "metrics.jsonl").is_file():
                found.setdefault(Path(match).resolve(), Path(match))
    if not found:
        raise InputError(
            f"--runs {' '.join(patterns)}: no run folder among them; a run folder holds config.yaml, env.json and "
            "metrics.jsonl"
        )
    return list(found.values())


def common_parent(folders: list[Path]) -> Path:
    """The deepest folder that holds all run folders."""
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders]))


def only_parent(folders: list[Path]) -> Path:
    """
    The folder in which all run folders lie.

    Raises:
        InputError: If there are several; what they have in common may be anybody's home, or `/`.
    """
    parents = list(dict.fromkeys(folder.resolve().parent for folder in folders))
    if len(parents) > 1:
        raise InputError(
            f"--out is missing: the runs lie in {len(parents)} folders ('{parents[0]}', '{parents[1]}'"
            f"{', …' if len(parents) > 2 else ''}); give the folder that the report goes to"
        )
    return parents[0]


def load_runs(folders: list[Path]) -> list[Run]:
    """The runs in the order of the report, each named by its path below the common parent."""
    parent = common_parent(folders)
    return sort_runs([load_run(folder, folder.resolve().relative_to(parent).as_posix()) for folder in folders])


@command
def main(argv=None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m eval.report", description="Report on run folders.")
    parser.add_argument("--runs", nargs="+", required=True, help="run folders or quoted globs of them")
    parser.add_argument("--out", type=Path, help="folder of the report (default: the one in which all runs lie)")
    args = parser.parse_args(argv)
    folders = find_run_folders(args.runs)
    out = args.out or only_parent(folders)
    runs = load_runs(folders)
    out.mkdir(parents=True, exist_ok=True)
    command = f"python -m eval.report --runs {' '.join(map(shlex.quote, args.runs))}"
    command += f" --out {shlex.quote(str(args.out))}" if args.out else ""
    report = build_report(runs, command)
    pictures = draw_pictures(report, runs, out)
    for name, text in (("report.md", to_markdown(report)), ("report.html", to_html(report))):
        with replaced(out / name) as aside:
            aside.write_text(text, encoding="utf-8")
    console = Console()
    console.print(overview_table(runs).to_rich())
    for line in comparison_statements(runs):
        if said := line.replace(DIFFERENT_OBJECTIVE, "").strip():  # which stands below the table
            console.print(f"- {visible(said)}", markup=False, highlight=False)
    print(f"Wrote {out / 'report.html'}; the same as report.md with {', '.join(pictures)}.")


if __name__ == "__main__":
    sys.exit(main())
