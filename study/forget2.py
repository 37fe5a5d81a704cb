"""
Block `forget2` of the third protocol, from the tables: what a KL that acts keeps of the tasks that are not trained.
`python -m study.forget2` prints it.
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from study.hierarchical import Contrast
from study.matrix import Block, RunKey, read_matrix
from study.registered import OTHER_GOLD, kept, other_tasks, over_bases
from study.rivals import with_holm
from study.tables import Tables, read_tables
from trl_prorl.eval.pages.table import interval_cell


BLOCK = "forget2"
PLAIN = "plain"
REPLAYED = "replayed_kl"
ACTS_WITHIN = 0.5  # of plain's KL on the other tasks' prompts
KEPT = 0.5  # of what plain loses, by the prediction


@dataclass(frozen=True)
class Difference:
    """Gold of the other tasks at the end, of an arm that acts less plain's; p after Holm is `adjusted`."""

    arm: str
    contrast: Contrast
    adjusted: float | None = None


def kl_on_others(tables: Tables, key: RunKey) -> float:
    """Return a run's KL to the base at its end on the prompts of the tasks that were not trained, nats a token."""
    points = tables.points.loc[[key]]
    is_own = points["task"] == points["task"].iloc[0]  # comes first
    at_the_end = points["step"] == points["step"].max()
    return float(points.loc[at_the_end & ~is_own, "kl_to_base"].mean())


def lost(tables: Tables, key: RunKey) -> float:
    """Return what a run has lost of the base's gold on the tasks that were not trained."""
    gold = other_tasks(tables, key)[OTHER_GOLD]
    return float(gold.iloc[0] - gold.iloc[-1])


def measures(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return a row for each run, by `arm`, `base` and `seed`: `kl` on the other tasks' prompts, what is `kept` and `lost`
    of their gold, and `gold` and `greedy` of the task that was trained.
    """
    rows = []
    for run in block.runs:
        key = run.key
        if key not in tables.runs.index:
            continue
        row = {"arm": key.arm, "base": key.base_seed, "seed": key.seed}
        row |= {"kl": kl_on_others(tables, key), "kept": kept(tables, key), "lost": lost(tables, key)}
        row |= {name: float(tables.runs.loc[key, name]) for name in ("gold", "greedy")}
        rows.append(row)
    columns = ["arm", "base", "seed", "kl", "kept", "lost", "gold", "greedy"]
    return pd.DataFrame(rows, columns=columns).set_index(["arm", "base", "seed"])


def means(block: Block, tables: Tables) -> pd.DataFrame:
    """Return the means of [`measures`] by arm, the seeds of a base averaged first, and whether the arm `acts`."""
    of_bases = measures(block, tables).groupby(level=["arm", "base"]).mean()
    found = of_bases.groupby(level="arm").mean().reindex([arm for arm in block.arms if arm in of_bases.index])
    if PLAIN in found.index:
        found["acts"] = found["kl"] <= ACTS_WITHIN * found.loc[PLAIN, "kl"]
    return found


def acting(block: Block, tables: Tables) -> list[str]:
    """Return the arms that pass the manipulation check; only these are tested."""
    found = means(block, tables)
    if "acts" not in found:
        return []
    return [arm for arm in found.index if arm != PLAIN and found.loc[arm, "acts"]]


def differences(block: Block, tables: Tables) -> list[Difference]:
    """Return the registered differences: of each arm that acts, with Holm over them."""
    found = []
    scores = measures(block, tables)["kept"].unstack("arm")
    for arm in acting(block, tables):
        less_plain = (scores[arm] - scores[PLAIN]).dropna()
        if len(less_plain):
            found.append(Difference(arm, over_bases(less_plain)))
    return with_holm(found)


def share_kept(block: Block, tables: Tables) -> Contrast | None:
    """
    Return the share of what plain loses that the replayed KL keeps, (plain's loss - its loss) / plain's loss, over the
    bases that have both, the seeds of a base averaged first; `None` if it does not act.
    """
    if REPLAYED not in acting(block, tables):
        return None
    losses = measures(block, tables)["lost"].unstack("arm")[[PLAIN, REPLAYED]].dropna()
    of_bases = losses.groupby(level="base").mean()
    return over_bases((of_bases[PLAIN] - of_bases[REPLAYED]) / of_bases[PLAIN])


def is_refuted(share: Contrast) -> bool:
    """The replayed KL keeps half of what plain loses: refuted by an interval that excludes .5 from above."""
    return share.estimate.high < KEPT


def main() -> None:
    """Print the means of all arms with the manipulation check, the differences, and what becomes of the prediction."""
    root = Path.cwd()
    tables = read_tables(root)
    (block,) = read_matrix(root).selected([BLOCK]).blocks
    print(f"means over bases\n{means(block, tables).to_string()}\n")
    for one in differences(block, tables):
        interval = interval_cell(one.contrast.estimate, "+.3f")
        print(f"other tasks, {one.arm} less {PLAIN}: {interval}, p {one.adjusted:.3f} after Holm")
    share = share_kept(block, tables)
    if share is None:
        print("the replayed KL is not tested")
    else:
        print(f"kept of what plain loses: {interval_cell(share.estimate, '+.3f')}; refuted: {is_refuted(share)}")


if __name__ == "__main__":
    main()
