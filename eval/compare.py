"""
Two runs on the same held-out prompts: paired differences, and how large a difference would be found.

    python -m eval.compare --runs runs/demo/variantA runs/demo/variantC --k 1 8
"""

import argparse
import sys

from rich.console import Console

from eval.analysis.compare import common_sizes, compare
from eval.command import command, program
from eval.pages.compare import comparison_statements, comparison_table
from eval.pages.terminal import print_bullets
from eval.run_folder.finding import add_run_option
from eval.run_folder.reading import load_run


@command
def main(argv=None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog=program("compare"), description="Two runs on the same prompts, paired.")
    add_run_option(parser, help="two run folders")
    parser.add_argument("--k", type=int, nargs="+", help="sizes of the draw (default: those of both evaluations)")
    args = parser.parse_args(argv)
    if len(args.runs) != 2:
        parser.error(f"--runs needs two run folders, and was given {len(args.runs)}")
    a, b = (load_run(folder) for folder in args.runs)
    if a.name == b.name:
        a, b = (load_run(folder, name=str(folder)) for folder in args.runs)
    comparisons = [compare(a, b, k) for k in args.k or common_sizes(a, b)]
    console = Console()
    console.print(comparison_table(comparisons).to_rich())
    print_bullets(console, comparison_statements(comparisons))


if __name__ == "__main__":
    sys.exit(main())
