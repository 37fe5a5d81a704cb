"""
Of every arm, over the pairs that are finished: what its runs got right, prompt by prompt, its scores, what it did to
its training, and all families in one number.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
from scipy import stats

from eval.analysis.resets import gain_after_clamp, median_reconvergence, reset_responses
from eval.analysis.stability import ENTROPY_SPIKE, KL_SPIKE, find_spikes, kl_key
from eval.analysis.statistics import pass_at_k_per_prompt
from study.hierarchical import resample
from study.matrix import Block, RunKey
from study.tables import POINT_VALUES, Tables
from trl_prorl.guards.collapse import end_by_best


CO_PRIMARY = ("core", "stress")  # blocks; every other one is exploratory by the protocol
BASE = "base"
TRIMMED = 0.25  # at each end, for the interquartile mean
GREEDY = 0  # in place of k: greedy decoding
OUTCOMES = {"pass@1": 1, "pass@8": 8, "greedy": GREEDY}


def per_prompt(tables: Tables, key: RunKey, k: int = 1) -> np.ndarray:
    """pass@k of each held-out prompt of a run, or of a base, or whether it is right by greedy decoding; shape (P,)."""
    rows = tables.prompts.loc[key]
    if k == GREEDY:
        return rows["greedy"].to_numpy(dtype=float)
    return pass_at_k_per_prompt(rows["correct"].tolist(), int(rows["n"].iloc[0]), k)


def finished(block: Block, tables: Tables) -> pd.DataFrame:
    """
    The keys of a block's runs that are in the tables: a row for each pair of base seed and training seed, a column for
    each family and arm; NaN where there is none.
    """
    keys = [run.key for run in block.runs if run.key in tables.runs.index]
    places = pd.MultiIndex.from_tuples(keys, names=RunKey._fields).droplevel("steps")
    columns = pd.MultiIndex.from_product([block.families, block.arms])
    return pd.Series(keys, places, dtype=object).unstack(["family", "arm"]).reindex(columns=columns)


def outcomes(block: Block, tables: Tables, k: int = 1) -> pd.DataFrame:
    """pass@k of each held-out prompt, shape (P,), in the places of `finished`, and of the bases in the arm `base`."""
    runs = finished(block, tables)
    found = runs.map(lambda key: per_prompt(tables, key, k), na_action="ignore")
    for family in block.families:
        bases = runs[family].bfill(axis=1).iloc[:, 0]
        found[family, BASE] = bases.map(lambda key: per_prompt(tables, key.base, k), na_action="ignore")
    return found


def scores(block: Block, tables: Tables) -> pd.DataFrame:
    """
    A row for each family and arm that has a run: means over the `pairs` that are finished. For each of `OUTCOMES` the
    arm's, the same bases' (`base pass@1`) and their difference, paired (`pass@1 less base`), with intervals over
    bases, seeds and prompts. `drift` is the KL to base in nats per token, NaN where no run has a policy; `ref_calls`
    are forward calls of the reference. Run by run: `kept`, the training reward at the end by the run's best, below a
    half in a collapse; `resets`; `apart`, the steps from every reset to the next: a trigger by events whose resets are
    all a cooldown apart is a clock.
    """
    values = {name: outcomes(block, tables, k) for name, k in OUTCOMES.items()}
    found = []
    for (family, arm), keys in finished(block, tables).dropna(axis=1, how="all").items():
        keys = keys.dropna()
        rows = tables.runs.loc[list(keys)]
        row = {"family": family, "arm": arm, "pairs": len(rows)}
        for name, of in values.items():
            resampled = resample(of[family][[arm, BASE]])
            sums = {name: {arm: 1}, f"base {name}": {BASE: 1}, f"{name} less base": {arm: 1, BASE: -1}}
            row |= {column: resampled.contrast(weights).estimate for column, weights in sums.items()}
        row |= {"drift": rows["drift"].mean(), "collapsed": rows["collapsed"].sum()}
        row |= {"ref_calls": rows["ref_forward_calls"].mean(), "resets": rows["resets"].tolist()}
        row["kept"] = [reward_kept(tables, key) for key in keys]
        row["apart"] = [later - step for key in keys for step, later in pairwise(reset_steps(tables, key))]
        found.append(row)
    return pd.DataFrame(found)


def points(block: Block, tables: Tables) -> pd.DataFrame:
    """Of the tasks that a block's runs were measured on beside their own: a row for each family, task and arm, means
    over its runs at the end, and of the bases."""
    keys = [run.key for run in block.runs]
    rows = tables.points[tables.points.index.isin(keys) & tables.points["step"].isin([0, block.steps])].reset_index()
    rows["arm"] = rows["arm"].where(rows["step"] > 0, BASE)
    return rows.groupby(["family", "task", "arm"], sort=False)[list(POINT_VALUES)].mean().reset_index()


def reset_steps(tables: Tables, key: RunKey) -> list[int]:
    """The steps before whose batch a reset came."""
    curve = tables.curves.loc[key]
    return curve.loc[curve["event"] != "", "step"].tolist()


def reward_kept(tables: Tables, key: RunKey) -> float:
    """
    The number that a collapse is told by, [`~eval.analysis.stability.end_by_best`] of the training reward; 0 where it
    cannot be told, because the best is 0 or numbers that are not finite ended the run. NaN without a training reward:
    fine-tuning has none.
    """
    rewards = pd.Series(tables.curves.loc[key, "reward"].to_numpy())
    if rewards.isna().all():
        return np.nan
    if len(rewards) < key.steps or not np.isfinite(rewards).all():
        return 0.0
    return end_by_best(rewards) or 0.0


def training(block: Block, tables: Tables) -> pd.DataFrame:
    """
    How an arm's training differed: means over its runs, a row for each family and arm; the page says what each column
    is. `others` is the mean norm of the updates of the arm `of` the same pairs.
    """
    curves = {run.key: tables.curves.loc[run.key] for run in block.runs if run.key in tables.runs.index}
    rows = []
    for key, curve in curves.items():
        row, later = tables.runs.loc[key], curve[curve["kl_old"] > 0]
        partner = block.kept_partner(key.arm) or next(iter(block.references), key.arm)
        other, control = (curves.get(key._replace(arm=arm)) for arm in (partner, f"control{block.suffix}"))
        rewards = curve["step"].to_numpy(), curve["reward"].to_numpy()
        held = None if control is None else (control["step"], control["reward"])
        rows.append(
            {
                **{"family": key.family, "arm": key.arm, **row[["tokens_generated", "seconds"]]},
                "kl_ref": curve["kl_ref"].mean(),
                "kl_old": later["kl_old"].median(),
                "clipped": later["clip_region_mean"].mean(),
                "updates": curve["update_norm"].mean(),
                "of": partner,
                "others": np.nan if other is None else other["update_norm"].mean(),
                "gain after clamp": np.nan if held is None else gain_after_clamp(*rewards, *held),
                "reconvergence": reset_responses(*rewards, [step - 1 for step in reset_steps(tables, key)]),
                "KL spikes": find_spikes(curve[kl_key(row["variant"])], KL_SPIKE).count,
                "entropy spikes": find_spikes(curve["entropy"], ENTROPY_SPIKE).count,
            }
        )
    numbers = dict.fromkeys(("gain after clamp", "tokens_generated", "seconds"), float)
    arms = pd.DataFrame(rows).astype(numbers).groupby(["family", "arm", "of"], sort=False)
    found = arms.mean(numeric_only=True)
    found["size of updates"] = found["updates"] / found["others"] - 1
    found["tokens/s"] = found["tokens_generated"] / found["seconds"]
    found["reconvergence"] = arms["reconvergence"].sum().map(median_reconvergence).astype(float)
    return found.reset_index()


def aggregates(block: Block, tables: Tables) -> pd.DataFrame:
    """
    All families in one row of an arm, over the cells (family and pair of seeds) that all arms have: the interquartile
    mean of pass@1, as in rliable (Agarwal et al., 2021), and the probability of improvement on the first reference,
    paired by cell, a tie being half a win.
    """
    rows = tables.runs.loc[[run.key for run in block.runs if run.key in tables.runs.index], "pass@1"]
    arms = rows.droplevel("steps").unstack("arm")
    arms = arms.reindex(columns=list(block.arms)).dropna(axis=1, how="all").dropna()
    less = arms.sub(arms.get(block.references[0], np.nan), axis=0)
    above = (less > 0).sum() + (less == 0).sum() / 2
    return pd.DataFrame(
        {"cells": len(arms), "mean": arms.mean(), "IQM": stats.trim_mean(arms, TRIMMED), "above": above}
    )
