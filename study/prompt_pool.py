"""
`python study/prompt_pool.py runs BASES`: does a pool of prompts save tokens? BASES are the study's starting models.

    git archive $(cat study/tables/frozen_at) study/bases | tar x -C /tmp
    python study/prompt_pool.py runs/prompt_pool /tmp/study/bases

Trains the runs that study/tables/prompt_pool.csv lacks (in the table of another checkout: --tables), adds them as they
end, prints the ratios and draws docs/prompt_pool.png. study/protocols/prompt_pool.md says what is compared, and was
written before the runs; the second seed's rule is in study/protocols/protocol5.md.
"""

import argparse
import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from trl_prorl.eval.analysis.statistics import t_interval


STUDY = Path(__file__).resolve().parent
TABLES = STUDY / "tables"
TABLE = "prompt_pool.csv"
KEY = ["task", "base", "seed", "arm"]
TASKS = {"pool_reverse": "reverse_digits", "pool_sorting": "sorting"}
ARMS = {
    "uniform": {},
    "pool": {"prompt_pool": "true"},
    "dynamic": {"dynamic_sampling_rounds": "2"},
}
BASES = (1, 2, 3, 4, 5)
SEEDS = (1, 2)
SMOOTHED = 5  # evaluations
LAST = 5  # evaluations whose mean is the end of a run
SHARE = 0.9  # of uniform's gain: the score to reach


def runs() -> list[tuple[str, int, int, str]]:
    """Return the runs in the order in which they are made: task, base, seed, arm."""
    return [(task, base, seed, arm) for seed in SEEDS for base in BASES for task in TASKS for arm in ARMS]


def train(folder: Path, bases: Path, task: str, base: int, seed: int, arm: str) -> None:
    """Train a run, if it was not trained yet. A run that was interrupted begins again."""
    output = folder / f"{task}-base{base}-seed{seed}-{arm}"
    done = output / "done"
    if done.exists():
        return
    if output.exists():
        output.rename(output.with_name(f"{output.name}.interrupted"))
    keys = {"model_name_or_path": bases / f"{TASKS[task]}-{base}", "seed": seed, "output_dir": output, **ARMS[arm]}
    options = [part for key, value in keys.items() for part in (f"--{key}", str(value))]
    recipe = STUDY / "recipes" / f"{task}.yaml"
    subprocess.run(["trl-prorl", "train", recipe, *options], check=True, stdout=subprocess.DEVNULL)
    done.touch()


def curve(output: Path) -> pd.DataFrame:
    """Return a row for each evaluation of a run: step, sampled tokens so far, pass@1, and the signal until then."""
    rows = pd.read_json(output / "metrics.jsonl", lines=True)
    rows["tokens"] = rows["tokens_generated"].cumsum()
    sampled = rows[rows["tokens_generated"] > 0]
    evaluations = [json.loads(line) for line in (output / "evaluations.jsonl").read_text().splitlines()]
    points = []
    before = 0
    for each in evaluations:
        step = each["step"]
        tokens = int(rows.loc[rows["step"] <= step, "tokens"].max()) if step else 0
        between = sampled[(sampled["step"] > before) & (sampled["step"] <= step)]
        signal = 1.0 - between["frac_reward_zero_std"].mean()
        points.append({"step": step, "tokens": tokens, "pass@1": each["eval_pass@1"], "signal": signal})
        before = step
    return pd.DataFrame(points)


def tokens_to(points: pd.DataFrame, score: float) -> float:
    """
    Return the sampled tokens after which the smoothed score is reached first, between evaluations in proportion; all
    tokens of the run if it never is.
    """
    smooth = points["pass@1"].rolling(SMOOTHED, min_periods=1, center=True).mean().to_numpy()
    tokens = points["tokens"].to_numpy(dtype=float)
    reached = np.flatnonzero(smooth >= score)
    if not len(reached):
        return tokens[-1]
    place = reached[0]
    if place == 0:
        return tokens[1] / 2
    share = (score - smooth[place - 1]) / (smooth[place] - smooth[place - 1])
    return tokens[place - 1] + share * (tokens[place] - tokens[place - 1])


