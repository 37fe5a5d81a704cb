"""The report: its sections in their order."""

from itertools import chain
from pathlib import Path

from trl_prorl.eval.pages import (
    arms,
    boundary,
    by_task,
    caveats,
    checkpoints,
    closeups,
    compare,
    completions,
    cost,
    course,
    drift,
    k_curve,
    learning,
    matrix,
    reproduce,
    reset_effects,
    success,
    trajectory,
    verdict,
)
from trl_prorl.eval.pages.document import Report, said_once
from trl_prorl.eval.run_folder.run import Run
from trl_prorl.variants import DIFFERENT_OBJECTIVE


CONTENTS = (
    verdict,
    matrix,
    completions,
    success,
    course,
    learning,
    checkpoints,
    trajectory,
    k_curve,
    boundary,
    compare,
    by_task,
    drift,
    reset_effects,
    closeups,
    cost,
    caveats,
    arms,
)


def build_report(runs: list[Run], command: str) -> Report:
    """
    The report on runs, for [`~eval.pages.document.to_markdown`] and [`~eval.pages.html.to_html`].

    Args:
        runs (`list[Run]`): The runs, sorted.
        command (`str`): The command that makes this report again.
    """
    sections = [*chain.from_iterable(page.sections(runs) for page in CONTENTS), *reproduce.sections(runs, command)]
    title = f"Prolonged GRPO: {len(runs)} {'run' if len(runs) == 1 else 'runs'}"
    # Each table and picture says it, because it may stand alone; the report says it above the first of them.
    return said_once(Report(title, arms.lead(runs), sections), DIFFERENT_OBJECTIVE)


def draw_pictures(report: Report, out: Path) -> list[str]:
    """Write the files that the markdown shows; returns their names."""
    for picture in report.pictures():
        picture.write(out)
    return [picture.file for picture in report.pictures()]
