"""
Runs on the same held-out prompts: paired differences, and how large a difference would be found.

    trl-prorl compare --runs runs/demo/variantA runs/demo/variantC --k 1 8
    trl-prorl compare --runs 'runs/demo/*' --json differences.json

Two runs are compared in full; of more, arms are averaged over their seeds, and p-values corrected for all pairs.
"""

import dataclasses
import sys

from rich.console import Console

from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.compare import GREEDY, common_sizes, compare, compare_all_pairs, has_greedy, pair_notes
from trl_prorl.eval.analysis.timing import Timing
from trl_prorl.eval.command import command
from trl_prorl.eval.pages.comparison import comparison_statements, objective_notes, terminal_tables
from trl_prorl.eval.pages.step_times import step_time_notes
from trl_prorl.eval.pages.table import print_bullets
from trl_prorl.eval.run_folder.reading import load_run, load_runs, write_json


@command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.compare(argv)
    if len(args.runs) == 2:
        runs = [load_run(folder) for folder in args.runs]
        if runs[0].name == runs[1].name:
            runs = [load_run(folder, name=str(folder)) for folder in args.runs]
        outcomes = list(args.k or common_sizes(*runs))
        if all(has_greedy(run) for run in runs):
            outcomes.append(GREEDY)
        comparisons = [compare(*runs, k) for k in outcomes]
        notes = comparison_statements(comparisons) + pair_notes(*runs)
    else:
        runs = load_runs(args.runs)
        sizes = args.k
        if not sizes:
            in_common = [set(common_sizes(runs[0], run)) for run in runs]
            sizes = sorted(set.intersection(*in_common))
        comparisons, skipped = compare_all_pairs(runs, sizes)
        notes = skipped + objective_notes(runs)
    notes += step_time_notes(Timing(runs))
    console = Console()
    console.print(*terminal_tables(comparisons), sep="\n")
    print_bullets(console, notes)
    if args.json is not None:
        rows = []
        for each in comparisons:
            rows.append({"outcome": each.outcome, **dataclasses.asdict(each), "detectable": each.detectable})
        write_json(args.json, {"comparisons": rows, "notes": notes})


if __name__ == "__main__":
    sys.exit(main())
