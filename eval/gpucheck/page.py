"""The page about a card, from the folder of results; and sentences about all cards in the files that quote them."""

import json
import re
import textwrap
from pathlib import Path

from trl_prorl.eval.gpucheck.parts import MACHINE, PARTS, Result, Table
from trl_prorl.eval.stepcost.settings import BASELINE
from trl_prorl.eval.stepcost.tables import ratio


BEGIN_LIST = "<!-- Written by eval.gpu_check. -->"
BEGIN, END = "<!-- Of GPUs: written by eval.gpu_check. -->", "<!-- The end of what is written. -->"
WIDTH = 119
QUOTED = {  # which files quote the cards: the first sentence, and where the pages are from there
    "README.md": ("Every figure for which no card is named was measured on CPUs, with small models. ", "docs/gpu/"),
    "docs/performance.md": ("", "gpu/"),
}


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
    """Write the page into `docs/gpu` of a checkout, the numbers beside it, and what other files there say of cards."""
    device, docs = Result.read(folder, MACHINE.name).facts["device"], root / "docs" / "gpu"
    where = docs / (re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + ".md")
    files = {name: folder / f"{name}.json" for name in (MACHINE.name, *PARTS)}
    raw = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    docs.mkdir(parents=True, exist_ok=True)
    where.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    where.write_text(page(folder))
    readme = docs / "README.md"
    head = (readme.read_text() if readme.is_file() else "# Cards\n\n").partition(BEGIN_LIST)[0]
    pages = sorted(path for path in docs.glob("*.md") if path.name != "README.md")
    listed = [f"- [{path.read_text().splitlines()[0].removeprefix('# ')}]({path.name})" for path in pages]
    readme.write_text("\n".join([f"{head}{BEGIN_LIST}", *listed]) + "\n")
    quote(root)
    return where


def quote(root: Path) -> None:
    """Write what is known of all cards into the files that quote them, where they have a place for it."""
    cards = sorted((root / "docs" / "gpu").glob("*.json"))
    for name, (first, pages) in QUOTED.items():
        text = (root / name).read_text() if (root / name).is_file() else ""
        before, began, rest = text.partition(BEGIN)
        _, ended, after = rest.partition(END)
        if began and ended:
            none_yet = f"Not yet measured on a GPU: `make gpu-check` measures it ([how]({pages}README.md))."
            said = first + (" ".join(sentence(card, pages) for card in cards) or none_yet)
            said = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\0"), said)  # a command stays in one line
            lines = textwrap.wrap(said, WIDTH, break_long_words=False, break_on_hyphens=False)
            text = "\n".join([before + BEGIN, *lines, END + after]).replace("\0", " ")
            (root / name).write_text(text)


def sentence(card: Path, pages: str) -> str:
    """A card's name with a link to its page, how many checks hold, and its speed against TRL's."""
    parts = json.loads(card.read_text())
    checks = [check["passed"] for part in parts.values() for check in part["checks"]]
    device = parts["machine"]["facts"]["device"]
    said = f"On one [{device}]({pages}{card.stem}.md) {sum(checks)} of {len(checks)} checks hold"
    setting, rows = next(iter(parts.get("cost", {"facts": {}})["facts"].items()), ("", {}))
    if not {BASELINE, "A packed", "B packed"} <= set(rows):
        return f"{said}; what a step costs there has not been measured."
    a, b = ([ratio(rows, arm, rounds=kind)[0] for kind in ("whole", "phase")] for arm in ("A packed", "B packed"))
    return (
        f"{said}; a whole step is {a[0]:.2f} times as fast as TRL's with a reference in A ({a[1]:.2f} without "
        f"generation), and {b[0]:.2f} times ({b[1]:.2f}) in B, which is a different objective ({setting})."
    )
