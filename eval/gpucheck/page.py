"""The page about a card: every table, what failed, what was left out and why, from the folder of results."""

import json
import re
from pathlib import Path

from trl_prorl.eval.gpucheck import folder as results
from trl_prorl.eval.gpucheck.parts import PARTS
from trl_prorl.eval.gpucheck.result import Result, Sheet


def slug(device: str) -> str:
    """A device's name as the name of a file: `NVIDIA H100 80GB HBM3` → `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def cell(value) -> str:
    """A number with three digits that count; nothing where nothing was measured."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if 1e-3 <= abs(value) < 1e3 or value == 0.0 else f"{value:.2e}"
    return str(value)


def table(sheet: Sheet) -> list[str]:
    """Lines of Markdown."""
    columns = [column.replace("|", "\\|") for column in sheet.columns]
    lines = [f"### {sheet.title}", "", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell(value).replace('|', '/') for value in row)} |" for row in sheet.rows]
    return [*lines, "", *([sheet.note, ""] if sheet.note else [])]


def section(title: str, result: Result) -> list[str]:
    """A part: how many checks hold, those that do not, its tables, what was left out."""
    lines = [f"## {title}", ""]
    if result.checks:
        lines += [f"{len(result.checks) - len(result.failed)} of {len(result.checks)} checks hold.", ""]
        failed = [check for check in result.checks if not check.passed]
        lines += [f"- **Failed: {check.name}**: {check.found}" for check in failed] + [""] * bool(failed)
    for sheet in result.sheets:
        lines += table(sheet)
    skipped = [f"- Left out: {name} ({reason})" for name, reason in result.skipped.items()]
    return lines + skipped + [""] * bool(skipped)


def page(folder: Path) -> str:
    """All parts that have a result; those without are named."""
    machine = results.read(folder, "machine")
    device = machine.facts
    versions = ", ".join(f"{name} {version}" for name, version in device["versions"].items())
    lines = [
        f"# {device['device']}",
        "",
        f"Written by `trl-prorl gpu-check`. {device['memory_gib']:.0f} GiB; {versions}.",
        f"A product of two large matrices in bf16 reaches {device['matmul_flops'] / 1e12:.3g} TFLOP/s here.",
        "",
        *(f"- **Failed: {check.name}**: {check.found}\n" for check in machine.checks if not check.passed),
    ]
    for name, part in PARTS.items():
        result = results.read(folder, name)
        lines += [f"## {part.title}", "", "Not measured.", ""] if result is None else section(part.title, result)
    return "\n".join(lines).rstrip() + "\n"


def publish(folder: Path, docs: Path) -> Path:
    """Write the page into a folder of pages, and the numbers as they are beside it, in one file."""
    name = slug(results.read(folder, "machine").facts["device"])
    docs.mkdir(parents=True, exist_ok=True)
    raw = {
        part: json.loads((folder / f"{part}.json").read_text())
        for part in ("machine", *PARTS)
        if (folder / f"{part}.json").is_file()
    }
    (docs / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n")
    (docs / f"{name}.md").write_text(page(folder))
    index(docs)
    return docs / f"{name}.md"


NONE_YET = "No card has been measured yet."
BEGIN = "<!-- Written by eval.gpu_check. -->"


def index(docs: Path) -> None:
    """List the cards at the end of the folder's README, which says how to read their pages."""
    pages = sorted(path for path in docs.glob("*.md") if path.name != "README.md")
    readme = docs / "README.md"
    head = (readme.read_text() if readme.is_file() else "# Cards\n\n").partition(BEGIN)[0]
    listed = [f"- [{path.read_text().splitlines()[0].removeprefix('# ')}]({path.name})" for path in pages]
    readme.write_text(f"{head}{BEGIN}\n" + "\n".join(listed or [NONE_YET]) + "\n")
