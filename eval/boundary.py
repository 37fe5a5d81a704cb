"""
What a run can solve now that its base could not, and what it lost: pass@k over k and prompt by prompt.

    python -m eval.boundary --run runs/demo/A

Reads the run's `passk.json`, prints the reading and writes `boundary.png` into the run folder.
"""

import argparse
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from rich.console import Console
from scipy.stats import fisher_exact

from eval.command import command
from eval.plots import DPI, OTHER_COLOUR, VARIANT_COLOURS, arm_label, save_figure
from eval.runs import InputError, Run, load_run, require_passk
from eval.statistics import (
    MIN_PROMPTS,
    NO_INTERVAL_NOTE,
    Estimate,
    McNemar,
    bootstrap_interval,
    holm,
    mcnemar,
    paired_bootstrap_difference,
    pass_at_k_per_prompt,
    pass_at_k_upper_bound,
)
from eval.tables import Table, interval_cell, objective_notes
from trl_prorl.shown import visible


ERROR_RATE = 0.05
LISTED_PROMPTS = 12

NEW_COLOUR, LOST_COLOUR = "#009E73", "#CC79A7"


class PromptChange(NamedTuple):
    """
    One prompt that went from no correct sample to some, or back.

    Attributes:
        prompt (`int`): Its index among the evaluated prompts.
        base, trained (`int`): Correct samples of n.
        p_value (`float`): Fisher's exact test of equal rates, two-sided, after Holm's correction over all prompts.
    """

    prompt: int
    base: int
    trained: int
    p_value: float

    @property
    def separated(self) -> bool:
        """Whether the samples tell the two rates apart at 5 % over all prompts together."""
        return self.p_value <= ERROR_RATE


class BoundaryRow(NamedTuple):
    """pass@k at one k: measured with intervals over prompts, and what mean and spread of pass@1 allow at most."""

    k: int
    base: Estimate
    trained: Estimate
    gain: Estimate
    base_bound: float
    trained_bound: float


@dataclass(frozen=True)
class Boundary:
    """
    Base against trained at n samples a prompt.

    Attributes:
        prompts, n (`int`): Prompts, and samples of each.
        rows (`list[BoundaryRow]`): pass@k for powers of two up to n, n itself, and the evaluated k.
        newly_solved (`list[PromptChange]`): Prompts with no correct base sample and some of the trained model.
        lost (`list[PromptChange]`): The reverse.
        both, neither (`int`): Prompts with a correct sample on both sides, on none.
        solved_at_all (`McNemar`): Trained against base in "some sample is correct", which sampling alone also changes.
        rate_limit (`float`): Highest rate that 0 of n correct does not exclude at 95 %, 1 - 0.05^(1/n).
        separable_from (`int` or `None`): Correct samples of n that tell a prompt from one with none, among so many
            prompts; `None` if not even all n do.
        base_correct, trained_correct (`list[int]`): Correct samples of each prompt.
    """

    prompts: int
    n: int
    rows: list[BoundaryRow]
    newly_solved: list[PromptChange]
    lost: list[PromptChange]
    both: int
    neither: int
    solved_at_all: McNemar
    rate_limit: float
    separable_from: int | None
    base_correct: list[int]
    trained_correct: list[int]


def rate_limit(n: int) -> float:
    """Highest rate at which no correct sample among `n` still has a chance of 5 %; about 3/n (the rule of three)."""
    return 1 - ERROR_RATE ** (1 / n)


def changed_prompts(base, trained, n: int) -> tuple[list[PromptChange], list[PromptChange]]:
    """
    Prompts newly solved and prompts lost, with the evidence for each.

    Holm's correction is over all prompts: those with no correct sample on one side were picked by the very counts that
    are tested, so correcting over them alone would find changes where there are none.

    Args:
        base, trained (`list[int]`): Correct samples of `n`, shape (P,) each.
        n (`int`): Samples per prompt and side.

    Returns:
        `tuple[list[PromptChange], list[PromptChange]]`: Newly solved and lost, each in the order of prompts.
    """

    @cache
    def p_value(b, t):
        return float(fisher_exact([[b, n - b], [t, n - t]]).pvalue)

    counts = list(zip(base, trained, strict=True))
    adjusted = holm([p_value(b, t) for b, t in counts])
    changes = [PromptChange(i, b, t, float(p)) for i, ((b, t), p) in enumerate(zip(counts, adjusted, strict=True))]
    newly_solved = [change for change in changes if change.base == 0 < change.trained]
    lost = [change for change in changes if change.trained == 0 < change.base]
    return newly_solved, lost


def separable_from(n: int, prompts: int) -> int | None:
    """Fewest correct of `n` that Fisher's test tells from 0 of `n` at the strictest of Holm's `prompts` levels."""
    for correct in range(1, n + 1):
        if fisher_exact([[0, n], [correct, n - correct]]).pvalue * prompts <= ERROR_RATE:
            return correct
    return None


