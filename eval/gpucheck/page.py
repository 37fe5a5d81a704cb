"""The page about a card, from the folder of results."""

import json
import re
import statistics
from pathlib import Path

from trl_prorl.eval.gpucheck.parts import PARTS, Result
from trl_prorl.eval.stepcost.settings import BASELINE
from trl_prorl.eval.stepcost.tables import ratio


LIST = "<!-- Written by eval.gpu_check. -->"
STAGES = ("generation", "scoring", "update")
COLUMNS = ["arm", *(f"{stage}, s" for stage in (*STAGES, "whole step")), "update phase ×", "whole step ×", "peak, GiB"]
NOTE = (
    f"Seconds of an optimizer step, medians; scoring and update are the update phase. ×: times as fast as {BASELINE}. "
    "Peak: of the update, above the models."
)
OBJECTIVE = "B optimises a different objective from A's and TRL's."
TOY = "On a CPU the parts run at toy size: the sizes in what follows are those of a card."


def page(folder: Path, machine: dict) -> str:
    """All parts that have a result; those without are named."""
    memory = f" {machine['memory']} GiB;" if "memory" in machine else ""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [f"# {machine['device']}", "", f"Written by `trl-prorl gpu-check`.{memory} {versions}. {OBJECTIVE}", ""]
    if "memory" not in machine:
        lines += [TOY, ""]
    for name, (title, _) in PARTS.items():
        result = Result.read(folder, name)
        lines += [f"## {title}", ""]
        lines += ["Not measured.", ""] if result is None else section(result)
    return "\n".join(lines).rstrip() + "\n"


def draw_table(columns: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table, with an empty one below."""
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)] + [""]


def number(value: float) -> str:
    """Three digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def section(result: Result) -> list[str]:
    """Return a part: how many checks hold, those that do not, its tables, what was left out."""
    lines = [f"{result.passed} of {result.passed + len(result.failed)} checks hold.", ""]
    if result.numbers:
        lines += draw_table(["", "measured"], [[name, number(value)] for name, value in result.numbers.items()])
    lines += [f"- **Failed: {name}**: {found}" for name, found in result.failed.items()]
    for title, arms in result.seconds.items():
        table = draw_table(COLUMNS, [row(arms, name) for name in arms])
        lines += [f"### {title}", "", *table, NOTE, ""]
    lines += [f"- Left out: {name} ({reason})" for name, reason in result.skipped.items()]
    lines.append("")
    return lines


def row(arms: dict[str, dict], name: str) -> list[str]:
    """Return the cells of an arm."""
    mine = arms[name]
    seconds = [*(mine[stage] for stage in STAGES), statistics.median(mine["whole"])]
    ratios = [ratio(arms, name, rounds=kind)[0] for kind in ("phase", "whole")]
    peak = f"{mine['peak']:.2f}" if "peak" in mine else "–"
    return [name, *(f"{one:.3g}" for one in seconds), *(f"{one:.2f}" for one in ratios), peak]


def publish(folder: Path, root: Path, machine: dict) -> Path:
    """Write the page into `docs/gpu` of a checkout, with the numbers beside it, and list it there."""
    docs = root / "docs" / "gpu"
    where = docs / (re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-") + ".md")
    files = {name: folder / f"{name}.json" for name in PARTS}
    raw = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    docs.mkdir(parents=True, exist_ok=True)
    where.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    where.write_text(page(folder, machine))
    readme = docs / "README.md"
    head = (readme.read_text() if readme.is_file() else "# Cards\n\n").partition(LIST)[0]
    pages = sorted(path for path in docs.glob("*.md") if path.name != "README.md")
    listed = [f"- [{path.read_text().splitlines()[0].removeprefix('# ')}]({path.name})" for path in pages]
    readme.write_text("\n".join([f"{head}{LIST}", *listed]) + "\n")
    return where
