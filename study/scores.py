"""
What the runs of every arm got right, prompt by prompt, over the pairs that are finished; their scores, what an arm did
to its training, and all families in one number.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
from scipy import stats

from study.hierarchical import resample
from study.matrix import Block, RunKey
from study.tables import POINT_VALUES, Tables
from trl_prorl.eval.analysis.resets import gain_after_clamp, median_reconvergence, reset_responses
from trl_prorl.eval.analysis.stability import ENTROPY_SPIKE, KL_SPIKE, find_spikes, kl_key
from trl_prorl.eval.analysis.statistics import pass_at_k_per_prompt
from trl_prorl.guards.collapse import end_by_best


CO_PRIMARY = ("core", "stress")  # blocks; every other one is exploratory by the protocol
BASE = "base"
TRIMMED = 0.25  # at each end, for the interquartile mean
GREEDY = 0  # in place of k: greedy decoding
OUTCOMES = {"pass@1": 1, "pass@8": 8, "greedy": GREEDY}


def per_prompt(tables: Tables, key: RunKey, k: int = 1) -> np.ndarray:
    """
    Return pass@k of each held-out prompt of a run, or of a base, or whether it is right by greedy decoding; shape
    (P,).
    """
    rows = tables.prompts.loc[key]
    if k == GREEDY:
        return rows["greedy"].to_numpy(dtype=float)
    return pass_at_k_per_prompt(rows["correct"].tolist(), int(rows["n"].iloc[0]), k)


def finished(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return the keys of a block's runs that are in the tables: a row for each pair of base seed and training seed, a
    column for each family and arm; NaN where there is none.
    """
    keys = [run.key for run in block.runs if run.key in tables.runs.index]
    places = pd.MultiIndex.from_tuples(keys, names=RunKey._fields).droplevel("steps")
    columns = pd.MultiIndex.from_product([block.families, block.arms])
    return pd.Series(keys, places, dtype=object).unstack(["family", "arm"]).reindex(columns=columns)


def outcomes(block: Block, tables: Tables, k: int = 1) -> pd.DataFrame:
    """
    Return pass@k of each held-out prompt, shape (P,), in the places of `finished`, and of the bases in the arm `base`.
    """
    runs = finished(block, tables)
    found = runs.map(lambda key: per_prompt(tables, key, k), na_action="ignore")
    for family in block.families:
        any_run = runs[family].bfill(axis=1).iloc[:, 0]  # of each pair
        found[family, BASE] = any_run.map(lambda key: per_prompt(tables, key.base, k), na_action="ignore")
    return found