def draw_sizes(n: int, evaluated=()) -> list[int]:
    """Powers of two up to `n`, `n` itself and the evaluated sizes, ascending."""
    return sorted({1 << power for power in range(n.bit_length())} | {n} | {k for k in evaluated if 1 <= k <= n})


def boundary(run_passk: dict) -> Boundary:
    """
    What changed between base and trained, from the content of `passk.json` (or one of its `others`).

    Args:
        run_passk (`dict`): With `n`, and `correct` (counts per prompt, shape (P,), P >= 2) under `base` and `trained`.

    Returns:
        [`Boundary`]

    Raises:
        InputError: If a key is missing or the two sides have different prompts.
    """
    try:
        n, base, trained = run_passk["n"], run_passk["base"]["correct"], run_passk["trained"]["correct"]
    except KeyError as error:
        raise InputError(f"passk.json has no {error}; write it again with `python -m eval.passk`") from error
    if len(base) != len(trained) or len(base) < 2:
        raise InputError(
            f"passk.json has counts of {len(base)} base and {len(trained)} trained prompts; at least 2 prompts, the "
            "same on both sides, are needed: write it again with `python -m eval.passk`"
        )

    def row(k):
        sides = [pass_at_k_per_prompt(counts, n, k) for counts in (base, trained)]
        measured = [Estimate(float(side.mean()), *bootstrap_interval(side)) for side in sides]
        bounds = [pass_at_k_upper_bound(np.array(counts) / n, k, n=n) for counts in (base, trained)]
        return BoundaryRow(k, *measured, paired_bootstrap_difference(sides[1], sides[0]), *bounds)

    newly_solved, lost = changed_prompts(base, trained, n)
    solved = np.array([base, trained]) > 0
    return Boundary(
        prompts=len(base),
        n=n,
        rows=[row(k) for k in draw_sizes(n, run_passk.get("k", ()))],
        newly_solved=newly_solved,
        lost=lost,
        both=int(solved.all(axis=0).sum()),
        neither=int((~solved).all(axis=0).sum()),
        solved_at_all=mcnemar(solved[1], solved[0]),
        rate_limit=rate_limit(n),
        separable_from=separable_from(n, len(base)),
        base_correct=list(base),
        trained_correct=list(trained),
    )


def boundary_table(result: Boundary, title: str = "pass@k") -> Table:
    """pass@k of both sides, a row per k, with the bounds beside what was measured."""
    rows = [
        [
            str(row.k),
            interval_cell(row.base, ".3f"),
            format(row.base_bound, ".3f"),
            interval_cell(row.trained, ".3f"),
            format(row.trained_bound, ".3f"),
            interval_cell(row.gain, "+.3f"),
        ]
        for row in result.rows
    ]
    notes = [
        "[95 % bootstrap over prompts]. The bound is what mean and spread of pass@1 over prompts allow pass@k to be at "
        "most (Jensen), both estimated without bias; at k = 1 and 2 it is pass@k itself.",
        *([NO_INTERVAL_NOTE] if result.prompts < MIN_PROMPTS else []),
    ]
    return Table(title, ["k", "base", "bound", "trained", "bound", "gain"], rows, notes)


def boundary_statements(result: Boundary) -> list[str]:
    """What the counts say of newly solved and lost prompts, and what they cannot say."""
    test = result.solved_at_all
    lines = [
        f"At {result.n} samples each of {result.prompts} prompts: {len(result.newly_solved)} newly solved, "
        f"{len(result.lost)} lost, {result.both} solved by both, {result.neither} by neither. Sampling alone turns "
        f"prompts both ways; that the two counts differ so much by chance has p = {test.p_value:.2g} (exact McNemar)."
    ]
    for name, changes in (("newly solved", result.newly_solved), ("lost", result.lost)):
        if changes:
            told = sum(change.separated for change in changes)
            lines.append(
                f"Of the {len(changes)} {name}, sampling noise is excluded for {told} (Fisher's exact test against base, "
                f"Holm over all {result.prompts} prompts, 5 %): {_listed(changes, result.n)}."
            )
    reach = (
        f"a prompt that had none needs up to {result.separable_from} of {result.n} correct to be told apart"
        if result.separable_from
        else f"not even {result.n} of {result.n} tell a single prompt apart; draw more samples"
    )
    lines.append(
        f"0 of {result.n} correct does not mean impossible: at 95 % it excludes only rates above "
        f"{result.rate_limit:.3f}. With {result.prompts} prompts {reach}."
    )
    return lines


def _listed(changes: list[PromptChange], n: int) -> str:
    """The clearest changes first; a star where sampling noise is excluded."""
    ranked = sorted(changes, key=lambda change: (change.p_value, -abs(change.trained - change.base), change.prompt))
    shown = [
        f"#{change.prompt} {change.base} → {change.trained}{'*' if change.separated else ''}"
        for change in ranked[:LISTED_PROMPTS]
    ]
    rest = len(changes) - len(shown)
    return f"prompt and correct of {n}, * where excluded: {', '.join(shown)}{f', {rest} more' if rest else ''}"


