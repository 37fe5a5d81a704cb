"""What the runs of the study got right, prompt by prompt: from the tables to arrays, by pair of seeds."""

from collections.abc import Iterable

import numpy as np

from eval.analysis.statistics import pass_at_k_per_prompt
from study.hierarchical import Pair
from study.matrix import Block, RunKey
from study.tables import BaseKey, Tables


GREEDY = 0  # in place of k: greedy decoding


def per_prompt(tables: Tables, key: RunKey, k: int = 1) -> np.ndarray:
    """pass@k of each held-out prompt of a run, or of a base, or whether it is right by greedy decoding; shape (P,)."""
    rows = tables.prompts[key]
    if k == GREEDY:
        return np.array([row["greedy"] for row in rows], dtype=float)
    return pass_at_k_per_prompt([row["correct"] for row in rows], rows[0]["n"], k)


def finished(block: Block, tables: Tables, family: str, arm: str) -> dict[Pair, RunKey]:
    """The runs of an arm that are in the tables, by base seed and training seed."""
    keys = (run.key for run in block.runs if (run.key.family, run.key.arm) == (family, arm))
    return {(key.base_seed, key.seed): key for key in keys if key in tables.runs}


def of_runs(tables: Tables, runs: dict[Pair, RunKey], k: int = 1) -> dict[Pair, np.ndarray]:
    """pass@k of each held-out prompt of the runs of an arm, by pair; each of shape (P,)."""
    return {pair: per_prompt(tables, key, k) for pair, key in runs.items()}


def of_bases(tables: Tables, family: str, pairs: Iterable[Pair], k: int = 1) -> dict[Pair, np.ndarray]:
    """pass@k of each held-out prompt of the bases of these pairs, by pair; each of shape (P,)."""
    return {pair: per_prompt(tables, BaseKey(family, pair[0]).run, k) for pair in pairs}
