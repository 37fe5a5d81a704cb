"""pass@k from verdicts and counts: for both sides, over k, checkpoints and tasks; and how to extend a result."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from trl_prorl.errors import InputError
from trl_prorl.eval.analysis.statistics import (
    NO_INTERVAL,
    Estimate,
    bootstrap_interval,
    paired_bootstrap_difference,
    pass_at_k_per_prompt,
    summarise_counts,
)
from trl_prorl.eval.run_folder.run import RecordedRun


SIDES = ("base", "trained")
OPTIONS = {  # of `passk`, for the settings in its file
    "split": "--split",
    "prompts": "--prompts",
    "n": "--n",
    "temperature": "--temperature",
    "max_new_tokens": "--max-new-tokens",
    "seed": "--seed",
}


def correct_by_prompt(samples: pd.DataFrame) -> list[int]:
    """Return the number of correct samples of each prompt, in the order of the samples."""
    return samples.groupby("prompt_id", sort=False)["correct"].sum().astype(int).tolist()


def summarise_samples(samples: pd.DataFrame, ks: list[int]) -> dict:
    """Return [`summarise_counts`], with the mean length in tokens and the share of truncated samples."""
    counts = correct_by_prompt(samples)
    return {
        **summarise_counts(counts, len(samples) // len(counts), ks),
        "mean_tokens": float(samples["ids"].map(len).mean()),
        "truncated": float(samples["truncated"].mean()),
    }


def by_task_and_level(sides: dict[str, pd.DataFrame], n: int, ks: list[int]) -> list[dict]:
    """
    Return pass@k, from `n` samples of each prompt, of every task and level with at least two prompts, if there is more
    than one.
    """
    groups = list(dict.fromkeys(zip(sides["base"]["task"], sides["base"]["level"], strict=True)))
    if len(groups) < 2:
        return []
    result = []
    for task, level in groups:
        counts = {}
        for side, samples in sides.items():
            counts[side] = correct_by_prompt(samples[(samples["task"] == task) & (samples["level"] == level)])
        prompts = len(counts["base"])
        if prompts >= 2:
            summaries = {side: summarise_counts(of_side, n, ks) for side, of_side in counts.items()}
            result.append({"task": task, "level": as_plain(level), "prompts": prompts, **summaries})
    return result


def as_plain(level):
    return None if level is None or pd.isna(level) else int(level)


def greedy_side(samples: pd.DataFrame) -> dict:
    """Return the accuracy of greedy decoding with its interval over prompts, and the verdict of every prompt."""
    correct = [int(one) for one in samples["correct"]]
    return {"accuracy": sum(correct) / len(correct), "interval": list(bootstrap_interval(correct)), "correct": correct}


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
    return paired_bootstrap_difference(per_prompt(result, "trained", k), per_prompt(result, "base", k))


def draw_sizes(n: int, evaluated=()) -> list[int]:
    """Return powers of two up to `n`, `n` itself and the evaluated values of k, ascending."""
    sizes = {1 << power for power in range(n.bit_length())}
    sizes.add(n)
    sizes.update(k for k in evaluated if 1 <= k <= n)
    return sorted(sizes)


def k_curve(result: dict, side: str, interval: bool = True) -> pd.DataFrame:
    """
    pass@k of one side (`base` or `trained`) of a `passk.json`, from the counts of correct samples: `mean`, `low` and
    `high`, indexed by k = 1, 2, 4 … n. The ends are a bootstrap over prompts, NaN without `interval`.
    """
    rows = {}
    for k in draw_sizes(result["n"]):
        values = per_prompt(result, side, k)
        low, high = bootstrap_interval(values) if interval else NO_INTERVAL
        rows[k] = {"mean": values.mean(), "low": low, "high": high}
    return pd.DataFrame.from_dict(rows, orient="index")


def checkpoint_curve(result: dict | None, k: int) -> pd.DataFrame | None:
    """
    pass@k over optimizer steps of a `passk.json`, base at 0, with its interval over prompts; `None` without
    checkpoints.
    """
    checkpoints = (result or {}).get("checkpoints") or []
    points = {point["step"]: point for point in checkpoints if f"pass@{k}" in point}
    if not points:
        return None
    points[0] = result["base"]
    rows = {step: (point[f"pass@{k}"], *point[f"interval@{k}"]) for step, point in points.items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "low", "high"]).sort_index()


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


def require_same_evaluation(earlier: dict, settings: dict, path: Path) -> dict:
    """
    Return the earlier result, at `path`, if it has these settings; [`complete_result`] then adds to it.

    Raises:
        InputError: If it has other settings, and would be overwritten.
    """
    differing = [key for key, value in settings.items() if earlier.get(key) != value]
    if differing:
        named = (key for key in differing if key != "prompt_ids")
        what = ", ".join(f"{key} {earlier.get(key)} (now: {settings[key]})" for key in named)
        extend = ""
        if what and set(differing) - {"prompt_ids"} <= set(OPTIONS):
            options = " ".join(f"{OPTIONS[key]} {earlier[key]}" for key in differing if key in OPTIONS)
            extend = f"extend it with {options}, or "
        raise InputError(
            f"'{path}' has other settings: {what or 'other prompts'}; {extend}overwrite it with --replace"
        )
    return earlier


def complete_result(earlier: dict, result: dict) -> dict | None:
    """
    Return the new content of `passk.json`, with the parts that only the earlier one has (`k` already includes its
    values); `None` if the earlier one was measured with other weights.
    """
    if earlier.get("step") != result["step"]:
        return None
    if any(earlier[side]["correct"] != result[side]["correct"] for side in SIDES):
        return None
    ks = result["k"]
    result = dict(result)
    if "greedy" in earlier:
        result.setdefault("greedy", earlier["greedy"])
    if "checkpoints" in earlier or "checkpoints" in result:
        points = {}
        for point in earlier.get("checkpoints", []):
            points[point["step"]] = _with_ks(point, result["n"], ks)
        for point in result.get("checkpoints", []):
            points[point["step"]] = point
        result["checkpoints"] = [points[step] for step in sorted(points)]
    if "others" in earlier or "others" in result:
        kept = {name: _other_with_ks(other, ks) for name, other in earlier.get("others", {}).items()}
        result["others"] = kept | result.get("others", {})
    return result


def _with_ks(summary: dict, n: int, ks: list[int]) -> dict:
    """Return a summary with pass@k for every k, from its counts."""
    return {**summary, **summarise_counts(summary["correct"], n, ks)}


def _other_with_ks(other: dict, ks: list[int]) -> dict:
    return {
        **other,
        "k": ks,
        **{side: _with_ks(other[side], other["n"], ks) for side in SIDES},
        "gain": {f"pass@{k}": list(gain(other, k)) for k in ks},
    }
