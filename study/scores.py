"""The scores of every arm: means over the pairs that are finished, with what stands beside them."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from eval.analysis.smoothing import end_by_best
from eval.analysis.statistics import Estimate
from study.hierarchical import Pair, resample
from study.matrix import Block, RunKey
from study.per_prompt import finished, greedy, of_bases, of_runs, per_prompt
from study.tables import Tables


CO_PRIMARY = ("core", "stress")  # blocks; every other one is exploratory by the protocol
BASE = "base"


@dataclass(frozen=True)
class Score:
    """
    An arm of a block on a family: means over the pairs that are finished.

    Attributes:
        pass1, pass8, greedy (`Estimate`): With intervals over bases, seeds and prompts.
        base (`float`): pass@1 of the same bases.
        gain (`Estimate`): pass@1 less that of the bases, paired.
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
    pass1: Estimate
    pass8: Estimate
    greedy: Estimate
    base: float
    gain: Estimate
    kept: tuple[float, float]
    drift: float | None
    collapsed: int
    pairs: int
    ref_calls: float
    resets: list[int]
    apart: tuple[int, int] | None

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
    def estimate(value) -> Estimate:
        resampled = resample({arm: {pair: value(tables, key) for pair, key in runs.items()}})
        return resampled.contrast({arm: 1}).estimate

    against = {arm: of_runs(tables, runs), BASE: of_bases(tables, family, runs)}
    kept = [reward_kept(tables, key) for key in runs.values()]
    rows = [tables.runs[key] for key in runs.values()]
    apart = [later - step for key in runs.values() for step, later in pairwise(reset_steps(tables, key))]
    drifts = [row["drift"] for row in rows if row["drift"] is not None]
    return Score(
        block=block.name,
        family=family,
        arm=arm,
        pass1=estimate(per_prompt),
        pass8=estimate(lambda tables, key: per_prompt(tables, key, 8)),
        greedy=estimate(greedy),
        base=float(np.mean([row["base_pass@1"] for row in rows])),
        gain=resample(against).contrast({arm: 1, BASE: -1}).estimate,
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
