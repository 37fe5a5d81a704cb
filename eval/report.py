"""
A report on run folders: tables, figures and what the numbers say.

    trl-prorl report --runs runs/demo/* --out runs/demo

Writes `report.html`, one page with everything in it, and `report.md` with its pictures beside it. Held-out numbers
come from each run's `passk.json`, which `trl-prorl passk` makes; without it those cells stay open.
"""

import shlex
import sys

from rich.console import Console

from trl_prorl.eval import command_lines
from trl_prorl.eval.analysis.frame import Frame
from trl_prorl.eval.command import command
from trl_prorl.eval.pages.comparison import statements
from trl_prorl.eval.pages.contents import build_report, draw_pictures
from trl_prorl.eval.pages.document import to_html, to_markdown
from trl_prorl.eval.pages.runs import overview_table
from trl_prorl.eval.pages.table import print_bullets
from trl_prorl.eval.run_folder.reading import load_runs, only_parent
from trl_prorl.files import replaced


@command
def main(argv=None) -> None:
    """Entry point."""
    args = command_lines.report(argv)
    folders, out = args.folders, args.out or only_parent(args.folders)
    frame = Frame(load_runs(folders))
    out.mkdir(parents=True, exist_ok=True)
    command = f"trl-prorl report --runs {' '.join(map(shlex.quote, args.runs))}"
    command += f" --out {shlex.quote(str(args.out))}" if args.out else ""
    report = build_report(frame, command)
    pictures = draw_pictures(report, out)
    for name, text in (("report.md", to_markdown(report)), ("report.html", to_html(report))):
        with replaced(out / name) as aside:
            aside.write_text(text, encoding="utf-8")
    console = Console()
    console.print(overview_table(frame).to_rich())
    print_bullets(console, (line.replace("**", "") for line in statements(frame)))
    print(f"Wrote {out / 'report.html'}; the same as report.md with {', '.join(pictures)}.")


if __name__ == "__main__":
    sys.exit(main())
