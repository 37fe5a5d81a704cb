"""pass@k from verdicts and counts: for both sides, over k, checkpoints and tasks."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from trl_prorl.eval.analysis.statistics import Estimate, paired_difference, pass_at_k_per_prompt, prompt_interval
from trl_prorl.eval.run_folder.run import RecordedRun


def correct_by_prompt(samples: pd.DataFrame) -> list[int]:
    """Return the number of correct samples of each prompt, in the order of the samples."""
    return samples.groupby("prompt_id", sort=False)["correct"].sum().astype(int).tolist()


def summarise_counts(counts: list[int], n: int, ks: list[int]) -> dict:
    """
    Return pass@k with its 95 % interval over prompts, and the counts: correct samples, of `n`, for each prompt.

    Returns:
        `dict`: `{"pass@<k>": mean, "interval@<k>": [low, high], ..., "correct": counts}`.
    """
    per_prompt = {k: pass_at_k_per_prompt(counts, n, k) for k in ks}
    return {
        **{f"pass@{k}": float(values.mean()) for k, values in per_prompt.items()},
        **{f"interval@{k}": list(prompt_interval(values)) for k, values in per_prompt.items()},
        "correct": counts,
    }


def summarise_samples(samples: pd.DataFrame, ks: list[int]) -> dict:
    """Return [`summarise_counts`], with the mean length in tokens and the share of truncated samples."""
    counts = correct_by_prompt(samples)
    return {
        **summarise_counts(counts, len(samples) // len(counts), ks),
        "mean_tokens": float(samples["ids"].map(len).mean()),
        "truncated": float(samples["truncated"].mean()),
    }


def task_and_level(row: Mapping) -> tuple:
    """
    Return the task and the level of a row, each `None` if missing. A script's rows may have a column of such a name
    that holds anything: text and numbers name a part.
    """
    values = (row.get("task"), row.get("level"))
    return tuple(value if isinstance(value, str | int | float) and value == value else None for value in values)


def by_task_and_level(sides: dict[str, pd.DataFrame], n: int, ks: list[int], name: str) -> list[dict]:
    """
    Return pass@k, from `n` samples of each prompt, of every task and level with at least two prompts, if there is more
    than one. Rows without a task have the evaluation's `name`.
    """
    parts = {side: [task_and_level(row) for row in samples.to_dict("records")] for side, samples in sides.items()}
    groups = list(dict.fromkeys(parts["base"]))
    if len(groups) < 2:
        return []
    result = []
    for task, level in groups:
        number = int(level) if isinstance(level, float) and level.is_integer() else level
        part = {"task": name if task is None else task, "level": number}
        for side, samples in sides.items():
            is_part = [name == (task, level) for name in parts[side]]
            counts = correct_by_prompt(samples[is_part])
            part["prompts"] = len(counts)
            part[side] = summarise_counts(counts, n, ks)
        if part["prompts"] >= 2:
            result.append(part)
    return result


def greedy_side(samples: pd.DataFrame) -> dict:
    """Return the accuracy of greedy decoding with its interval over prompts, and the verdict of every prompt."""
    correct = samples["correct"].astype(int).tolist()
    return {"accuracy": sum(correct) / len(correct), "interval": list(prompt_interval(correct)), "correct": correct}


def summary_score(summary: dict, k: int) -> Estimate | None:
    """Return pass@k with its interval from a summary; `None` if it has no such k."""
    if f"pass@{k}" not in summary:
        return None
    return Estimate(summary[f"pass@{k}"], *summary[f"interval@{k}"])


def score(run: RecordedRun, side: str, k: int) -> Estimate | None:
    """Return held-out pass@k of one side (`base` or `trained`) with its interval; `None` if not evaluated."""
    return summary_score((run.passk or {}).get(side, {}), k)


def largest_k(run: RecordedRun) -> int | None:
    """Return the largest k of the held-out evaluation; `None` if the run was not evaluated."""
    return max(run.passk["k"]) if run.passk else None


def per_prompt(result: dict, side: str, k: int = 1) -> np.ndarray:
    """
    Return pass@k of each held-out prompt, shape (P,), from the counts of a `passk.json` or of a part with `n`.
    """
    return pass_at_k_per_prompt(result[side]["correct"], result["n"], k)


def gain(result: dict, k: int) -> Estimate:
    """Return pass@k, trained − base, with its paired 95 % interval over prompts."""
    return paired_difference(per_prompt(result, "trained", k), per_prompt(result, "base", k))


def pass_k_values(n: int) -> list[int]:
    """Return the powers of two up to `n`, and `n` itself, ascending."""
    return sorted({n, *(1 << power for power in range(n.bit_length()))})


def k_curve(result: dict, side: str) -> pd.DataFrame:
    """
    pass@k of one side (`base` or `trained`) of a `passk.json`, from the counts of correct samples: `mean` with its
    interval over prompts, `low` and `high`, indexed by k = 1, 2, 4 … n.
    """
    rows = {}
    for k in pass_k_values(result["n"]):
        values = per_prompt(result, side, k)
        rows[k] = (values.mean(), *prompt_interval(values))
    return _curve(rows)


def _curve(rows: dict[int, tuple]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high"]).sort_index()


def checkpoint_curve(result: dict | None, k: int) -> pd.DataFrame | None:
    """
    pass@k over optimizer steps of a `passk.json`, base at 0, with its interval over prompts; `None` without
    checkpoints.
    """
    checkpoints = (result or {}).get("checkpoints", [])
    points = {point["step"]: point for point in checkpoints if f"pass@{k}" in point}
    if not points or f"pass@{k}" not in result["base"]:
        return None
    points[0] = result["base"]
    rows = {step: (point[f"pass@{k}"], *point[f"interval@{k}"]) for step, point in points.items()}
    return _curve(rows)


def checkpoint_ks(runs: list[RecordedRun]) -> list[int]:
    """Return the smallest and the largest k of the runs with checkpoints."""
    ks = set()
    for run in runs:
        if run.passk and run.passk.get("checkpoints"):
            ks.update(run.passk["k"])
    return ends(ks) if ks else []


def ends(ks: Iterable[int]) -> list[int]:
    """Return the smallest and the largest k, once if they are equal."""
    return sorted({min(ks), max(ks)})
