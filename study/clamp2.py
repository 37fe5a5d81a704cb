"""
Block `clamp2` of the third protocol, from the tables: what resets give back of what a clamp takes, and what a run can
solve in many samples. `python -m study.clamp2` prints it.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from study.hierarchical import Contrast
from study.matrix import BASE_ARM, Block, read_matrix
from study.passk import moments, upper_bound
from study.registered import over_bases, registered
from study.scores import finished
from study.tables import Tables, read_tables
from trl_prorl.eval.analysis.statistics import pass_at_k_per_prompt
from trl_prorl.eval.pages.table import interval_cell


BLOCK = "clamp2"
PLAIN = "plain"
BETAS = (1, 10)
RESETS = (40, 200)  # steps from one to the next
LEVEL = 0.05  # C3: B is plain, within so much
KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def arm_of(beta: int, every: int) -> str:
    """Return the name of A with a coefficient and a reset every so many steps."""
    return f"A_beta{beta}" if every == 40 else f"A_K{every}_beta{beta}"


def golds(block: Block, tables: Tables) -> pd.DataFrame:
    """Return sampled gold: a row for each pair of base seed and seed, a column for each arm; NaN without a run."""
    (family,) = block.families
    keys = finished(block, tables)[family]
    return keys.map(lambda key: tables.runs.loc[key, "gold"], na_action="ignore").astype(float)


def given_back(block: Block, tables: Tables, beta: int, every: int) -> float:
    """
    Return (A - control) / (plain - control), of sampled gold, each a mean over the bases that have all three; NaN
    where the control is not below plain: there is nothing to give back.
    """
    arms = [arm_of(beta, every), f"control_beta{beta}", PLAIN]
    complete = golds(block, tables)[arms].dropna()
    freed, clamped, plain = complete.groupby(level=0).mean().mean()
    if not plain > clamped:
        return np.nan
    return float((freed - clamped) / (plain - clamped))


def all_given_back(block: Block, tables: Tables) -> pd.DataFrame:
    """Return what is given back: a row for each coefficient, a column for each number of steps between resets."""
    cells = {every: {beta: given_back(block, tables, beta, every) for beta in BETAS} for every in RESETS}
    return pd.DataFrame(cells)


def has_all_clamps(block: Block, tables: Tables) -> bool:
    """Return whether plain, and the control and A of every coefficient and number of steps, have a run."""
    needed = {PLAIN}
    for beta in BETAS:
        needed |= {f"control_beta{beta}", *(arm_of(beta, every) for every in RESETS)}
    return needed <= {run.key.arm for run in block.runs if run.key in tables.runs.index}


def c1_is_refuted(back: pd.DataFrame) -> bool | None:
    """
    C1, what is given back grows with the number of resets: refuted if at either beta K = 40 is not above K = 200.
    `None` where neither beta clamps.
    """
    often, rarely = RESETS
    tested = back.dropna()
    if tested.empty:
        return None
    return bool((tested[often] <= tested[rarely]).any())


def c2_is_refuted(back: pd.DataFrame) -> bool | None:
    """
    C2, what is given back falls with beta: refuted if at either K it is not lower at beta = 10 than at beta = 1.
    `None` where not both clamp.
    """
    weak, strong = BETAS
    tested = back.dropna(axis=1)
    if tested.empty:
        return None
    return bool((tested.loc[strong] >= tested.loc[weak]).any())


def c3_is_refuted(less_plain: Contrast) -> bool:
    """C3, B is plain, within 0.05: refuted by an interval of B - plain that excludes [-0.05, +0.05]."""
    _, low, high = less_plain.estimate
    return low > LEVEL or high < -LEVEL


def c4_is_refuted(gain: Contrast) -> bool:
    """C4, pass@256 of plain is above the base's: refuted by an interval of plain - base whose upper end is below 0."""
    return gain.estimate.high < 0


def of_questions(block: Block, tables: Tables, measure: Callable[[list[int], int], float]) -> pd.DataFrame:
    """
    Return a measure of the right ones of each question's n samples, `measure(correct, n)`: a row for each pair of base
    seed and seed, a column for each arm of which they were counted, and for the base.
    """
    found: dict[str, dict] = {}
    for run in block.runs:
        if run.key not in tables.passk.index:
            continue
        pair = (run.key.base_seed, run.key.seed)
        for key in (run.key, run.key.base):
            rows = tables.passk.loc[[key]]
            found.setdefault(key.arm, {})[pair] = measure(rows["correct"].tolist(), int(rows["n"].iloc[0]))
    return pd.DataFrame(found)


