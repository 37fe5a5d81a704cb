"""What an arm did to its training, and all families in one number: tables of the runs and their curves."""

import numpy as np
import pandas as pd
from scipy import stats

from eval.analysis.resets import gain_after_clamp, median_reconvergence, reset_responses
from eval.analysis.stability import ENTROPY_SPIKE, KL_SPIKE, find_spikes, kl_key
from study.differences import kept_partner
from study.matrix import Block
from study.scores import reset_steps
from study.tables import Tables


TRIMMED = 0.25  # at each end, for the interquartile mean


def training(block: Block, tables: Tables) -> pd.DataFrame:
    """
    How an arm's training differed: means over its runs, a row for each family and arm; the page says what each column
    is. `others` is the mean norm of the updates of the arm `of` the same pairs.
    """
    curves = {run.key: tables.curves.loc[run.key] for run in block.runs if run.key in tables.runs.index}
    rows = []
    for key, curve in curves.items():
        row, later = tables.runs.loc[key], curve[curve["kl_old"] > 0]
        partner = kept_partner(block, key.arm) or next(iter(block.references), key.arm)
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
