"""
The second protocol's outcomes and tests: differences between arms, paired, by the t-test over bases, the seeds of a
base averaged first.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from eval.analysis.statistics import holm
from study.differences import compared
from study.hierarchical import Contrast
from study.matrix import Block, RunKey
from study.scores import finished
from study.tables import Tables


SPAN = 20  # steps over which gold and reward of the training batches are averaged
ROUNDING = 1e-9  # of such a mean: two equal ones may differ by less


def way(tables: Tables, key: RunKey) -> pd.DataFrame:
    """
    A run by step: `gold` and `reward` of its batches, means of the last 20 steps; `drift`, KL to the base in nats a
    token, linear between the checkpoints at which it was measured.
    """
    curve = tables.curves.loc[key].set_index("step")
    measured = curve["drift"].dropna()
    drift = np.interp(curve.index, [0, *measured.index], [0.0, *measured])
    return curve[["gold", "reward"]].rolling(SPAN).mean().assign(drift=drift).dropna()


def fall(tables: Tables, key: RunKey) -> float:
    """Gold's highest value of a run less its last. Noise raises it a little, in all arms alike."""
    gold = way(tables, key)["gold"]
    return float(gold.max() - gold.iloc[-1])


def beside(tables: Tables, key: RunKey) -> pd.DataFrame:
    """
    A run's held-out gold, and beside it the mean gold of the tasks that were not trained, by step from the base on;
    the perplexity of real text where the base can do none of them.
    """
    points = tables.points.loc[key].set_index("step")
    own = points["task"] == points["task"].iloc[0]  # comes first
    trained, others = points[own], points.loc[~own, "gold"].groupby(level=0).mean()
    text = trained["text_perplexity"].rename("perplexity of real text")
    return pd.concat([trained["gold"], others.rename("gold of other tasks") if others.iloc[0] else text], axis=1)


def kept(tables: Tables, key: RunKey) -> float:
    """Mean gold, at the end, of the tasks that were not trained."""
    return float(beside(tables, key)["gold of other tasks"].iloc[-1])


def kept_at_equal_gold(tables: Tables, key: RunKey) -> float:
    """
    Mean gold of the tasks that were not trained, at the checkpoint after which the run's own gold is nearest to the
    lowest final one of all arms of its pair.
    """
    family, _, *pair = key
    arms = tables.points.loc[family].index.unique()
    runs = [beside(tables, RunKey(family, *one)) for one in arms if list(one[1:]) == pair]
    lowest = min(run["gold"].iloc[-1] for run in runs)
    trained = beside(tables, key).iloc[1:]  # without the base
    return float(trained["gold of other tasks"].iloc[(trained["gold"] - lowest).abs().argmin()])


def _of_each(outcome: Callable[[Tables, RunKey], float]) -> Callable[[Tables, RunKey, RunKey], float]:
    return lambda tables, key, other: outcome(tables, key) - outcome(tables, other)


def at_equal(name: str) -> Callable[[Tables, RunKey, RunKey], float]:
    """Gold of a run less another's, each when it first reaches the lower of the two runs' highest `name`."""

    def difference(tables: Tables, key: RunKey, other: RunKey) -> float:
        ways = [way(tables, one) for one in (key, other)]
        level = min(one[name].max() for one in ways)
        one, two = (each["gold"][(each[name] >= level - ROUNDING).idxmax()] for each in ways)
        return float(one - two)

    return difference


def above_best(tables: Tables, key: RunKey, other: RunKey) -> float:
    """
    A run's gold after its last step less the highest gold of another's training batches: what is left of their
    difference if the other had stopped at its best step. Gold itself chooses that step, and noise raises its mean of
    20 steps, so a stop by anything else leaves more.
    """
    end = tables.runs.loc[key, "gold"]
    best = way(tables, other)["gold"].max()
    return float(end - best)


