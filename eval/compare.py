"""
Two runs on the same held-out prompts: paired differences, and how large a difference would be found.

    python -m eval.compare --runs runs/demo/A runs/demo/C --k 1 8
"""

import sys

from rich.console import Console

from eval import command_lines
from eval.analysis.compare import common_sizes, compare
from eval.command import command
from eval.pages.compare import comparison_statements, comparison_table
from eval.pages.terminal import print_bullets
from eval.run_folder.reading import load_run


@command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.compare(argv)
    a, b = (load_run(folder) for folder in args.runs)
    if a.name == b.name:
        a, b = (load_run(folder, name=str(folder)) for folder in args.runs)
    comparisons = [compare(a, b, k) for k in args.k or common_sizes(a, b)]
    console = Console()
    console.print(comparison_table(comparisons).to_rich())
    print_bullets(console, comparison_statements(comparisons))


if __name__ == "__main__":
    sys.exit(main())
