"""The page about a card, from the folder of results."""

import json
import math
import re
import statistics
from collections.abc import Mapping
from pathlib import Path

from trl_prorl.eval.gpucheck import parts
from trl_prorl.eval.gpucheck.cards import find_card
from trl_prorl.eval.gpucheck.counts import read_counts
from trl_prorl.eval.gpucheck.parts import PARTS, ROOT, Result
from trl_prorl.eval.gpucheck.predicted_page import COUNTED, PAGE, draw_table, number
from trl_prorl.eval.gpucheck.predictions import LARGE, RECIPE
from trl_prorl.eval.gpucheck.verdicts import STAGES, Range, measured_seconds, predicted_ranges
from trl_prorl.eval.stepcost.settings import BASELINE
from trl_prorl.eval.stepcost.tables import ratio


LIST = "<!-- Written by eval.gpu_check. -->"
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
    results = {name: Result.read(folder, name) for name in PARTS}
    for name, result in results.items():
        lines += [f"## {PARTS[name][0]}", ""]
        lines += ["Not measured.", ""] if result is None else section(result)
    lines += predictions_section(results, machine["device"])
    return "\n".join(lines).rstrip() + "\n"


def predictions_section(results: Mapping[str, Result | None], device: str) -> list[str]:
    """Return the table of what was measured and, for a card that has a prediction, of what was predicted."""
    measured = {}
    for name, result in results.items():
        if result is not None:
            measured |= result.numbers
            if name == parts.LARGE:
                measured |= measured_seconds(result.seconds)
    if not measured:
        return []
    card = find_card(device)
    counted = ROOT / COUNTED
    ranges = {}
    if card is not None and counted.is_file():
        ranges = predicted_ranges(card, read_counts(counted))
    rows = []
    for name, value in measured.items():
        found = ranges.get(name)
        if found is None:
            rows.append([name, "–", number(value), "–"])
        else:
            rows.append([name, show_range(found), number(value), found.verdict(value)])
    columns = ["", "predicted", "measured", "verdict"]
    about = f"Rollouts: {LARGE.title}. All else: {RECIPE.title}. [How it was predicted]({PAGE.name})."
    return ["## Predicted and measured", "", *draw_table(columns, rows), about, ""]


def show_range(found: Range) -> str:
    """Say what confirms a prediction."""
    if math.isinf(found.most):
        return f"at least {number(found.least)}"
    if found.least == 0:
        return f"at most {number(found.most)}"
    return f"{number(found.least)} to {number(found.most)}"


def section(result: Result) -> list[str]:
    """Return a part: how many checks hold, those that do not, its tables, what was left out."""
    lines = [f"{result.passed} of {result.passed + len(result.failed)} checks hold.", ""]
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
    pages = sorted(path for path in docs.glob("*.md") if path.name not in ("README.md", PAGE.name))
    listed = [f"- [{path.read_text().splitlines()[0].removeprefix('# ')}]({path.name})" for path in pages]
    readme.write_text("\n".join([f"{head}{LIST}", *listed]) + "\n")
    return where
