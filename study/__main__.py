"""
The study: `python -m study run`, `status`, `figures`, `drop`, `take-over`; `make study`, `make study-status`, `make
study-figures`.
"""

from trl_prorl.interrupt import NOTHING_CHANGED, end_at_once


if __name__ == "__main__":
    end_at_once(NOTHING_CHANGED)  # until `main` runs

import argparse
import sys
from pathlib import Path

from study.matrix import Matrix, read_matrix
from study.runner import PLACE, Runner, lock_study, progress, status
from study.tables import CURVES, FOLDER, make_frame, read_folder, read_tables, write_tables
from study.take_over import merge, new_runs, read_source
from study.tuned import with_choices
from trl_prorl.errors import InputError
from trl_prorl.eval.command import command


KEPT = (
    "finished runs are in study/tables. A run that was cut short goes on from its checkpoint, or begins anew. The "
    "same command goes on."
)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(prog="python -m study", description=__doc__.strip().split("\n")[0])
    parser.add_argument("what", choices=("run", "status", "figures", "drop", "take-over"))
    parser.add_argument("source", nargs="?", help="take-over: a branch, a commit, or the folder of another checkout")
    for name in ("blocks", "families", "arms"):
        parser.add_argument(f"--{name}", nargs="*", default=[], help=f"only these {name} of the matrix")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, of one thread each (default 2)")
    parser.add_argument("--commit", help="freeze the code of further runs at this commit (default: as the tables say)")
    parser.add_argument("--no-commit", action="store_true", help="write rows, and leave it to you to commit them")
    parser.add_argument("--tables", type=Path, help="run, status: the tables, in another checkout, from a frozen one")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the checkout (default: the working directory)")
    args = parser.parse_args(argv)
    args.root = args.root.resolve()
    args.tables = args.tables and args.tables.resolve()
    if (args.what == "take-over") != (args.source is not None):
        raise InputError("take-over needs a branch, a commit, or the folder of a checkout, and nothing else takes one")
    if args.what == "drop" and not (args.blocks or args.families or args.arms):
        raise InputError("drop: nothing is selected; give --blocks, --families or --arms")
    if args.tables is not None and args.what not in ("run", "status"):
        raise InputError(f"{args.what} takes no --tables; run and status do")
    if args.tables is not None and not args.tables.is_dir():
        raise InputError(f"--tables {args.tables}: there is no such folder")
    if args.jobs < 1:
        raise InputError(f"JOBS={args.jobs} must be at least 1")
    return args


def take_over(root: Path, source: str) -> None:
    """Add the runs of a source that are missing to the tables, and print them."""
    with lock_study(root / PLACE):
        here = read_tables(root)
        there = read_source(root, source)
        write_tables(root, merge(here, there))
    new = new_runs(here, there)
    for key in new:
        print(f"taken over: {key}")
    print(f"{len(new)} of {len(there.runs)} runs of {source} were missing in {FOLDER}")
    if new:
        print(f"they are there now: commit {FOLDER}")


def draw_figures(root: Path, whole: Matrix, matrix: Matrix) -> None:
    """Write pictures and findings from the tables, and print their files."""
    from study.findings import write_pages  # matplotlib takes a second

    tables = read_tables(root)
    for path in write_pages(root, with_choices(matrix, whole, tables), tables):
        print(path.relative_to(root))


def drop_runs(root: Path, matrix: Matrix) -> None:
    """Take the runs of a selection out of the tables."""
    with lock_study(root / PLACE):
        tables = read_tables(root)
        kept = tables.without(run.key for run in matrix.runs)
        write_tables(root, kept)
    print(f"{len(tables.runs) - len(kept.runs)} of {len(tables.runs)} runs taken out of {FOLDER}; commit it.")


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    args = parse_arguments(argv)
    if args.what == "take-over":
        take_over(args.root, args.source)
        return
    whole = read_matrix(args.root)
    blocks = args.blocks
    if args.what == "figures" and not blocks:
        blocks = [block.name for block in whole.blocks]  # whatever is in the tables
    matrix = whole.selected(blocks, args.families, args.arms)
    if args.what == "run":
        Runner(args.root, whole, matrix, args.jobs, args.commit, not args.no_commit, args.tables).run()
    elif args.what == "status":
        tables = read_folder(args.tables, make_frame(file=CURVES)) if args.tables else read_tables(args.root)
        print(status(matrix, tables))
        print()
        print(progress(matrix, tables, args.jobs))
    elif args.what == "figures":
        draw_figures(args.root, whole, matrix)
    else:
        drop_runs(args.root, matrix)


if __name__ == "__main__":
    sys.exit(command(main, kept=KEPT)(None))
