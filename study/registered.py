"""
The second protocol's outcomes and tests: differences between arms, paired, by the t-test over bases, the seeds of a
base averaged first.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from study.differences import compared
from study.hierarchical import Contrast
from study.matrix import Block, RunKey
from study.scores import finished
from study.tables import Tables
from trl_prorl.eval.analysis.statistics import holm


SPAN = 20  # steps over which gold and reward of the training batches are averaged
ROUNDING = 1e-9  # of such a mean: two equal ones may differ by less
OTHER_GOLD = "gold of other tasks"
OfOneRun = Callable[[Tables, RunKey], float]
OfTwoRuns = Callable[[Tables, RunKey, RunKey], float]


def smoothed_curve(tables: Tables, key: RunKey) -> pd.DataFrame:
    """
    Return a run by step: `gold` and `reward` of its batches, means of the last 20 steps; `drift`, KL to the base in
    nats a token, linear between the checkpoints at which it was measured.
    """
    curve = tables.curves.loc[key].set_index("step")
    measured = curve["drift"].dropna()
    drift = np.interp(curve.index, [0, *measured.index], [0.0, *measured])
    return curve[["gold", "reward"]].rolling(SPAN).mean().assign(drift=drift).dropna()


def fall(tables: Tables, key: RunKey) -> float:
    """Return gold's highest value of a run less its last. Noise raises it a little, in all arms alike."""
    gold = smoothed_curve(tables, key)["gold"]
    return float(gold.max() - gold.iloc[-1])


def other_tasks(tables: Tables, key: RunKey) -> pd.DataFrame:
    """
    Return a run's held-out gold, and beside it the mean gold of the tasks that were not trained, by step from the base
    on; the perplexity of real text where the base can do none of them.
    """
    points = tables.points.loc[key].set_index("step")
    is_own = points["task"] == points["task"].iloc[0]  # comes first
    trained = points[is_own]
    others = points.loc[~is_own, "gold"].groupby(level=0).mean()
    if others.iloc[0]:
        beside = others.rename(OTHER_GOLD)
    else:
        beside = trained["text_perplexity"].rename("perplexity of real text")
    return pd.concat([trained["gold"], beside], axis=1)


def kept(tables: Tables, key: RunKey) -> float:
    """Return the mean gold, at the end, of the tasks that were not trained."""
    return float(other_tasks(tables, key)[OTHER_GOLD].iloc[-1])


def kept_at_equal_gold(tables: Tables, key: RunKey) -> float:
    """
    Return the mean gold of the tasks that were not trained, at the checkpoint after which the run's own gold is
    nearest to the lowest final one of all arms of its pair.
    """
    runs_of_family = tables.points.loc[key.family].index.unique()
    same_pair = [RunKey(key.family, *run) for run in runs_of_family if run[1:] == key[2:]]
    lowest = min(other_tasks(tables, run)["gold"].iloc[-1] for run in same_pair)
    trained = other_tasks(tables, key).iloc[1:]  # without the base
    nearest = (trained["gold"] - lowest).abs().argmin()
    return float(trained[OTHER_GOLD].iloc[nearest])


def kept_at_equal_kl(of_own_task: bool) -> OfTwoRuns:
    """
    Make the mean gold of the tasks that were not trained, of a run less another's, each where its KL to the base first
    reaches the lower of the two runs' highest: the KL on prompts of its own task, or the mean over the others'. Linear
    between checkpoints.
    """

    def difference(tables: Tables, key: RunKey, other: RunKey) -> float:
        run = _kept_by_kl(tables, key, of_own_task)
        other_run = _kept_by_kl(tables, other, of_own_task)
        level = min(run["kl"].max(), other_run["kl"].max())
        return _kept_at(run, level) - _kept_at(other_run, level)

    return difference


def _kept_by_kl(tables: Tables, key: RunKey, of_own_task: bool) -> pd.DataFrame:
    """Gold of the tasks that were not trained, `kept`, and the `kl` of the prompts that count, by checkpoint."""
    points = tables.points.loc[key].set_index("step")
    counts = (points["task"] == points["task"].iloc[0]) == of_own_task
    kl = points.loc[counts, "kl_to_base"].groupby(level=0).mean()
    return pd.DataFrame({"kl": kl, "kept": other_tasks(tables, key)[OTHER_GOLD]})


def _kept_at(path: pd.DataFrame, level: float) -> float:
    kl = path["kl"].to_numpy()
    place = int(np.argmax(kl >= level - ROUNDING))  # the first
    return float(np.interp(level, kl[: place + 1], path["kept"].to_numpy()[: place + 1]))


def difference_of(outcome: OfOneRun) -> OfTwoRuns:
    """Make the difference of an outcome of each run."""

    def difference(tables: Tables, key: RunKey, other: RunKey) -> float:
        return outcome(tables, key) - outcome(tables, other)

    return difference


def gold_at_equal(name: str) -> OfTwoRuns:
    """Make gold of a run less another's, each when it first reaches the lower of the two runs' highest `name`."""

    def difference(tables: Tables, key: RunKey, other: RunKey) -> float:
        run = smoothed_curve(tables, key)
        other_run = smoothed_curve(tables, other)
        level = min(run[name].max(), other_run[name].max())
        return float(_gold_at(run, name, level) - _gold_at(other_run, name, level))

    return difference