def plot_boundary(result: Boundary, path: Path, title: str = "", trained_colour: str = OTHER_COLOUR) -> None:
    """
    Write two panels as a PNG: pass@k against k with bands over prompts, and trained against base rate of each prompt.

    Args:
        result ([`Boundary`]): What to draw.
        path (`Path`): The file.
        title (`str`, *optional*): Heading of the picture.
        trained_colour (`str`, *optional*): Colour of the trained model, the arm's.
    """
    figure = Figure(figsize=(14, 6.2), dpi=DPI)
    curves, rates = figure.subplots(1, 2, width_ratios=(1.25, 1))
    ks = [row.k for row in result.rows]
    base_colour = "#000000" if trained_colour != "#000000" else OTHER_COLOUR
    for name, colour, marker, line in (("base", base_colour, "o", "--"), ("trained", trained_colour, "s", "-")):
        points = [getattr(row, name) for row in result.rows]
        curves.fill_between(ks, [p.low for p in points], [p.high for p in points], color=colour, alpha=0.15, lw=0)
        curves.plot(ks, [p.value for p in points], line, color=colour, marker=marker, linewidth=1.8, label=name)
        bounds = [getattr(row, f"{name}_bound") for row in result.rows]
        curves.plot(ks, bounds, ":", color=colour, linewidth=1.2, label=f"{name}: bound from pass@1")
    curves.set_xscale("log", base=2)
    curves.xaxis.set_major_locator(FixedLocator(ks))
    curves.xaxis.set_minor_locator(NullLocator())
    curves.xaxis.set_major_formatter(lambda k, _: f"{k:g}")
    curves.set(title="pass@k, bands: 95 % over prompts", xlabel="k, samples drawn", ylabel="pass@k", ylim=(0, 1.02))
    curves.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=4, frameon=False)
    _draw_rates(rates, result)
    for axes in (curves, rates):
        axes.grid(alpha=0.2)
    figure.suptitle(title, fontsize=13)
    figure.tight_layout()
    save_figure(figure, path)


def _draw_rates(axes, result: Boundary) -> None:
    """Counts fall on a grid, so prompts that share a point are drawn as one marker of their number's area."""
    pairs = list(zip(result.base_correct, result.trained_correct, strict=True))
    groups = {
        f"newly solved: {len(result.newly_solved)}": (NEW_COLOUR, "^", lambda b, t: b == 0 < t),
        f"lost: {len(result.lost)}": (LOST_COLOUR, "v", lambda b, t: t == 0 < b),
        f"others: {result.both + result.neither}": (OTHER_COLOUR, "o", lambda b, t: (b == 0) == (t == 0)),
    }
    largest = max(pairs.count(pair) for pair in set(pairs))
    for label, (colour, marker, belongs) in groups.items():
        members = sorted({pair for pair in pairs if belongs(*pair)})
        area = [22 + 380 * (pairs.count(pair) - 1) / max(largest - 1, 1) for pair in members]
        x, y = ([pair[side] / result.n for pair in members] for side in (0, 1))
        axes.scatter(x, y, s=area, color=colour, marker=marker, alpha=0.65, linewidths=0, label=label)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--", zorder=0)
    axes.set(
        title=f"Each prompt at n = {result.n}; area: prompts (1 to {largest})",
        xlabel="base, share of samples correct",
        ylabel="trained, share of samples correct",
        xlim=(-0.05, 1.05),
        ylim=(-0.05, 1.05),
    )
    legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=len(groups), frameon=False)
    for handle in legend.legend_handles:
        handle.set_sizes([60])


def select_measured(run: Run, other: str | None = None) -> dict:
    """
    The run's own evaluation, or that of one of the tasks it was not trained on.

    Raises:
        InputError: If it was not evaluated.
    """
    passk = require_passk(run)
    if other is None:
        return passk
    others = passk.get("others") or {}
    if other not in others:
        known = ", ".join(others) or "none"
        raise InputError(f"--other {other}: '{run.path / 'passk.json'}' has no such task (it has: {known})")
    return others[other]


@command
def main(argv=None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.boundary", description="What a run gained and lost over base."
    )
    parser.add_argument("--run", action="append", required=True, type=Path, help="run folder; may be repeated")
    parser.add_argument("--other", help="a task that was not trained, as passk.json names it (forgetting)")
    args = parser.parse_args(argv)
    console = Console()
    runs = [load_run(folder) for folder in args.run]
    results = [boundary(select_measured(run, args.other)) for run in runs]
    for run, result in zip(runs, results, strict=True):
        title = f"{arm_label(run)}: {args.other or 'held-out prompts'}, base against trained"
        console.print(boundary_table(result, title).to_rich())
        for line in boundary_statements(result):
            console.print(f"- {visible(line)}", markup=False, highlight=False)
        suffix = f"_{args.other.replace('/', '_')}" if args.other else ""
        picture = run.path / f"boundary{suffix}.png"
        plot_boundary(result, picture, title, VARIANT_COLOURS.get(run.variant, OTHER_COLOUR))
        print(f"Wrote {picture}.")
    for line in objective_notes(runs):
        console.print(f"- {visible(line)}", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
