"""
List the prompts that a run newly solves or lost against its starting model: pass@k over k, and prompt by prompt.

    trl-prorl boundary --run runs/demo/variantA

Reads the run's `passk.json`, prints a table and tests, and writes `boundary.png` into the run folder.
"""

import sys

from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.boundary import boundary
from trl_prorl.eval.command import command
from trl_prorl.eval.pages.boundary import boundary_statements, boundary_table, plot_boundary
from trl_prorl.eval.pages.comparison import objective_notes
from trl_prorl.eval.pages.plotting import colour_of, run_label
from trl_prorl.eval.pages.table import print_bullets, terminal
from trl_prorl.eval.run_folder.reading import load_run
from trl_prorl.eval.run_folder.run import require_passk


@command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.boundary(argv)
    console = terminal()
    runs = [load_run(folder) for folder in args.runs]
    results = [boundary(require_passk(run)) for run in runs]
    for run, result in zip(runs, results, strict=True):
        title = f"{run_label(run)}: held-out pass@k"
        console.print(boundary_table(result, title).to_rich())
        print_bullets(console, boundary_statements(result))
        picture = run.path / "boundary.png"
        plot_boundary(result, picture, title, colour_of(run))
        print(f"Wrote {picture}.")
    print_bullets(console, objective_notes(runs))


if __name__ == "__main__":
    sys.exit(main())
