"""The scores of every arm: means over the pairs that are finished, with what stands beside them."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from eval.analysis.smoothing import end_by_best
from eval.analysis.statistics import Estimate
from study.hierarchical import Pair, resample
from study.matrix import Block, RunKey
from study.per_prompt import GREEDY, finished, of_bases, of_runs
from study.tables import Tables


CO_PRIMARY = ("core", "stress")  # blocks; every other one is exploratory by the protocol
BASE = "base"
OUTCOMES = {"pass@1": 1, "pass@8": 8, "greedy": GREEDY}


@dataclass(frozen=True)
class Score:
    """
    An arm of a block on a family: means over the pairs that are finished.

    Attributes:
        values, bases, gains (`dict[str, Estimate]`): By outcome: the arm's, the same bases', and the arm's less the
            bases', paired; with intervals over bases, seeds and prompts.
        kept (`tuple[float, float]`): The training reward at the end by the run's best, of the run that kept least and
            of the one that kept most; below a half it is called collapsed.
        drift (`float` or `None`): KL to base, nats per token, mean over the runs that have a policy at their end.
        collapsed, pairs (`int`): Runs that collapsed, and all.
        ref_calls (`float`): Forward calls of the reference, mean over runs.
        resets (`list[int]`): How many came, run by run.
        apart (`tuple[int, int]` or `None`): The least and the most steps from one reset of a run to its next; a
            trigger by events whose resets are all a cooldown apart is a clock. `None` where no run had two.
    """

    block: str
    family: str
    arm: str
    values: dict[str, Estimate]
    bases: dict[str, Estimate]
    gains: dict[str, Estimate]
    kept: tuple[float, float]
    drift: float | None
    collapsed: int
    pairs: int
    ref_calls: float
    resets: list[int]
    apart: tuple[int, int] | None

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
    found = []
    for family in block.families:
        for arm in block.arms:
            if runs := finished(block, tables, family, arm):
                found.append(_score(block, tables, family, arm, runs))
    return found


def _score(block: Block, tables: Tables, family: str, arm: str, runs: dict[Pair, RunKey]) -> Score:
    resampled = {
        name: resample({arm: of_runs(tables, runs, k), BASE: of_bases(tables, family, runs, k)})
        for name, k in OUTCOMES.items()
    }

    def estimates(weights: dict[str, int]) -> dict[str, Estimate]:
        return {name: one.contrast(weights).estimate for name, one in resampled.items()}

    kept = [reward_kept(tables, key) for key in runs.values()]
    rows = [tables.runs[key] for key in runs.values()]
    apart = [later - step for key in runs.values() for step, later in pairwise(reset_steps(tables, key))]
    drifts = [row["drift"] for row in rows if row["drift"] is not None]
    return Score(
        block=block.name,
        family=family,
        arm=arm,
        values=estimates({arm: 1}),
        bases=estimates({BASE: 1}),
        gains=estimates({arm: 1, BASE: -1}),
        kept=(min(kept), max(kept)),
        drift=float(np.mean(drifts)) if drifts else None,
        collapsed=sum(row["collapsed"] for row in rows),
        pairs=len(rows),
        ref_calls=float(np.mean([row["ref_forward_calls"] for row in rows])),
        resets=[row["resets"] for row in rows],
        apart=(min(apart), max(apart)) if apart else None,
    )


def reset_steps(tables: Tables, key: RunKey) -> list[int]:
    """The steps before whose batch a reset came."""
    return [row["step"] for row in tables.curves[key] if row["event"]]


def reward_kept(tables: Tables, key: RunKey) -> float:
    """
    The number that a collapse is told by, [`~eval.analysis.smoothing.end_by_best`] of the training reward; 0 where it
    cannot be told, because the best is 0 or numbers that are not finite ended the run.
    """
    rewards = pd.Series([row["reward"] for row in tables.curves[key]], dtype=float)
    if len(rewards) < key.steps or not np.isfinite(rewards).all():
        return 0.0
    return end_by_best(rewards) or 0.0
