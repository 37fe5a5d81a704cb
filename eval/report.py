"""
A report on run folders: tables, figures and what the numbers say.

    trl-prorl report --runs runs/demo/* --out runs/demo

Writes `report.html`, one page with everything in it, and `report.md` with its pictures beside it. Held-out numbers
come from each run's `passk.json`, which `trl-prorl passk` makes; without it those cells stay open.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from trl_prorl.errors import InputError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.command import command
from trl_prorl.eval.pages import (
    arms,
    around_resets,
    boundary,
    comparison,
    completions,
    curves,
    drift,
    matrix,
    passk,
    reproduce,
    reset_effects,
    runs,
)
from trl_prorl.eval.pages.document import Bullets, Report, Section, to_html, to_markdown
from trl_prorl.eval.pages.table import print_bullets
from trl_prorl.eval.run_folder.reading import load_runs, report_folder
from trl_prorl.eval.run_folder.run import sort_runs
from trl_prorl.files import replaced
from trl_prorl.text import shell_quote, visible


CONTENTS = (
    comparison.verdict_sections,
    matrix.sections,
    completions.sections,
    curves.sections,
    around_resets.sections,
    comparison.sections,
    runs.learned,
    passk.checkpoints,
    passk.against_k,
    boundary.sections,
    passk.by_task,
    drift.sections,
    reset_effects.sections,
    runs.costs,
    arms.sections,
)


TITLE = "Prolonged GRPO"  # begins every report
PAGES = ("report.md", "report.html")


def is_page(out: Path) -> bool:
    """Return whether `--out` names a page of HTML, which is all that is written then, and no folder."""
    return out.suffix.lower() in (".html", ".htm") and not out.is_dir()


def check_own(out: Path) -> None:
    """Refuse a report that is somebody else's. Raises `InputError`: naming the file and the cure."""
    pages = [out] if is_page(out) else [out / name for name in PAGES]
    if out.is_file() and not is_page(out):
        raise InputError(f"--out {out} is a file; give a folder, or a page whose name ends in .html")
    for page in pages:
        if page.is_file() and TITLE not in page.read_text(encoding="utf-8", errors="replace"):
            raise InputError(f"{page} is no report of this command, which would overwrite it; give another --out")


def build_report(frame: Frame, command: str, left_out: Sequence[str] = ()) -> Report:
    """Return the report on the runs of a frame; `command` makes it again, and `left_out` says what is not in it."""
    sections = [section for page in CONTENTS for section in page(frame)]
    if left_out:
        sections.append(Section("Left out", [Bullets(list(left_out))]))
    title = f"{TITLE}: {len(frame.runs)} {'run' if len(frame.runs) == 1 else 'runs'}"
    return Report(title, arms.lead(frame.runs), [*sections, *reproduce.sections(frame.runs, command)])


def write_report(report: Report, out: Path) -> str:
    """Write the report as a page, or into a folder as page, markdown and pictures; return what was written."""
    texts = {out: to_html(report)}
    said = f"Wrote {out}."
    if not is_page(out):
        out.mkdir(parents=True, exist_ok=True)
        pictures = report.pictures()
        for picture in pictures:
            picture.write(out)
        texts = {out / "report.md": to_markdown(report), out / "report.html": to_html(report)}
        names = ", ".join(picture.file for picture in pictures)
        with_pictures = f" with {names}, each as SVG too" if pictures else ""
        said = f"Wrote {out / 'report.html'}; the same as report.md{with_pictures}."
    out.parent.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        with replaced(path) as aside:
            aside.write_text(text, encoding="utf-8")
    return said


@command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.report(argv)
    out = args.out or report_folder(args.found)
    check_own(out)
    recorded, unreadable = load_runs(args.found.folders)
    left_out = [*args.found.left_out, *unreadable]
    frame = Frame(sort_runs(recorded))
    command = f"trl-prorl report --runs {' '.join(map(shell_quote, args.runs))}"
    if args.out:
        command += f" --out {shell_quote(str(args.out))}"
    report = build_report(frame, command, left_out)
    written = write_report(report, out)
    console = Console()
    console.print(runs.overview_table(frame).to_rich())
    print_bullets(console, (line.replace("**", "") for line in [*comparison.statements(frame), *left_out]))
    print(visible(written))


if __name__ == "__main__":
    sys.exit(main())
