"""The report: its sections in their order."""

from itertools import chain
from pathlib import Path

from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages import (
    arms,
    boundary,
    comparison,
    completions,
    course,
    drift,
    matrix,
    passk,
    reproduce,
    reset_effects,
    runs,
)
from trl_prorl.eval.pages.document import Report


CONTENTS = (
    comparison.verdict_sections,
    matrix.sections,
    completions.sections,
    course.sections,
    comparison.sections,
    runs.learned,
    passk.checkpoints,
    passk.against_k,
    boundary.sections,
    passk.by_task,
    drift.sections,
    reset_effects.sections,
    runs.costs,
    arms.caveat_sections,
    arms.sections,
)


def build_report(frame: Frame, command: str) -> Report:
    """The report on the runs of a frame; `command` makes it again."""
    sections = chain.from_iterable(page(frame) for page in CONTENTS)
    title = f"Prolonged GRPO: {len(frame.runs)} {'run' if len(frame.runs) == 1 else 'runs'}"
    return Report(title, arms.lead(frame.runs), [*sections, *reproduce.sections(frame.runs, command)])


def draw_pictures(report: Report, out: Path) -> list[str]:
    """Write the files that the markdown shows; returns their names."""
    for picture in report.pictures():
        picture.write(out)
    return [picture.file for picture in report.pictures()]
