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
from trl_prorl.eval.analysis.pairs import (
    GREEDY,
    Comparison,
    common_sizes,
    compare_pairs,
    comparisons_to_json,
    group_notes,
    has_greedy,
    pair_by_seed,
    pair_notes,
    without_partner,
)
from trl_prorl.eval.command import command
from trl_prorl.eval.pages.comparison import (
    answer,
    left_out_statement,
    objective_notes,
    stale_notes,
    terminal_table,
    training_statements,
)
from trl_prorl.eval.pages.plotting import run_label
from trl_prorl.eval.pages.reproduce import passk_command
from trl_prorl.eval.pages.table import print_bullets, terminal
from trl_prorl.eval.run_folder.reading import load_runs, write_json
from trl_prorl.eval.run_folder.run import RecordedRun, sort_runs
from trl_prorl.run.provenance import describe_evaluation
from trl_prorl.text import visible


def check_two_are_evaluated(runs: list[RecordedRun]) -> None:
    """
    Check that at least two runs have a held-out evaluation.

    Raises:
        InputError: If not, with the command that evaluates the others.
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
        cure = f"make one with {describe_evaluation(others[0].config, others[0].env, others[0].path)}"
    has = f"only '{evaluated[0]}' has one" if evaluated else f"none of these {len(runs)} has one"
    raise InputError(f"--runs: a comparison needs two runs with a held-out evaluation, and {has}; {cure}")


def not_evaluated(run: RecordedRun) -> str:
    """Return the line about a run that cannot be compared."""
    how = describe_evaluation(run.config, run.env, run.path)
    return f"`{run.name}` is left out: it has no held-out evaluation. Make one with {how}."


def compare_runs(
    runs: list[RecordedRun], ks: list[int] | None
) -> tuple[list[Comparison], dict[str, str], list[str], list[str]]:
    """
    Compare two evaluated runs, or all variants of more. Of two variants with one seed in common, these two runs are
    compared.

    Args:
        runs (`list[RecordedRun]`): At least two evaluated runs.
        ks (`list[int]`, *optional*): Values of k; by default those that all evaluations share.

    Returns:
        `tuple[list[Comparison], dict[str, str], list[str], list[str]]`: Comparisons; labels with the variant, by
            name; a line for every run or pair that is left out; and notes.

    Raises:
        InputError: If there is only one variant, or no pair can be compared.
    """
    groups = Frame(runs).groups
    left_out = []
    if len(groups) == 2 < len(runs):
        pairs = pair_by_seed(*groups)
        if len(pairs) == 1:
            left_out = without_partner([tuple(groups)])
            runs = [row.run for row in pairs[0]]
    two_runs = len(runs) == 2
    if two_runs:
        groups = [RunGroup(row.run.name, run_label(row.run), [row]) for row in Frame(runs).rows]
    if len(groups) < 2:
        raise InputError(
            f"--runs: all {len(runs)} runs are one variant with different seeds; give runs of a second variant"
        )
    outcomes = list(ks or common_sizes(runs))
    measured = [has_greedy(run) for run in runs]
    if all(measured) or (any(measured) and not two_runs):
        outcomes.append(GREEDY)
    comparisons, skipped = compare_pairs(list(combinations(groups, 2)), outcomes)
    if not comparisons or (two_runs and skipped):
        raise InputError(skipped[0])
    if two_runs:
        notes = pair_notes(*runs)
    else:
        compared = {(row.first, row.second) for row in comparisons}
        pairs = [pair for pair in combinations(groups, 2) if (pair[0].label, pair[1].label) in compared]
        notes = [*objective_notes(runs), *group_notes(pairs)]
    notes += [*training_statements(runs), *stale_notes(runs)]
    return comparisons, {group.label: group.full_label for group in groups}, [*left_out, *skipped], notes


def print_comparisons(
    comparisons: list[Comparison], labels: dict[str, str], left_out: list[str], notes: list[str], file: Path | None
) -> None:
    """
    Print the answer, a table and notes, and write them to a JSON file.

    Args:
        comparisons (`list[Comparison]`): At least one; those of an outcome stand together.
        labels (`dict[str, str]`): The runs or variants by name, each as the answer shows it.
        left_out (`list[str]`): A line for every run or pair that is left out.
        notes (`list[str]`): More lines below the table.
        file (`Path`, *optional*): The JSON file.
    """
    notes = [*left_out, *notes]
    sentence = " ".join(filter(None, [answer(comparisons, labels), left_out_statement(left_out)]))
    print(visible(sentence), flush=True)
    console = terminal()
    console.print("", terminal_table(comparisons), sep="\n")
    print_bullets(console, notes)
    if file is not None:
        rows = comparisons_to_json(comparisons)
        write_json(file, {"answer": sentence, "comparisons": rows, "notes": notes})


@command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.compare(argv)
    recorded, unreadable = load_runs(args.found.folders)
    left_out = [*args.found.left_out, *unreadable, *(not_evaluated(run) for run in recorded if not run.passk)]
    runs = [run for run in recorded if run.passk]
    if len(runs) > 2:
        runs = sort_runs(runs)
    try:
        check_two_are_evaluated(recorded)
        comparisons, labels, skipped, notes = compare_runs(runs, args.k)
    except InputError:
        print_bullets(terminal(), left_out)
        raise
    print_comparisons(comparisons, labels, [*left_out, *skipped], notes, args.json)


if __name__ == "__main__":
    sys.exit(main())
