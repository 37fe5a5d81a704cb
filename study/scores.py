"""What the runs got right, prompt by prompt, and the scores of every arm: means over the pairs that are finished."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from eval.analysis.smoothing import end_by_best
from eval.analysis.statistics import Estimate, pass_at_k_per_prompt
from study.hierarchical import Pair, resample
from study.matrix import Block, RunKey
from study.tables import Tables


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


def finished(block: Block, tables: Tables, family: str, arm: str) -> dict[Pair, RunKey]:
    """The runs of an arm that are in the tables, by base seed and training seed."""
    keys = (run.key for run in block.runs if (run.key.family, run.key.arm) == (family, arm))
    return {(key.base_seed, key.seed): key for key in keys if key in tables.runs.index}


def of_runs(tables: Tables, runs: dict[Pair, RunKey], k: int = 1) -> dict[Pair, np.ndarray]:
    """pass@k of each held-out prompt of the runs of an arm, by pair; each of shape (P,)."""
    return {pair: per_prompt(tables, key, k) for pair, key in runs.items()}


def of_bases(tables: Tables, runs: dict[Pair, RunKey], k: int = 1) -> dict[Pair, np.ndarray]:
    """pass@k of each held-out prompt of the bases of these runs, by pair; each of shape (P,)."""
    return of_runs(tables, {pair: key.base for pair, key in runs.items()}, k)


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

    @property
    def pass1(self) -> Estimate:
        """pass@1."""
        return self.values["pass@1"]

    @property
    def exploratory(self) -> bool:
        """Whether its block is."""
        return self.block not in CO_PRIMARY


def scores(block: Block, tables: Tables) -> list[Score]:
    """Of every family and arm that has a run."""
    places = ((family, arm) for family in block.families for arm in block.arms)
    found = ((family, arm, finished(block, tables, family, arm)) for family, arm in places)
    return [_score(block, tables, family, arm, runs) for family, arm, runs in found if runs]


def _score(block: Block, tables: Tables, family: str, arm: str, runs: dict[Pair, RunKey]) -> Score:
    resampled = {
        name: resample({arm: of_runs(tables, runs, k), BASE: of_bases(tables, runs, k)})
        for name, k in OUTCOMES.items()
    }

    def estimates(weights: dict[str, int]) -> dict[str, Estimate]:
        return {name: one.contrast(weights).estimate for name, one in resampled.items()}

    rows = tables.runs.loc[list(runs.values())]
    return Score(
        *(block.name, family, arm),
        *map(estimates, ({arm: 1}, {BASE: 1}, {arm: 1, BASE: -1})),
        kept=[reward_kept(tables, key) for key in runs.values()],
        drift=float(rows["drift"].mean()),
        collapsed=int(rows["collapsed"].sum()),
        pairs=len(rows),
        ref_calls=float(rows["ref_forward_calls"].mean()),
        resets=rows["resets"].tolist(),
        apart=[later - step for key in runs.values() for step, later in pairwise(reset_steps(tables, key))],
    )


def reset_steps(tables: Tables, key: RunKey) -> list[int]:
    """The steps before whose batch a reset came."""
    curve = tables.curves.loc[key]
    return curve.loc[curve["event"] != "", "step"].tolist()


def reward_kept(tables: Tables, key: RunKey) -> float:
    """
    The number that a collapse is told by, [`~eval.analysis.smoothing.end_by_best`] of the training reward; 0 where it
    cannot be told, because the best is 0 or numbers that are not finite ended the run.
    """
    rewards = pd.Series(tables.curves.loc[key, "reward"].to_numpy())
    if len(rewards) < key.steps or not np.isfinite(rewards).all():
        return 0.0
    return end_by_best(rewards) or 0.0
