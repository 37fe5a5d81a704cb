"""Write the page about a GPU from the folder of results."""

import json
import re
import statistics
from pathlib import Path

from trl_prorl.eval.gpucheck.runner import PARTS, Result
from trl_prorl.eval.pages.table import Table
from trl_prorl.eval.stepcost.settings import BASELINE
from trl_prorl.eval.stepcost.tables import ratio


LIST = "<!-- Written by eval.gpu_check. -->"
STAGES = ("generation", "scoring", "update")
COLUMNS = [
    "variant",
    *(f"{stage}, s" for stage in (*STAGES, "whole step")),
    "update phase ×",
    "whole step ×",
    "peak, GiB",
]
NOTE = (
    f"Seconds per optimizer step (medians). Scoring and update form the update phase. ×: speedup over {BASELINE}. "
    "Peak: memory of the update, above the models."
)
OBJECTIVE = "B optimizes a different objective from A and TRL."
TOY = "On a CPU the parts run at toy size. The sizes in the headings below are for a GPU."


def page(folder: Path, machine: dict) -> str:
    """Return the page: every part with its result, or \"Not measured\"."""
    memory = f" {machine['memory']} GiB;" if "memory" in machine else ""
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    driver = machine.get("driver", "")
    made_by = f"Written by `trl-prorl gpu-check`.{memory} {driver}{versions}. {OBJECTIVE}"
    lines = [f"# {machine['device']}", "", made_by, ""]
    if "memory" not in machine:
        lines += [TOY, ""]
    for name, part in PARTS.items():
        result = Result.read(folder, name)
        lines += [f"## {part.title}", ""]
        lines += ["Not measured.", ""] if result is None else section(result, machine)
    return "\n".join(lines).rstrip() + "\n"


def number(value: float) -> str:
    """Format a number with three digits and no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def section(result: Result, machine: dict) -> list[str]:
    """
    Return the section of a part: number of passed checks, failures, tables, and what was skipped; and on which device
    and with which versions, if an earlier check measured it with others than this one.
    """
    lines = [f"{result.passed} of {result.passed + len(result.failed)} checks passed.", ""]
    measured_with = {name: value for name, value in result.made_with.items() if name != "code"}
    if measured_with != {"device": machine["device"], **machine["versions"]}:
        named = ", ".join(f"{name} {value}" for name, value in measured_with.items())
        lines += [f"**Measured earlier, with {named}.**", ""]
    if result.numbers:
        cells = [[name, number(value)] for name, value in result.numbers.items()]
        lines += [Table("", ["", "measured"], cells).to_markdown(), ""]
    lines += [f"- **Failed: {name}**: {found}" for name, found in result.failed.items()]
    for title, arms in result.seconds.items():
        table = Table("", COLUMNS, [row(arms, name) for name in arms], notes=[NOTE])
        lines += [f"### {title}", "", table.to_markdown(), ""]
    lines += [f"- Skipped: {name} ({reason})" for name, reason in result.skipped.items()]
    lines.append("")
    return lines


def row(arms: dict[str, dict], name: str) -> list[str]:
    """Return the cells of a variant."""
    mine = arms[name]
    seconds = [*(mine[stage] for stage in STAGES), statistics.median(mine["whole"])]
    ratios = [ratio(arms, name, rounds=kind)[0] for kind in ("phase", "whole")]
    peak = f"{mine['peak']:.2f}" if "peak" in mine else "–"
    return [name, *(f"{one:.3g}" for one in seconds), *(f"{one:.2f}" for one in ratios), peak]


def publish(folder: Path, root: Path, machine: dict) -> Path:
    """Write the page and its raw numbers into `docs/gpu` of a checkout, and list it in the README there."""
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