def right_of_paid(tables: Tables, key: RunKey) -> float:
    """
    The share of right answers among those that the base was paid for, where the reward is 0 or 1: of a run's first
    batch, which its base samples.
    """
    first = tables.curves.loc[key].set_index("step").loc[1]
    return float(first["gold"] / first["reward"])


# Of a run less another's of the same pair, by the name that `registered.outcomes` of the matrix has.
OUTCOMES = {
    "gold": _of_each(lambda tables, key: float(tables.runs.loc[key, "gold"])),
    "fall": _of_each(fall),
    "kept": _of_each(kept),
    "kept at equal gold": _of_each(kept_at_equal_gold),
    "gold at equal proxy": at_equal("reward"),
    "gold at equal KL": at_equal("drift"),
    "gold above the other's best": above_best,
}
# Exploratory, where a reward can be gamed.
BESIDE = ("gold at equal proxy", "gold at equal KL", "gold above the other's best")
ALL_OR_NOTHING = ("gamed_reverse",)  # families of such a reward that is 0 or 1


def over_bases(values: pd.Series) -> Contrast:
    """The mean of values by (base seed, seed), and its error: that of n values, one for each base."""
    by_base = values.groupby(level=0).mean()
    return Contrast(float(by_base.mean()), float(by_base.sem()), len(by_base) - 1)


def registered(block: Block, tables: Tables) -> list[dict[str, Any]]:
    """
    A row for each family and two arms that the block compares: `family`, `arm`, `less`, `pairs`, `contrasts` by
    outcome, and `adjusted`, p after Holm over the block's registered tests, `None` for what is exploratory.
    """
    outcomes = block.registered["outcomes"]
    names = [*outcomes, *(BESIDE if "fall" in outcomes else ())]
    pairs = [tuple(arm + block.suffix for arm in pair) for pair in block.registered["differences"]]
    pairs = [pair for pair in pairs if set(pair) <= set(block.arms)]  # a selection may lack some
    runs, rows, tests = finished(block, tables), [], []
    every = dict.fromkeys([*pairs, *((arm, less) for arm, less, _ in compared(block))])
    for family, (arm, less) in product(block.families, every):
        both = runs[family][[arm, less]].dropna()
        if both.empty:
            continue
        row = {"family": family, "arm": arm, "less": less, "pairs": len(both), "contrasts": {}, "adjusted": {}}
        for name in names:
            values = {pair: OUTCOMES[name](tables, *keys) for pair, *keys in both.itertuples()}
            row["contrasts"][name] = over_bases(pd.Series(values))
            if (arm, less) in pairs and name in outcomes and row["contrasts"][name].freedom > 0:
                tests.append((row, name))
        rows.append(row)
    for (row, name), p in zip(tests, holm([row["contrasts"][name].p_value for row, name in tests]), strict=True):
        row["adjusted"][name] = float(p)
    return rows


def paid_and_right(block: Block, tables: Tables) -> list[dict[str, Any]]:
    """
    For each family whose reward is 0 or 1: the mean over bases of `right_of_paid`, `share`, and of gold at the end of
    the control, `control`. Exploratory.
    """
    control = "control" + block.suffix
    rows = []
    for family in block.families:
        if family not in ALL_OR_NOTHING or control not in block.arms:
            continue
        keys = finished(block, tables)[family][control].dropna()
        shares = keys.map(lambda key: right_of_paid(tables, key))
        golds = keys.map(lambda key: tables.runs.loc[key, "gold"])
        share = shares.groupby(level=0).mean().mean()
        gold = golds.groupby(level=0).mean().mean()
        rows.append({"family": family, "share": float(share), "control": float(gold)})
    return rows


def gold_differences(block: Block, tables: Tables) -> pd.DataFrame:
    """`registered`'s contrasts of gold with the columns that `pictures.forest` reads of `differences`."""
    rows = [(row, row["contrasts"]["gold"]) for row in registered(block, tables)]
    return pd.DataFrame(
        {**row, "reference": row["less"], "contrast": gold, "exploratory": "gold" not in row["adjusted"]}
        for row, gold in rows
    )
