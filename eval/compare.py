"""
Runs on the same held-out prompts: paired differences, and how large a difference would be found.

    trl-prorl compare --runs runs/demo/variantA runs/demo/variantC --k 1 8
    trl-prorl compare --runs 'runs/demo/*' --json differences.json

Two runs are compared in full; of more, arms are averaged over their seeds, and p-values corrected for all pairs.
"""

import dataclasses
import sys

from rich.console import Console

from trl_prorl.errors import InputError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.compare import GREEDY, common_sizes, compare, compare_all_pairs, has_greedy, pair_notes
from trl_prorl.eval.analysis.timing import Timing
from trl_prorl.eval.command import command
from trl_prorl.eval.pages.comparison import comparison_statements, objective_notes, terminal_tables
from trl_prorl.eval.pages.reproduce import passk_command
from trl_prorl.eval.pages.step_times import step_time_notes
from trl_prorl.eval.pages.table import print_bullets
from trl_prorl.eval.run_folder.reading import load_runs, write_json
from trl_prorl.eval.run_folder.run import RecordedRun, sort_runs
from trl_prorl.record.provenance import describe_evaluation


def check_two_are_evaluated(runs: list[RecordedRun]) -> None:
    """
    Refuse a comparison of fewer than two evaluated runs.

    Raises:
        InputError: With what evaluates the others.
    """
    evaluated = [run.name for run in runs if run.passk]
    if len(evaluated) >= 2:
        return
    others = [run for run in runs if not run.passk]
    by_command = [run for run in others if run.can_be_evaluated]
    cure = "give another run"
    if by_command:
        cure = f"run `{passk_command(by_command)}`, then this again"
    elif others:
        cure = f"{describe_evaluation(others[0].config, others[0].env, others[0].path)} makes one"
    has = f"only '{evaluated[0]}' has one" if evaluated else f"none of these {len(runs)} has one"
    raise InputError(f"--runs: a comparison needs two runs with a held-out evaluation, and {has}; {cure}")


def not_evaluated(run: RecordedRun) -> str:
    """Return the line on a run that cannot be compared."""
    how = describe_evaluation(run.config, run.env, run.path)
    return f"`{run.name}` is left out: it has no held-out evaluation. {how} makes one."


@command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.compare(argv)
    recorded, unreadable = load_runs(args.found.folders)
    left_out = [*args.found.left_out, *unreadable, *(not_evaluated(run) for run in recorded if not run.passk)]
    console = Console()
    print_bullets(console, left_out)
    check_two_are_evaluated(recorded)
    runs = [run for run in recorded if run.passk]
    if len(runs) == 2:
        outcomes = list(args.k or common_sizes(*runs))
        if all(has_greedy(run) for run in runs):
            outcomes.append(GREEDY)
        comparisons = [compare(*runs, k) for k in outcomes]
        notes = comparison_statements(comparisons) + pair_notes(*runs)
    else:
        runs = sort_runs(runs)
        sizes = args.k
        if not sizes:
            in_common = [set(common_sizes(runs[0], run)) for run in runs]
            sizes = sorted(set.intersection(*in_common))
        comparisons, skipped = compare_all_pairs(runs, sizes)
        notes = skipped + objective_notes(runs)
    notes += step_time_notes(Timing(runs))
    console.print(*terminal_tables(comparisons), sep="\n")
    print_bullets(console, notes)
    if args.json is not None:
        rows = []
        for each in comparisons:
            rows.append({"outcome": each.outcome, **dataclasses.asdict(each), "detectable": each.detectable})
        write_json(args.json, {"comparisons": rows, "notes": [*left_out, *notes]})


if __name__ == "__main__":
    sys.exit(main())
