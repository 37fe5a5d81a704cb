"""
Block `dose` of the third protocol, from the tables: does the gold that a KL keeps follow the base's share of right
among paid answers? `python -m study.dose` prints it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from study.hierarchical import Contrast
from study.matrix import Block, RunKey, read_matrix
from study.registered import over_bases
from study.rivals import OUTCOMES, control_of, with_holm
from study.tables import Tables, read_tables
from trl_prorl.eval.pages.table import interval_cell


BLOCK = "dose"
PLAIN = "plain"
# D1: the control's gold by the base's share.
LESS = 0.05
WITHIN = 0.07
SLOPES = (0.8, 1.1)
REFUTED_BELOW = 0.5
FLAT = 0.3  # D2: plain's slope


@dataclass(frozen=True)
class Slope:
    """
    How an `outcome` of an arm rises with the base's share: the mean of the slopes of all bases, a `contrast`, and its
    p-value after Holm, `adjusted`, `None` where the slope is not registered.
    """

    arm: str
    outcome: str
    contrast: Contrast
    adjusted: float | None = None


class Grade(NamedTuple):
    """Whether a prediction is met, and whether it is refuted, which the protocol tells apart."""

    met: bool
    refuted: bool


def share_of_base(tables: Tables, base: RunKey) -> float:
    """Return the share of right among the base's paid samples of the test questions; a reward is 0 or 1."""
    row = tables.stops.loc[[base]].iloc[0]
    return float(row["gold"] / row["reward"])


def by_share(block: Block, tables: Tables, arm: str, outcome: str) -> pd.DataFrame:
    """
    Return an outcome of an arm and the base's `share`: a row for each base seed and family, the seeds of a base
    averaged. A base that lacks one of the families is left out.
    """
    rows = []
    for run in block.runs:
        key = run.key
        if key.arm == arm and key in tables.runs.index and key.base in tables.stops.index:
            share = share_of_base(tables, key.base)
            score = float(tables.runs.loc[key, outcome])
            rows.append({"base": key.base_seed, "family": key.family, "share": share, outcome: score})
    found = pd.DataFrame(rows, columns=["base", "family", "share", outcome])
    means = found.groupby(["base", "family"]).mean()
    families_of_base = means.groupby(level="base")[outcome].transform("size")
    return means[families_of_base == len(block.families)]


def slope_of(points: pd.DataFrame, outcome: str) -> float:
    """Return the slope of the straight line of least squares through an outcome by `share`."""
    slope, _ = np.polyfit(points["share"], points[outcome], 1)
    return float(slope)


def slope_over_bases(block: Block, tables: Tables, arm: str, outcome: str) -> Slope | None:
    """Return the mean slope of an arm, one line for each base; `None` without a base that has all strictnesses."""
    points = by_share(block, tables, arm, outcome)
    if points.empty:
        return None
    of_bases = {base: slope_of(of_base, outcome) for base, of_base in points.groupby(level="base")}
    return Slope(arm, outcome, over_bases(pd.Series(of_bases)))


def slopes(block: Block, tables: Tables) -> list[Slope]:
    """
    Return the registered slopes, of sampled gold, the control's first, with Holm over both; and the same of greedy
    gold, beside them.
    """
    every = []
    for outcome in OUTCOMES:
        arms = (control_of(block).key.arm, PLAIN)
        found = [slope_over_bases(block, tables, arm, outcome) for arm in arms]
        found = [one for one in found if one is not None]
        if outcome == "gold":
            found = with_holm(found)
        every += found
    return every


def away_from_prediction(block: Block, tables: Tables) -> pd.Series:
    """Return, for each strictness, the control's gold less what D1 predicts, the share less 0.05: means over bases."""
    points = by_share(block, tables, control_of(block).key.arm, "gold")
    away = points["gold"] - (points["share"] - LESS)
    return away.groupby(level="family").mean().reindex(block.families)


def grade_d1(slope: Contrast, away: pd.Series) -> Grade:
    """
    D1: the control's gold is the share less 0.05, within 0.07, and the slope lies between .8 and 1.1; refuted if the
    slope's interval is below .5 as a whole.
    """
    near = bool((away.abs() <= WITHIN).all())
    low, high = SLOPES
    return Grade(near and low <= slope.value <= high, slope.estimate.high < REFUTED_BELOW)


def grade_d2(slope: Contrast) -> Grade:
    """D2: plain's slope is within .3 of 0; refuted if its interval excludes [-.3, .3], which no part of it meets."""
    _, low, high = slope.estimate
    return Grade(abs(slope.value) <= FLAT, low > FLAT or high < -FLAT)


def format_slope(slope: Slope) -> str:
    """Write a line of the printed result."""
    bases = slope.contrast.freedom + 1
    line = f"{slope.outcome}, {slope.arm}: slope {interval_cell(slope.contrast.estimate, '+.3f')}, {bases} bases"
    if slope.adjusted is not None:
        line += f", p {slope.adjusted:.3f} after Holm"
    return line


def means_by_strictness(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return means over bases, a row for each strictness: the base's `share`, both outcomes of the control and of plain,
    and how far the control's sampled gold is `away` from D1.
    """
    columns = {}
    for arm in (control_of(block).key.arm, PLAIN):
        for outcome in OUTCOMES:
            means = by_share(block, tables, arm, outcome).groupby(level="family").mean()
            columns.setdefault("share", means["share"])
            columns[f"{arm}, {outcome}"] = means[outcome]
    columns["away"] = away_from_prediction(block, tables)
    return pd.DataFrame(columns).reindex(block.families)


def control_less_plain(block: Block, tables: Tables) -> dict[tuple[str, str], Contrast]:
    """Return the control's outcome less plain's, over bases, by family and outcome: exploratory."""
    found = {}
    for outcome in OUTCOMES:
        of_control = by_share(block, tables, control_of(block).key.arm, outcome)[outcome]
        of_plain = by_share(block, tables, PLAIN, outcome)[outcome]
        less = (of_control - of_plain).dropna()
        for family, of_bases in less.groupby(level="family"):
            found[family, outcome] = over_bases(of_bases)
    return found


def grades(block: Block, tables: Tables) -> dict[str, Grade]:
    """Return what becomes of D1 and D2; of one without runs, nothing."""
    registered = {slope.arm: slope.contrast for slope in slopes(block, tables) if slope.adjusted is not None}
    found = {}
    control = control_of(block).key.arm
    if control in registered:
        found["D1"] = grade_d1(registered[control], away_from_prediction(block, tables))
    if PLAIN in registered:
        found["D2"] = grade_d2(registered[PLAIN])
    return found


def main() -> None:
    """Print shares and scores of all strictnesses, the slopes, and what becomes of the predictions."""
    root = Path.cwd()
    tables = read_tables(root)
    (block,) = read_matrix(root).selected([BLOCK]).blocks
    print(f"means over bases\n{means_by_strictness(block, tables).to_string()}\n")
    for slope in slopes(block, tables):
        print(format_slope(slope))
    for name, grade in grades(block, tables).items():
        print(f"{name}: {grade}")


if __name__ == "__main__":
    main()
