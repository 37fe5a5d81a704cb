"""pass@k from verdicts and counts: of base and trained, over k, over checkpoints, by task."""

import numpy as np
import pandas as pd

from trl_prorl.eval.analysis.statistics import (
    NO_INTERVAL,
    Estimate,
    bootstrap_interval,
    paired_bootstrap_difference,
    pass_at_k_per_prompt,
    summarise_counts,
)
from trl_prorl.eval.metrics import metric
from trl_prorl.eval.run_folder.run import Run


SIDES = ("base", "trained")


def summarise(correct: list[list[bool]], ks: list[int]) -> dict:
    """
    [`~eval.analysis.statistics.summarise_counts`] of verdicts.

    Args:
        correct (`list[list[bool]]`): Shape (P, n).
        ks (`list[int]`): Sizes of the draw, each from 1 to n.
    """
    return summarise_counts([sum(samples) for samples in correct], len(correct[0]), ks)


def verdicts(samples: pd.DataFrame) -> list[list[bool]]:
    """Samples of P prompts with n each, prompt by prompt, as booleans of shape (P, n)."""
    prompts = samples["prompt_id"].nunique()
    return samples["correct"].to_numpy(dtype=bool).reshape(prompts, -1).tolist()


def summarise_samples(samples: pd.DataFrame, ks: list[int]) -> dict:
    """[`summarise`], and the mean length in tokens and the share of samples that were cut."""
    return {
        **summarise(verdicts(samples), ks),
        "mean_tokens": float(samples["ids"].map(len).mean()),
        "truncated": float(samples["truncated"].mean()),
    }


def by_task_and_level(sides: dict[str, pd.DataFrame], ks: list[int]) -> list[dict]:
    """
    pass@k of every task and level among the prompts, where there is more than one and each has at least two prompts.
    """
    groups = list(dict.fromkeys(zip(sides["base"]["task"], sides["base"]["level"], strict=True)))
    result = []
    for task, level in groups if len(groups) > 1 else []:
        parts = {
            side: samples[(samples["task"] == task) & (samples["level"] == level)] for side, samples in sides.items()
        }
        prompts = int(parts["base"]["prompt_id"].nunique())
        if prompts >= 2:
            summaries = {side: summarise(verdicts(part), ks) for side, part in parts.items()}
            result.append({"task": task, "level": as_plain(level), "prompts": prompts, **summaries})
    return result


def as_plain(level):
    return None if level is None or pd.isna(level) else int(level)


def greedy_side(samples: pd.DataFrame) -> dict:
    """Accuracy of greedy decoding with its interval over prompts, and the verdict of every prompt."""
    correct = [int(one) for one in samples["correct"]]
    right = metric("exact_match").compute(predictions=list(map(str, correct)), references=["1"] * len(correct))
    return {
        "accuracy": right["exact_match"],
        "interval": list(bootstrap_interval(correct)),
        "correct": correct,
    }


def summary_score(summary: dict, k: int) -> Estimate | None:
    """pass@k with its interval, as a summary has them; `None` if it has no such k."""
    return Estimate(summary[f"pass@{k}"], *summary[f"interval@{k}"]) if f"pass@{k}" in summary else None


def score(run: Run, side: str, k: int) -> Estimate | None:
    """Held-out pass@k of one side (`base` or `trained`) with its interval; `None` if not evaluated."""
    return summary_score((run.passk or {}).get(side, {}), k)


def largest_k(run: Run) -> int | None:
    """The largest k of the held-out evaluation; `None` if the run was not evaluated."""
    return max(run.passk["k"]) if run.passk else None


def per_prompt(result: dict, side: str, k: int = 1) -> np.ndarray:
    """
    pass@k of each held-out prompt, shape (P,), from the counts of a `passk.json` or of a part of it that has `n`.
    """
    return pass_at_k_per_prompt(result[side]["correct"], result["n"], k)


def gain(result: dict, k: int) -> Estimate:
    """pass@k, trained less base, with its paired 95 % interval over prompts."""
    return paired_bootstrap_difference(per_prompt(result, "trained", k), per_prompt(result, "base", k))


def draw_sizes(n: int, evaluated=()) -> list[int]:
    """Powers of two up to `n`, `n` itself and the evaluated sizes, ascending."""
    return sorted({1 << power for power in range(n.bit_length())} | {n} | {k for k in evaluated if 1 <= k <= n})


def k_curve(run: Run, side: str, interval: bool = True) -> pd.DataFrame:
    """
    pass@k of one side for k = 1, 2, 4 … n from the counts of correct samples.

    Args:
        run (`Run`): An evaluated run.
        side (`str`): `base` or `trained`.
        interval (`bool`, *optional*, defaults to `True`): Whether to bootstrap over prompts.

    Returns:
        `pd.DataFrame`: `mean`, `low` and `high`, indexed by k; the ends are NaN without an interval.
    """
    rows = {}
    for k in draw_sizes(run.passk["n"]):
        values = per_prompt(run.passk, side, k)
        low, high = bootstrap_interval(values) if interval else NO_INTERVAL
        rows[k] = {"mean": values.mean(), "low": low, "high": high}
    return pd.DataFrame.from_dict(rows, orient="index")


def checkpoint_curve(run: Run, k: int) -> pd.DataFrame | None:
    """Held-out pass@k over optimizer steps, base at 0, with its interval over prompts; `None` without checkpoints."""
    points = {point["step"]: point for point in (run.passk or {}).get("checkpoints") or [] if f"pass@{k}" in point}
    if not points:
        return None
    points[0] = run.passk["base"]
    rows = {step: (point[f"pass@{k}"], *point[f"interval@{k}"]) for step, point in points.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high"]).sort_index()


def checkpoint_ks(runs: list[Run]) -> list[int]:
    """The smallest and the largest k of the runs with checkpoints."""
    ks = {k for run in runs if (run.passk or {}).get("checkpoints") for k in run.passk["k"]}
    return sorted({min(ks), max(ks)}) if ks else []