def scores(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return a row for each family and arm that has a run: means over the `pairs` that are finished.

    For each of `OUTCOMES` there are the arm's, the same bases' (`base pass@1`) and their difference, paired (`pass@1
    less base`), with intervals over bases, seeds and prompts. `drift` is the KL to base in nats per token, NaN where
    no run has a policy; `ref_calls` are forward calls of the reference. Run by run: `kept`, the training reward at the
    end by the run's best, below a half in a collapse; `resets`; `apart`, the steps from every reset to the next: a
    trigger by events whose resets are all a cooldown apart is a clock.
    """
    by_outcome = {name: outcomes(block, tables, k) for name, k in OUTCOMES.items()}
    found = []
    for (family, arm), keys in finished(block, tables).dropna(axis=1, how="all").items():
        keys = keys.dropna()
        rows = tables.runs.loc[list(keys)]
        row = {"family": family, "arm": arm, "pairs": len(rows)}
        for name, values in by_outcome.items():
            resampled = resample(values[family][[arm, BASE]])
            row[name] = resampled.contrast({arm: 1}).estimate
            row[f"base {name}"] = resampled.contrast({BASE: 1}).estimate
            row[f"{name} less base"] = resampled.contrast({arm: 1, BASE: -1}).estimate
        row["drift"] = rows["drift"].mean()
        row["collapsed"] = rows["collapsed"].sum()
        row["ref_calls"] = rows["ref_forward_calls"].mean()
        row["resets"] = rows["resets"].tolist()
        row["kept"] = [reward_kept(tables, key) for key in keys]
        row["apart"] = [steps for key in keys for steps in steps_between_resets(tables, key)]
        found.append(row)
    return pd.DataFrame(found)


def points(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return what a block's runs were measured on beside their own task: a row for each family, task and arm, means over
    its runs at the end, and of the bases.
    """
    keys = [run.key for run in block.runs]
    ends = tables.points["step"].isin([0, block.steps])
    rows = tables.points[tables.points.index.isin(keys) & ends].reset_index()
    rows["arm"] = rows["arm"].where(rows["step"] > 0, BASE)
    return rows.groupby(["family", "task", "arm"], sort=False)[list(POINT_VALUES)].mean().reset_index()


def reset_steps(tables: Tables, key: RunKey) -> list[int]:
    """List the steps before whose batch a reset came."""
    curve = tables.curves.loc[key]
    return curve.loc[curve["event"] != "", "step"].tolist()


def steps_between_resets(tables: Tables, key: RunKey) -> list[int]:
    """List the steps from every reset of a run to the next."""
    return [later - step for step, later in pairwise(reset_steps(tables, key))]


def reward_kept(tables: Tables, key: RunKey) -> float:
    """
    Return the number that a collapse is told by, [`~trl_prorl.eval.analysis.stability.end_by_best`] of the training
    reward; 0 where it cannot be told, because the best is 0 or numbers that are not finite ended the run. NaN without
    a training reward: fine-tuning has none.
    """
    rewards = pd.Series(tables.curves.loc[key, "reward"].to_numpy())
    if rewards.isna().all():
        return np.nan
    if len(rewards) < key.steps or not np.isfinite(rewards).all():
        return 0.0
    return end_by_best(rewards) or 0.0


def training(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return how an arm's training differed: means over its runs, a row for each family and arm; the page says what each
    column is. `others` is the mean norm of the updates of the arm `of` the same pairs.
    """
    curves = {run.key: tables.curves.loc[run.key] for run in block.runs if run.key in tables.runs.index}
    rows = [_training_row(block, tables, key, curves) for key in curves]
    numbers = dict.fromkeys(("gain after clamp", "tokens_generated", "seconds"), float)
    arms = pd.DataFrame(rows).astype(numbers).groupby(["family", "arm", "of"], sort=False)
    found = arms.mean(numeric_only=True)
    found["size of updates"] = found["updates"] / found["others"] - 1
    found["tokens/s"] = found["tokens_generated"] / found["seconds"]
    found["reconvergence"] = arms["reconvergence"].sum().map(median_reconvergence).astype(float)
    return found.reset_index()


def _training_row(block: Block, tables: Tables, key: RunKey, curves: dict[RunKey, pd.DataFrame]) -> dict:
    """The row of a run; `curves` has those of the block's runs."""
    run = tables.runs.loc[key]
    curve = curves[key]
    later_passes = curve[curve["kl_old"] > 0]
    partner = block.kept_partner(key.arm) or next(iter(block.references), key.arm)
    partner_curve = curves.get(key._replace(arm=partner))
    control_curve = curves.get(key._replace(arm=f"control{block.suffix}"))
    steps = curve["step"].to_numpy()
    rewards = curve["reward"].to_numpy()
    others = np.nan
    if partner_curve is not None:
        others = partner_curve["update_norm"].mean()
    gain = np.nan
    if control_curve is not None:
        gain = gain_after_clamp(steps, rewards, control_curve["step"], control_curve["reward"])
    steps_done_at_resets = [step - 1 for step in reset_steps(tables, key)]
    return {
        "family": key.family,
        "arm": key.arm,
        "tokens_generated": run["tokens_generated"],
        "seconds": run["seconds"],
        "kl_ref": curve["kl_ref"].mean(),
        "kl_old": later_passes["kl_old"].median(),
        "clipped": later_passes["clip_region_mean"].mean(),
        "updates": curve["update_norm"].mean(),
        "of": partner,
        "others": others,
        "gain after clamp": gain,
        "reconvergence": reset_responses(steps, rewards, steps_done_at_resets),
        "KL spikes": find_spikes(curve[kl_key(run["variant"])], KL_SPIKE).count,
        "entropy spikes": find_spikes(curve["entropy"], ENTROPY_SPIKE).count,
    }


def aggregates(block: Block, tables: Tables) -> pd.DataFrame:
    """
    Return all families in one row of an arm, over the cells (family and pair of seeds) that all arms have: the
    interquartile mean of pass@1, as in rliable (Agarwal et al., 2021), and the probability of improvement on the first
    reference, paired by cell, a tie being half a win.
    """
    keys = [run.key for run in block.runs if run.key in tables.runs.index]
    arms = tables.runs.loc[keys, "pass@1"].droplevel("steps").unstack("arm")
    arms = arms.reindex(columns=list(block.arms)).dropna(axis=1, how="all").dropna()
    less = arms.sub(arms.get(block.references[0], np.nan), axis=0)
    above = (less > 0).sum() + (less == 0).sum() / 2
    middle = stats.trim_mean(arms, TRIMMED)
    return pd.DataFrame({"cells": len(arms), "mean": arms.mean(), "IQM": middle, "above": above})
