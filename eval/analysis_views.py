"""The analyses of a single run and of pairs, over all runs of a report: solved prompts, saturation, paired arms."""

from itertools import product

from eval.boundary import boundary
from eval.compare import compare
from eval.document import Block, Bullets
from eval.runs import InputError, Run
from eval.statements import same_prompts
from eval.statistics import holm
from eval.tables import NOT_MEASURED, Table, cell, interval_cell, objective_notes
from eval.trajectory import MIN_CHECKPOINTS, check_run, trajectory_table


# Enough to see p = 0.025 well; `python -m eval.trajectory` draws more.
RESAMPLES = 199
NAMED = 6
COMPARED_WITH = ("control", "A")


def boundary_table_of(runs: list[Run]) -> Table | None:
    """Prompts newly solved and lost by each run against its base; `None` if no run was evaluated."""
    rows = []
    for run in runs:
        if not run.passk:
            continue
        result = boundary(run.passk)
        rows.append(
            [
                run.name,
                f"{result.prompts} × {result.n}",
                *(
                    f"{len(changes)} ({sum(change.separated for change in changes)})"
                    for changes in (result.newly_solved, result.lost)
                ),
                str(result.both),
                str(result.neither),
                f"{result.solved_at_all.p_value:.2g}",
                f"{result.rate_limit:.3f}",
            ]
        )
    if not rows:
        return None
    header = ["arm", "prompts × samples", "newly solved", "lost", "both", "neither", "p", "rate not excluded"]
    notes = [
        "Newly solved: no correct base sample, some of the trained model; lost: the reverse; in brackets those for which "
        "sampling noise is excluded (Fisher's exact test, Holm over all prompts of the run, 5 %). p: exact McNemar of newly "
        "solved against lost. No correct sample does not mean impossible: the last column is the highest rate that leaves a "
        "chance of 5 % of it. `python -m eval.boundary --run …` shows the prompts."
    ]
    return Table("Newly solved and lost prompts", header, rows, notes + objective_notes(runs))


def saturation_blocks(runs: list[Run]) -> list[Block]:
    """Whether pass@k rises towards 1 at one constant rate, for runs with at least 3 evaluated checkpoints."""
    fitted, checks, lines = [], [], []
    for run in runs:
        if len((run.passk or {}).get("checkpoints") or []) < MIN_CHECKPOINTS:
            continue
        found = []
        for k in sorted({min(run.passk["k"]), max(run.passk["k"])}):
            try:
                found.append(check_run(run, k, resamples=RESAMPLES))
            except InputError as error:
                lines.append(f"Not fitted: {str(error).rstrip('.')}.")
        if found:
            fitted.append(run)
            checks.append(found)
    if not fitted:
        return [Bullets(lines)] if lines else []
    departing = [
        f"`{run.name}` (pass@{check.k})"
        for run, of_run in zip(fitted, checks, strict=True)
        for check in of_run
        if not check.holds
    ]
    total = sum(map(len, checks))
    named = f": {', '.join(departing)}" if len(departing) <= NAMED else ""
    seen = f"The constant rate does not hold for {len(departing)} of {total} fits{named}." if departing else ""
    rest = "Where no departure was seen, single checkpoints may be too noisy to show one."
    return [trajectory_table(fitted, checks), Bullets([*lines, *([seen] if seen else []), rest])]


def arm_pairs(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Evaluated runs of one seed, each against the control and against A, each pair once."""
    evaluated = [run for run in runs if run.passk]
    chosen = {}
    for reference, (first, second) in product(COMPARED_WITH, product(evaluated, evaluated)):
        if second.variant != reference or first.variant == reference or first.seed != second.seed:
            continue
        if frozenset((first.name, second.name)) not in chosen:
            chosen[frozenset((first.name, second.name))] = first, second
    return list(chosen.values())


def pairs_blocks(runs: list[Run]) -> list[Block]:
    """Paired differences between arms of one seed at the smallest and the largest common k."""
    found, lines = [], []
    for first, second in arm_pairs(runs):
        common = set(first.passk["k"]) & set(second.passk["k"])
        if not same_prompts(first, second) or not common:
            lines.append(f"`{first.name}` and `{second.name}` were not evaluated on the same prompts in the same way.")
            continue
        try:
            found.append([compare(first, second, k) for k in sorted({min(common), max(common)})])
        except InputError as error:
            lines.append(f"Not compared: {str(error).rstrip('.')}.")
    if not found:
        return [Bullets(lines)] if lines else []
    adjusted = holm([each[0].paired.p_value for each in found])
    rows = [
        [
            f"{each[0].first} − {each[0].second}",
            *(
                text
                for side in (each[0], each[-1])
                for text in (
                    str(side.k),
                    interval_cell(side.difference, "+.3f"),
                    NOT_MEASURED if side.differ else cell(side.visible, ".3f"),
                )
            ),
            f"{each[0].paired.first_only} : {each[0].paired.second_only}",
            f"{p_value:.2g}",
        ]
        for each, p_value in zip(found, adjusted, strict=True)
    ]
    header = [
        "pair",
        *("k", "difference in pass@k [95 %]", "found 4 times in 5") * 2,
        "right in one alone",
        "p (Holm)",
    ]
    on = " or ".join(sorted({each[0].paired_on for each in found}))
    notes = [
        "Trained models of one training seed on the same prompts, every arm against the control and against A. Where the "
        "interval covers 0, a true difference of the next column would be found four times in five, a smaller one less often. Right in one alone: prompts, by "
        f"{on}; p: exact McNemar, Holm over the table. One run on each side: nothing here covers the variation between "
        "training seeds."
    ]
    table = Table("Arms of the same seed, paired by prompt", header, rows, notes + objective_notes(runs))
    return [table, *([Bullets(lines)] if lines else [])]
