"""
Compare runs on the same held-out prompts: do they differ, by how much, and how large a difference could be detected?

    trl-prorl compare --runs runs/demo/variantA runs/demo/variantC --k 1 8
    trl-prorl compare --runs 'runs/demo/*' --json differences.json

The first line answers whether they differ. Two runs are compared directly. With more runs, variants are averaged over
their seeds, and p-values are corrected for all pairs.
"""

import sys
from itertools import combinations
from pathlib import Path

from trl_prorl.errors import InputError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.frame import Frame, RunGroup
from trl_prorl.eval.analysis.pairs import GREEDY, Comparison, common_outcomes, compare_pairs, comparisons_to_json
from trl_prorl.eval.pages.comparison import answer, differences_table, limits
from trl_prorl.eval.pages.table import print_bullets, terminal
from trl_prorl.eval.run_folder.reading import load_runs, write_json
from trl_prorl.eval.run_folder.run import RecordedRun, require_passk, sort_runs
from trl_prorl.text import visible


def compare_runs(runs: list[RecordedRun], ks: list[int] | None) -> tuple[list[Comparison], list[str]]:
    """
    Compare two evaluated runs, or all variants of more.

    Args:
        runs (`list[RecordedRun]`): At least two evaluated runs.
        ks (`list[int]`, *optional*): Values of k; by default those that all evaluations share, and greedy decoding.

    Returns:
        `tuple[list[Comparison], list[str]]`: Comparisons, and a line for every pair that was skipped.

    Raises:
        InputError: If there is only one variant, or no pair can be compared.
    """
    groups = Frame(runs).groups
    if len(runs) == 2:
        groups = [RunGroup(row.run.name, [row]) for row in Frame(runs).rows]
    if len(groups) < 2:
        raise InputError("a comparison needs two runs, or runs of two variants")
    outcomes = common_outcomes(runs)
    if ks:
        outcomes = [*ks, *(k for k in outcomes if k is GREEDY)]
    comparisons, skipped = compare_pairs(list(combinations(groups, 2)), outcomes)
    if not comparisons:
        raise InputError(skipped[0])
    return comparisons, skipped


def print_comparisons(comparisons: list[Comparison], notes: list[str], file: Path | None) -> None:
    """Print the answer, a table and notes, and write them to a JSON file, if there is one."""
    sentence = answer(comparisons)
    print(visible(sentence), flush=True)
    console = terminal()
    console.print(differences_table(comparisons).to_rich())
    print_bullets(console, notes)
    if file is not None:
        write_json(file, {"answer": sentence, "comparisons": comparisons_to_json(comparisons), "notes": notes})


@command_lines.command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.compare(argv)
    recorded, left_out = load_runs(args.runs)
    runs = [run for run in recorded if run.passk]
    if len(runs) < 2:
        for run in recorded:
            require_passk(run)
    if len(runs) > 2:
        runs = sort_runs(runs)
    comparisons, skipped = compare_runs(runs, args.k)
    print_comparisons(comparisons, [*left_out, *skipped, *limits(recorded)], args.json)


if __name__ == "__main__":
    sys.exit(main())