def _gold_at(run: pd.DataFrame, name: str, level: float) -> float:
    first = (run[name] >= level - ROUNDING).idxmax()
    return run["gold"][first]


def final_gold(tables: Tables, key: RunKey) -> float:
    """Return a run's held-out gold after its last step."""
    return float(tables.runs.loc[key, "gold"])


def above_best(tables: Tables, key: RunKey, other: RunKey) -> float:
    """
    Return a run's gold after its last step less the highest gold of another's training batches: what is left of their
    difference if the other had stopped at its best step. Gold itself chooses that step, and noise raises its mean of
    20 steps, so a stop by anything else leaves more.
    """
    best = smoothed_curve(tables, other)["gold"].max()
    return float(tables.runs.loc[key, "gold"] - best)


def right_of_paid(tables: Tables, key: RunKey) -> float:
    """
    Return the share of right answers among those that the base was paid for, where the reward is 0 or 1: of a run's
    first batch, which its base samples.
    """
    first = tables.curves.loc[key].set_index("step").loc[1]
    return float(first["gold"] / first["reward"])


# Of a run less another's of the same pair, by the name that `registered.outcomes` of the matrix has.
OUTCOMES = {
    "gold": difference_of(final_gold),
    "fall": difference_of(fall),
    "kept": difference_of(kept),
    "kept at equal gold": difference_of(kept_at_equal_gold),
    "gold at equal proxy": gold_at_equal("reward"),
    "gold at equal KL": gold_at_equal("drift"),
    "gold above the other's best": above_best,
    "kept at equal KL": kept_at_equal_kl(of_own_task=True),
    "kept at equal KL on the other tasks": kept_at_equal_kl(of_own_task=False),
}
# Exploratory, where a reward can be gamed.
BESIDE = ("gold at equal proxy", "gold at equal KL", "gold above the other's best")
# Exploratory, where other tasks are measured: what the second protocol predicts of them "at equal drift".
BESIDE_KEPT = ("kept at equal KL", "kept at equal KL on the other tasks")
ALL_OR_NOTHING = ("gamed_reverse",)  # families of such a reward that is 0 or 1


def over_bases(values: pd.Series) -> Contrast:
    """Return the mean of values by (base seed, seed), and its error: that of n values, one for each base."""
    by_base = values.groupby(level=0).mean()
    return Contrast(float(by_base.mean()), float(by_base.sem()), len(by_base) - 1)


def registered_pairs(block: Block) -> list[tuple[str, str]]:
    """List the pairs of arms whose difference the block registers; a selection may lack some."""
    pairs = [(arm + block.suffix, less + block.suffix) for arm, less in block.registered["differences"]]
    return [pair for pair in pairs if set(pair) <= set(block.arms)]


def registered(block: Block, tables: Tables) -> list[dict[str, Any]]:
    """
    Return a row for each family and two arms that the block compares: `family`, `arm`, `less`, `pairs`, `contrasts` by
    outcome, and `adjusted`, p after Holm over the block's registered tests, which lacks what is exploratory.
    """
    outcomes = list(block.outcomes)
    if "fall" in block.outcomes:
        outcomes += BESIDE
    if "kept" in block.outcomes:
        outcomes += BESIDE_KEPT
    pairs = registered_pairs(block)
    every = dict.fromkeys([*pairs, *((arm, less) for arm, less, _ in compared(block))])
    runs = finished(block, tables)
    rows = []
    tests = []
    for family, (arm, less) in product(block.families, every):
        both = runs[family][[arm, less]].dropna()
        if both.empty:
            continue
        row = {"family": family, "arm": arm, "less": less, "pairs": len(both), "contrasts": {}, "adjusted": {}}
        for name in outcomes:
            values = {pair: OUTCOMES[name](tables, key, other) for pair, key, other in both.itertuples()}
            contrast = over_bases(pd.Series(values))
            row["contrasts"][name] = contrast
            if (arm, less) in pairs and name in block.outcomes and contrast.freedom > 0:
                tests.append((row, name))
        rows.append(row)
    p_values = [row["contrasts"][name].p_value for row, name in tests]
    for (row, name), p in zip(tests, holm(p_values), strict=True):
        row["adjusted"][name] = float(p)
    return rows


def paid_and_right(block: Block, tables: Tables) -> list[dict[str, Any]]:
    """
    Return, for each family whose reward is 0 or 1: the mean over bases of `right_of_paid`, `share`, and of gold at the
    end of the control, `control`. Exploratory.
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
    """Return `registered`'s contrasts of gold with the columns that `plots.forest` reads of `differences`."""
    rows = []
    for row in registered(block, tables):
        is_exploratory = "gold" not in row["adjusted"]
        gold = row["contrasts"]["gold"]
        rows.append({**row, "reference": row["less"], "contrast": gold, "exploratory": is_exploratory})
    return pd.DataFrame(rows)