def pass_at(block: Block, tables: Tables, k: int) -> pd.DataFrame:
    """Return pass@k in the places of `of_questions`."""
    return of_questions(block, tables, lambda correct, n: float(pass_at_k_per_prompt(correct, n, k).mean()))


def bounds(block: Block, tables: Tables, k: int) -> pd.DataFrame:
    """Return the highest pass@k that mean and variance of the questions' chances allow, in the same places."""
    return of_questions(block, tables, lambda correct, n: upper_bound(*moments(correct, n), k))


def less_base(block: Block, tables: Tables, arm: str, k: int) -> Contrast | None:
    """Return pass@k of an arm less the base's; `None` where it was not measured."""
    scores = pass_at(block, tables, k)
    if arm not in scores:
        return None
    return over_bases((scores[arm] - scores[BASE_ARM]).dropna())


def widened(block: Block, tables: Tables) -> dict[str, Contrast]:
    """Return pass@k less the base's at the largest k, by arm, of those of which it was measured."""
    found = {}
    largest = max(ks_of(block))
    for arm in block.arms:
        difference = less_base(block, tables, arm, largest)
        if difference is not None:
            found[arm] = difference
    return found


def ks_of(block: Block) -> list[int]:
    """Return the values of k for which the block draws enough samples."""
    samples = max(run.evaluation["passk"]["samples"] for run in block.runs if "passk" in run.evaluation)
    return [k for k in KS if k <= samples]


def mean_pass_at_k(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return pass@k, means over bases: a row for each k, a column for the base and for each arm of which it was measured.
    """
    found = {k: pass_at(block, tables, k).groupby(level=0).mean().mean() for k in ks_of(block)}
    return pd.DataFrame(found).T


def mean_bounds(block: Block, tables: Tables) -> pd.DataFrame:
    """Return the bounds on pass@k in the places of [`mean_pass_at_k`], for k of 2 or more."""
    found = {k: bounds(block, tables, k).groupby(level=0).mean().mean() for k in ks_of(block) if k > 1}
    return pd.DataFrame(found).T


def refuted(block: Block, tables: Tables) -> dict[str, bool | None]:
    """Return which predictions are refuted; `None` of one that is not tested, and nothing of one that lacks runs."""
    found = {}
    if has_all_clamps(block, tables):
        back = all_given_back(block, tables)
        found |= {"C1": c1_is_refuted(back), "C2": c2_is_refuted(back)}
    for row in registered(block, tables):
        if row["less"] == PLAIN and "gold" in row["adjusted"]:
            found[f"C3 of {row['arm']}"] = c3_is_refuted(row["contrasts"]["gold"])
    gain = widened(block, tables).get(PLAIN)
    if gain is not None:
        found["C4"] = c4_is_refuted(gain)
    return found


def main() -> None:
    """Print the registered differences, what is given back, pass@k with its bounds, and what becomes of C1 to C4."""
    root = Path.cwd()
    tables = read_tables(root)
    (block,) = read_matrix(root).selected([BLOCK]).blocks
    for row in registered(block, tables):
        if "gold" in row["adjusted"]:
            interval = interval_cell(row["contrasts"]["gold"].estimate, "+.3f")
            print(f"gold, {row['arm']} less {row['less']}: {interval}, p {row['adjusted']['gold']:.3f} after Holm")
    print(f"\ngiven back, by beta and steps between resets\n{all_given_back(block, tables).to_string()}")
    print(f"\npass@k, means over bases\n{mean_pass_at_k(block, tables).to_string()}")
    print(f"\nits bounds\n{mean_bounds(block, tables).to_string()}\n")
    largest = max(ks_of(block))
    for arm, difference in widened(block, tables).items():
        print(f"pass@{largest}, {arm} less the base: {interval_cell(difference.estimate, '+.3f')}")
    for name, is_refuted in refuted(block, tables).items():
        print(f"{name} is {'not tested' if is_refuted is None else 'refuted' if is_refuted else 'not refuted'}")


if __name__ == "__main__":
    main()
