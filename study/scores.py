"""What the runs got right, prompt by prompt, and the scores of every arm: means over the pairs that are finished."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from eval.analysis.statistics import Estimate, pass_at_k_per_prompt
from study.hierarchical import resample
from study.matrix import Block, RunKey
from study.tables import Tables
from trl_prorl.guards.collapse import end_by_best


CO_PRIMARY = ("core", "stress")  # blocks; every other one is exploratory by the protocol
BASE = "base"
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
    found: dict[tuple, dict] = {}
    for key in (run.key for run in block.runs if run.key in tables.runs.index):
        found.setdefault((key.family, key.arm), {})[key.base_seed, key.seed] = key
    columns = pd.MultiIndex.from_product([block.families, block.arms])
    return pd.DataFrame({name: pd.Series(keys, dtype=object) for name, keys in found.items()}).reindex(columns=columns)


def outcomes(block: Block, tables: Tables, k: int = 1) -> pd.DataFrame:
    """pass@k of each held-out prompt, shape (P,), in the places of `finished`, and of the bases in the arm `base`."""
    runs = finished(block, tables)
    found = runs.map(lambda key: per_prompt(tables, key, k), na_action="ignore")
    for family in block.families:
        bases = runs[family].bfill(axis=1).iloc[:, 0]
        found[family, BASE] = bases.map(lambda key: per_prompt(tables, key.base, k), na_action="ignore")
    return found


@dataclass(frozen=True)
class Score:
    """
    An arm of a block on a family: means over the pairs that are finished. `values`, `bases` and `gains` are by outcome
    the arm's, the same bases', and their difference, paired, with intervals over bases, seeds and prompts. Run by run:
    `kept`, the training reward at the end by the run's best, below a half in a collapse; `resets`; `apart`, the steps
    from every reset to the next: a trigger by events whose resets are all a cooldown apart is a clock. `drift` is the
    KL to base in nats per token, NaN where no run has a policy; `ref_calls` are forward calls of the reference.
    """

    block: str
    family: str
    arm: str
    values: dict[str, Estimate]
    bases: dict[str, Estimate]
    gains: dict[str, Estimate]
    kept: list[float]
    drift: float
    collapsed: int
    pairs: int
    ref_calls: float
    resets: list[int]
    apart: list[int]


def scores(block: Block, tables: Tables) -> list[Score]:
    """Of every family and arm that has a run."""
    keys = finished(block, tables)
    values = {name: outcomes(block, tables, k) for name, k in OUTCOMES.items()}
    return [
        _score(block.name, family, arm, keys[family, arm].dropna(), values, tables)
        for family, arm in keys.columns
        if keys[family, arm].notna().any()
    ]


def _score(block: str, family: str, arm: str, keys: pd.Series, values: dict, tables: Tables) -> Score:
    resampled = {name: resample(of[family][[arm, BASE]].dropna().to_dict()) for name, of in values.items()}

    def estimates(weights: dict[str, int]) -> dict[str, Estimate]:
        return {name: one.contrast(weights).estimate for name, one in resampled.items()}

    rows = tables.runs.loc[list(keys)]
    return Score(
        *(block, family, arm),
        *map(estimates, ({arm: 1}, {BASE: 1}, {arm: 1, BASE: -1})),
        kept=[reward_kept(tables, key) for key in keys],
        drift=float(rows["drift"].mean()),
        collapsed=int(rows["collapsed"].sum()),
        pairs=len(rows),
        ref_calls=float(rows["ref_forward_calls"].mean()),
        resets=rows["resets"].tolist(),
        apart=[later - step for key in keys for step, later in pairwise(reset_steps(tables, key))],
    )


def reset_steps(tables: Tables, key: RunKey) -> list[int]:
    """The steps before whose batch a reset came."""
    curve = tables.curves.loc[key]
    return curve.loc[curve["event"] != "", "step"].tolist()


def reward_kept(tables: Tables, key: RunKey) -> float:
    """
    The number that a collapse is told by, [`~eval.analysis.stability.end_by_best`] of the training reward; 0 where it
    cannot be told, because the best is 0 or numbers that are not finite ended the run.
    """
    rewards = pd.Series(tables.curves.loc[key, "reward"].to_numpy())
    if len(rewards) < key.steps or not np.isfinite(rewards).all():
        return 0.0
    return end_by_best(rewards) or 0.0
