"""Compare the measured variants with TRL, as tables in the terminal and as charts."""

import statistics
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from trl_prorl.eval.stepcost.settings import BASELINE, DEFAULT, FLOOR


ROUNDS = {"generation": "generated", "update phase": "phase", "whole step": "whole"}  # heading -> key of every round
BAR = "#56B4E9"
LABELS = {  # of the variants in charts
    BASELINE: "TRL, fixed reference",
    DEFAULT: "TRL, no KL",
    "plain packed": "trl-prorl, no KL",
    "A packed": "trl-prorl, moving reference (A)",
    "B packed": "trl-prorl, old policy (B)",
    "C packed": "trl-prorl, moving reference, optimizer reset (C)",
    FLOOR: "floor: the bare model, nothing twice",
}


def ratio(
    result: dict[str, dict], name: str, baseline: str = BASELINE, rounds: str = "phase"
) -> tuple[float, float, float]:
    """
    Return the speedup of a variant over the baseline for a key of `ROUNDS`: median, minimum and maximum over paired
    rounds.
    """
    pairs = [theirs / mine for mine, theirs in zip(result[name][rounds], result[baseline][rounds], strict=True)]
    return statistics.median(pairs), min(pairs), max(pairs)


def show(console: Console, title: str, result: dict[str, dict]) -> None:
    """Print the seconds of a step, the speedup over the baseline, and the multiple of the floor, if measured."""
    stages = ("generation", "scoring", "update")
    seconds = Table("variant", *(f"{name}, s" for name in (*stages, "whole step")), title=title)
    peaks = any("peak" in values for values in result.values())
    if peaks:
        seconds.add_column("peak GiB, above the models")
    for name, values in result.items():
        numbers = [*(values[key] for key in stages), statistics.median(values["whole"])]
        cells = [f"{number:.3f}" for number in numbers]
        if peaks:
            cells.append(f"{values['peak']:.2f}")
        seconds.add_row(name, *cells)
    console.print(seconds)
    show_ratios(console, result, f"speedup over {BASELINE}", {name: (name, BASELINE) for name in result})
    if FLOOR in result:
        show_ratios(console, result, "multiples of the floor", {name: (FLOOR, name) for name in result})


def show_ratios(console: Console, result: dict[str, dict], title: str, pairs: dict[str, tuple[str, str]]) -> None:
    """Print the [`ratio`] of each variant's pair, a column for each of `ROUNDS`."""
    table = Table("variant", *(f"{stage} ×" for stage in ROUNDS), title=f"{title}: median and range of the rounds")
    for name, pair in pairs.items():
        found = (ratio(result, *pair, rounds) for rounds in ROUNDS.values())
        table.add_row(name, *(f"{median:.2f} [{least:.2f}, {most:.2f}]" for median, least, most in found))
    console.print(table)


def show_tokens(console: Console, tokens: dict[str, list[float]]) -> None:
    """Print how many tokens a step computes in TRL, how many are left, and their share."""
    table = Table("part of a step", "TRL", "left", "share", title="tokens per step, if nothing is computed twice")
    for part, (padded, left) in tokens.items():
        share = f"{left / padded:.2f}" if padded else "–"
        table.add_row(part, f"{padded:,.0f}", f"{left:,.0f}", share)
    console.print(table)


def show_memory(console: Console, title: str, peaks: dict[str, float]) -> None:
    """Print the peak memory of each variant in GiB, and relative to TRL."""
    table = Table("variant", "peak GiB", "relative to TRL", title=title)
    for name, peak in peaks.items():
        table.add_row(name, f"{peak:.2f}", f"{peak / peaks[BASELINE]:.2f}")
    console.print(table)


def draw(results: dict[str, dict[str, dict]], path: Path, baseline: str = BASELINE) -> None:
    """
    Draw one panel per setting: the time of a whole step relative to `baseline` in the same round. A bar is the median
    over the rounds, each dot is one round, and the line spans all rounds.
    """
    columns = min(3, len(results))
    rows = (len(results) + 2) // 3
    figure = Figure(figsize=(6.2 * columns, 3.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, (title, result) in zip(axes, results.items(), strict=False):
        names = list(result)[::-1]
        for place, name in enumerate(names):
            theirs = result[baseline]["whole"]
            shares = [own / other for own, other in zip(result[name]["whole"], theirs, strict=True)]
            median = statistics.median(shares)
            panel.barh(place, median, color=BAR, height=0.6)
            panel.hlines(place, min(shares), max(shares), color="black", linewidth=1)
            panel.scatter(shares, [place] * len(shares), s=9, color="black", zorder=3)
            panel.text(max(shares), place, f"  {median:.2f}", va="center", fontsize=8)
        panel.set_yticks(range(len(names)), [LABELS.get(name, name) for name in names])
        panel.set_title(title, fontsize=9)
        panel.set_xlim(0, 1.12 * panel.get_xlim()[1])
        panel.set_xlabel(f"time of a step relative to “{LABELS[baseline]}”, same round", fontsize=8)
        panel.tick_params(labelsize=8)
    for panel in axes[len(results) :]:
        panel.set_visible(False)
    if any(name.startswith("B") for result in results.values() for name in result):
        figure.supxlabel("B optimizes a different objective.", fontsize=8, style="italic")
    figure.savefig(path, dpi=110)
