"""Newly solved and lost prompts: of one run in sentences, of all runs in a table."""

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.analysis.solved_lost import Boundary, PromptChange, boundary
from trl_prorl.eval.pages.document import Section, table_section
from trl_prorl.eval.pages.table import Column, table_of


MAX_LISTED = 12  # prompts in one line


def boundary_statements(result: Boundary) -> list[str]:
    """Return the counts of newly solved and lost prompts with their tests, and the smallest detectable change."""
    lines = [
        f"{result.prompts} prompts × {result.n} samples: {_count(result.newly_solved, 'newly solved')}, "
        f"{_count(result.lost, 'lost')}, {result.both} solved by both models, {result.neither} by neither. Newly "
        f"solved against lost: p = {result.p_value:.2g} (exact McNemar test; sampling noise changes prompts in both "
        "directions)."
    ]
    for name, changes in (("Newly solved", result.newly_solved), ("Lost", result.lost)):
        if changes:
            lines.append(f"{name} (prompt number: correct of {result.n}, base → trained): {_listed(changes)}.")
    if result.newly_solved or result.lost:
        lines.append(
            f"* significant: Fisher's exact test per prompt, Holm-corrected over {result.prompts} prompts, p ≤ 0.05."
        )
    limit = f"0 of {result.n} correct rules out only success rates above {result.rate_limit:.3f} (95 %)."
    if result.separable_from:
        limit += f" A change from 0 needs up to {result.separable_from} of {result.n} correct to be significant."
    else:
        limit += f" Not even a change from 0 to {result.n} of {result.n} is significant: draw more samples per prompt."
    return [*lines, limit]


def _count(changes: list[PromptChange], what: str) -> str:
    """Return the number of changes, and how many are significant: `14 newly solved (0 significantly)`."""
    significantly = f" ({sum(change.is_significant for change in changes)} significantly)" if changes else ""
    return f"{len(changes)} {what}{significantly}"


def _listed(changes: list[PromptChange]) -> str:
    """Return the clearest changes first, with a star at significant ones."""
    ranked = sorted(changes, key=lambda change: (change.p_value, -abs(change.trained - change.base), change.prompt))
    listed = []
    for change in ranked[:MAX_LISTED]:
        star = "*" if change.is_significant else ""
        listed.append(f"#{change.prompt}: {change.base} → {change.trained}{star}")
    if len(changes) > MAX_LISTED:
        listed.append(f"and {len(changes) - MAX_LISTED} more")
    return ", ".join(listed)


def _changes_cell(changes: list[PromptChange]) -> str:
    return f"{len(changes)} ({sum(change.is_significant for change in changes)})"


RUN_COLUMNS = [
    Column("run", lambda row: row[0].name),
    Column("prompts × samples", lambda row: f"{row[1].prompts} × {row[1].n}"),
    Column("newly solved", lambda row: _changes_cell(row[1].newly_solved)),
    Column("lost", lambda row: _changes_cell(row[1].lost)),
    Column("both", lambda row: str(row[1].both)),
    Column("neither", lambda row: str(row[1].neither)),
    Column("p", lambda row: f"{row[1].p_value:.2g}"),
    Column("rate not excluded", lambda row: f"{row[1].rate_limit:.3f}"),
]


def section(frame: Frame) -> Section | None:
    """Return the prompts newly solved and lost by each run against its base; `None` if no run was evaluated."""
    rows = [(run, boundary(run.passk)) for run in frame.runs if run.passk]
    notes = [
        "Newly solved: no correct base sample, some correct trained samples. Lost: the reverse. In parentheses: "
        "significant changes (Fisher's exact test per prompt, Holm-corrected over the prompts of the run, 5 %). p: "
        "exact McNemar test of newly solved against lost. Rate not excluded: no correct sample rules out only higher "
        "success rates (95 %). `trl-prorl passk` lists the prompts."
    ]
    return table_section(table_of("Newly solved and lost prompts", RUN_COLUMNS, rows, notes))
