"""
Write a report on run folders: verdict, tables and plots.

    trl-prorl report --runs runs/demo/* --out runs/demo

Writes `report.html`, one self-contained page, and `report.md` with separate pictures. Held-out numbers come from each
run's `passk.json`, which `trl-prorl passk` writes; without it, those cells are dashes.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trl_prorl.errors import InputError
from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.command import command
from trl_prorl.eval.pages import (
    caveats,
    comparison,
    completions,
    curves,
    drift_curves,
    matrix,
    prompt_changes,
    reproduce,
    reset_panels,
    runs,
    score_sections,
)
from trl_prorl.eval.pages.document import Report, Section, bullets, to_html, to_markdown
from trl_prorl.eval.pages.table import print_bullets, terminal
from trl_prorl.eval.run_folder.reading import load_runs, report_folder
from trl_prorl.eval.run_folder.run import sort_runs
from trl_prorl.run.files import replace_text
from trl_prorl.text import shell_quote, visible


CONTENTS = (
    comparison.verdict_section,
    matrix.section,
    completions.section,
    curves.section,
    reset_panels.around,
    comparison.section,
    runs.learned,
    score_sections.checkpoints,
    score_sections.against_k,
    prompt_changes.section,
    score_sections.by_task,
    score_sections.forgetting,
    drift_curves.section,
    reset_panels.effects,
    runs.costs,
    caveats.section,
)
TITLE = "Prolonged GRPO"  # the beginning of every report
BEGINNING = 1000  # characters of a page, with its title
PAGES = ("report.md", "report.html")


def is_page(out: Path) -> bool:
    """Return whether `--out` is the name of an HTML page, not a folder: then only the page is written."""
    return out.suffix.lower() in (".html", ".htm") and not out.is_dir()


def check_own(out: Path) -> None:
    """Check that no other file is overwritten. Raises `InputError`: with the file and the cure."""
    pages = [out] if is_page(out) else [out / name for name in PAGES]
    if out.is_file() and not is_page(out):
        raise InputError(f"--out {out} is a file; give a folder, or a page whose name ends in .html")
    for page in pages:
        if page.is_file() and TITLE not in _beginning(page):
            raise InputError(f"{page} was not written by this command and would be overwritten; give another --out")


def check_pictures(report: Report, out: Path) -> None:
    """Check that no other picture is overwritten: without an earlier report beside them, they are another's."""
    if is_page(out) or (out / PAGES[0]).is_file():
        return
    for picture in report.pictures():
        for path in picture.paths(out):
            if os.path.lexists(path):
                raise InputError(
                    f"{path} was not written by this command and would be overwritten; give another --out"
                )


def _beginning(page: Path) -> str:
    with open(page, encoding="utf-8", errors="replace") as opened:
        return opened.read(BEGINNING)


def build_report(frame: Frame, command: str, left_out: Sequence[str] = ()) -> Report:
    """
    Return the report on the runs of a frame; `command` reproduces it, `left_out` lists skipped runs and sections.
    """
    sections = [section for section in (make(frame) for make in CONTENTS) if section is not None]
    if left_out:
        sections.append(Section("Left out", [bullets(list(left_out))]))
    sections.append(reproduce.section(frame, command))
    title = f"{TITLE}: {len(frame.runs)} {'run' if len(frame.runs) == 1 else 'runs'}"
    return Report(title, caveats.lead(frame.runs), sections)


def write_report(report: Report, out: Path) -> str:
    """Write the report as a page, or into a folder as page, markdown and pictures; return a line about it."""
    folder = out.parent if is_page(out) else out
    folder.mkdir(parents=True, exist_ok=True)
    if is_page(out):
        texts = {out: to_html(report)}
        written = f"Wrote {out}."
    else:
        texts = {out / "report.md": to_markdown(report), out / "report.html": to_html(report)}
        pictures = report.pictures()
        for picture in pictures:
            picture.write(out)
        plots = f" with {len(pictures)} plots (PNG and SVG)" if pictures else ""
        written = f"Wrote {out / 'report.html'}, and report.md{plots}."
    for path, text in texts.items():
        replace_text(path, text)
    return written


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
    check_pictures(report, out)
    written = write_report(report, out)
    console = terminal()
    print_bullets(console, (line.replace("**", "") for line in [*comparison.statements(frame), *left_out]))
    console.print("", runs.overview_table(frame).to_rich(), sep="\n")
    print(visible(written))


if __name__ == "__main__":
    sys.exit(main())
