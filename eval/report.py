"""
Write a report on run folders: verdict, tables and plots, as one self-contained HTML page.

    trl-prorl report --runs runs/demo/* --out runs/demo

Held-out numbers come from each run's `passk.json`, which `trl-prorl passk` writes; without it, those cells are dashes.
"""

import sys

from trl_prorl.errors import InputError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.pages import comparison, curves, drift_curves, matrix, reset_panels, runs, score_sections
from trl_prorl.eval.pages.page import Section, to_html
from trl_prorl.eval.pages.table import print_bullets, terminal
from trl_prorl.eval.run_folder.reading import load_runs
from trl_prorl.eval.run_folder.run import sort_runs
from trl_prorl.run.files import replace_text
from trl_prorl.text import visible


CONTENTS = (
    comparison.verdict_section,
    matrix.section,
    curves.section,
    reset_panels.section,
    comparison.section,
    runs.section,
    score_sections.checkpoints,
    score_sections.against_k,
    score_sections.by_task,
    drift_curves.section,
)
TITLE = "Prolonged GRPO"  # the beginning of every report
PAGE = "report.html"


def build_report(frame: Frame, left_out: list[str] = ()) -> str:
    """Return the page about the runs of a frame; `left_out` has a line for each run that could not be read."""
    sections = [section for section in (make(frame) for make in CONTENTS) if section is not None]
    if left_out:
        sections.append(Section("Left out", lines=left_out))
    variants = dict.fromkeys(run.kind.label for run in frame.runs)
    models = dict.fromkeys(str(run.model) for run in frame.runs)
    lead = f"Variants: {', '.join(variants)}. Starting model (base): {', '.join(models)}."
    return to_html(f"{TITLE}: {len(frame.runs)} runs", [lead], sections)


@command_lines.command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.report(argv)
    page = args.out if args.out.suffix == ".html" else args.out / PAGE
    if page.is_file() and TITLE not in page.read_text(encoding="utf-8", errors="replace"):
        raise InputError(f"{page} was not written by this command and would be overwritten; give another --out")
    recorded, left_out = load_runs(args.runs)
    frame = Frame(sort_runs(recorded))
    page.parent.mkdir(parents=True, exist_ok=True)
    replace_text(page, build_report(frame, left_out))
    console = terminal()
    print_bullets(console, [*comparison.statements(frame), *left_out])
    console.print(runs.overview_table(frame).to_rich())
    print(visible(f"Wrote {page}."))


if __name__ == "__main__":
    sys.exit(main())