def compare(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each task, base and seed: tokens to the score, the end at equal tokens, and the signal."""
    rows = []
    for (task, base, seed), group in table.groupby(["task", "base", "seed"]):
        curves = dict(iter(group.groupby("arm")))
        if len(curves) < len(ARMS):
            continue
        uniform = curves["uniform"]
        start = uniform["pass@1"].iloc[0]
        score = start + SHARE * (uniform["pass@1"].iloc[-LAST:].mean() - start)
        budget = min(points["tokens"].iloc[-1] for points in curves.values())
        row = {"task": task, "base": base, "seed": seed, "score": score}
        for arm, points in curves.items():
            within = points[points["tokens"] <= budget]
            row[f"tokens {arm}"] = tokens_to(points, score)
            row[f"end {arm}"] = within["pass@1"].iloc[-LAST:].mean()
            row[f"signal {arm}"] = points["signal"].mean()
        rows.append(row)
    return pd.DataFrame(rows)


def ratio(pairs: pd.DataFrame, arm: str, other: str) -> str:
    """
    Return the geometric mean of the ratios of tokens to the score, and its 95 % t-interval over bases; tasks and seeds
    of a base are averaged.
    """
    logs = np.log(pairs[f"tokens {arm}"] / pairs[f"tokens {other}"])
    by_base = logs.groupby(pairs["base"]).mean()
    low_to_high = [math.exp(value) for value in t_interval(by_base.to_numpy())[:3]]
    return f"{low_to_high[0]:.2f} [{low_to_high[1]:.2f}, {low_to_high[2]:.2f}], {len(by_base)} bases"


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw score and signal over sampled tokens, the mean of all pairs of a task."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(2, len(TASKS), sharex="col")
    for column, task in enumerate(TASKS):
        for arm in ARMS:
            points = table[(table["task"] == task) & (table["arm"] == arm)]
            means = points.groupby("step")[["tokens", "pass@1", "signal"]].mean()
            thousands = means["tokens"] / 1000
            axes[0, column].plot(thousands, means["pass@1"], label=arm)
            axes[1, column].plot(thousands, means["signal"], label=arm)
            if arm == "uniform":  # dynamic sampling goes on to twice the tokens
                axes[0, column].set_xlim(0, thousands.max())
        axes[0, column].set_title(TASKS[task])
        axes[1, column].set_xlabel("thousands of sampled tokens")
    axes[0, 0].set_ylabel("held-out pass@1")
    axes[1, 0].set_ylabel("groups with a signal")
    axes[0, 0].legend()
    figure.savefig(path, dpi=120)


def add_missing(folder: Path, bases: Path, path: Path) -> pd.DataFrame:
    """Train the runs that a table lacks, and add each as it ends; return the table."""
    table = pd.read_csv(path)
    done = set(table[KEY].itertuples(index=False, name=None))
    for key in runs():
        if key in done:
            continue
        task, base, seed, arm = key
        train(folder, bases, *key)
        points = curve(folder / f"{task}-base{base}-seed{seed}-{arm}")
        points = points.assign(**dict(zip(KEY, key, strict=True)))
        points.to_csv(path, mode="a", header=False, index=False, float_format="%.6g")
        table = pd.concat([table, points])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("bases", type=Path)
    parser.add_argument("--tables", type=Path, default=TABLES)
    args = parser.parse_args()
    table = add_missing(args.folder, args.bases, args.tables / TABLE)
    pairs = compare(table)
    for name, chosen in [("both tasks", pairs), *pairs.groupby("task")]:
        print(name)
        for arm, other in (("pool", "uniform"), ("pool", "dynamic"), ("dynamic", "uniform")):
            print(f"  tokens to the score, {arm} / {other}: {ratio(chosen, arm, other)}")
        for arm in ARMS:
            end, signal = chosen[f"end {arm}"].mean(), chosen[f"signal {arm}"].mean()
            print(f"  {arm}: pass@1 at equal tokens {end:.3f}, groups with a signal {signal:.3f}")
    draw(table, STUDY.parent / "docs" / "prompt_pool.png")


if __name__ == "__main__":
    main()
