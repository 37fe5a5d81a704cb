"""The page about a card, from the folder of results."""

import json
import re
from pathlib import Path

from trl_prorl.eval.gpucheck.parts import MACHINE, PARTS, Result, Table


LIST = "<!-- Written by eval.gpu_check. -->"


def page(folder: Path) -> str:
    """All parts that have a result; those without are named."""
    machine = Result.read(folder, MACHINE.name)
    memory, versions = machine.facts["memory_gib"], machine.facts["versions"].items()
    said = "" if memory is None else f" {memory:.0f} GiB;"
    said = f"Written by `trl-prorl gpu-check`.{said} {', '.join(f'{name} {version}' for name, version in versions)}."
    lines = [f"# {machine.facts['device']}", "", said, "", *(failure(check) + "\n" for check in machine.failed)]
    for name, part in PARTS.items():
        result = Result.read(folder, name)
        lines += [f"## {part.title}", "", *(["Not measured.", ""] if result is None else section(result))]
    return "\n".join(lines).rstrip() + "\n"


def section(result: Result) -> list[str]:
    """A part: how many checks hold, those that do not, its tables, what was left out."""
    lines = []
    if result.checks:
        lines += [f"{len(result.checks) - len(result.failed)} of {len(result.checks)} checks hold.", ""]
        lines += [failure(check) for check in result.failed] + [""] * bool(result.failed)
    for table in result.tables:
        lines += table_lines(table)
    skipped = [f"- Left out: {name} ({reason})" for name, reason in result.skipped.items()]
    return lines + skipped + [""] * bool(skipped)


def failure(check) -> str:
    return f"- **Failed: {check.name}**: {check.found}"


def table_lines(table: Table) -> list[str]:
    """Lines of Markdown."""
    rows = [table.columns, ["---"] * len(table.columns), *table.rows]
    lines = [f"| {' | '.join(cell(value).replace('|', '/') for value in row)} |" for row in rows]
    return [f"### {table.title}", "", *lines, "", *([table.note, ""] if table.note else [])]


def cell(value) -> str:
    """A number with three digits that count; nothing where nothing was measured."""
    if isinstance(value, float):
        return f"{value:.3g}" if 1e-3 <= abs(value) < 1e3 or value == 0.0 else f"{value:.2e}"
    return "–" if value is None else str(value)


def publish(folder: Path, root: Path) -> Path:
    """Write the page into `docs/gpu` of a checkout, with the numbers beside it, and list it there."""
    device, docs = Result.read(folder, MACHINE.name).facts["device"], root / "docs" / "gpu"
    where = docs / (re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".md")
    files = {name: folder / f"{name}.json" for name in (MACHINE.name, *PARTS)}
    raw = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    docs.mkdir(parents=True, exist_ok=True)
    where.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    where.write_text(page(folder))
    readme = docs / "README.md"
    head = (readme.read_text() if readme.is_file() else "# Cards\n\n").partition(LIST)[0]
    pages = sorted(path for path in docs.glob("*.md") if path.name != "README.md")
    listed = [f"- [{path.read_text().splitlines()[0].removeprefix('# ')}]({path.name})" for path in pages]
    readme.write_text("\n".join([f"{head}{LIST}", *listed]) + "\n")
    return where
