"""
Measure the effect of migrating Adam's state when a LoRA adapter grows. The same run is trained with its state
migrated, cleared, cleared except for the step count, or moved as a flat prefix, and with a small and a large rank.

    python docs/examples/rank_growth/measure.py run      # train the missing runs of five seeds
    python docs/examples/rank_growth/measure.py tables   # write runs.csv and steps.csv next to this file
    python docs/examples/rank_growth/measure.py figure   # draw a picture into --out, and print the numbers

A run takes two to three minutes on one core, its evaluation one more. `run` can be killed at any time and continues
with the interrupted run. `--seeds 1` and `--arms` select fewer runs. `eval/analysis/resets.py` defines reconvergence
and dip, here at the steps of the growths in every variant.
"""

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.eval.analysis.resets import Response, mean_dip, median_reconvergence, reset_responses
from trl_prorl.eval.analysis.statistics import Estimate, t_interval
from trl_prorl.extras.growth import resize
from trl_prorl.launch.recipe import RecipeParser
from trl_prorl.optimizer import STEP
from trl_prorl.train import TaskArguments, build, train


HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RECIPES = ROOT / "recipes" / "tiny"
GROWN = ("growth/grown",)
RUNS = HERE / "runs.csv"
STEPS = HERE / "steps.csv"
GROWTHS = (60, 120, 180)
BEFORE = 10  # steps of a close-up
AFTER = 40
PROMPTS = "256"
SAMPLES = "16"


def cleared(state: Mapping[str, Any], shape: torch.Size, axis: int, rank: int) -> dict[str, Any]:
    """Return the state of a new optimizer."""
    moments = {key: resize(torch.zeros_like(state[key]), axis, rank) for key in ("exp_avg", "exp_avg_sq")}
    return moments | {STEP: torch.zeros_like(state[STEP])}


def without_moments(state: Mapping[str, Any], shape: torch.Size, axis: int, rank: int) -> dict[str, Any]:
    """
    m and v cleared, and the step count kept: the new ranks have the migrated state, the old ones remember nothing.
    """
    found = cleared(state, shape, axis, rank)
    del found[STEP]
    return found


def prefix(state: Mapping[str, Any], shape: torch.Size, axis: int, rank: int) -> dict[str, Any]:
    """The old values first, as they lie in memory, then zeros: what `realloc` does."""
    moved = {}
    for key in ("exp_avg", "exp_avg_sq"):
        moved[key] = resize(torch.zeros_like(state[key]), axis, rank)
        moved[key].view(-1)[: state[key].numel()] = state[key].flatten()
    return moved


# For each variant: recipe and keys, treatment of the state (`None`: as in any run), label and colour.
ARMS = {
    "rank4": (("plain", "--lora_r", "4", "--lora_alpha", "4"), None, "rank 4 throughout", "#999999"),
    "rank16": (("plain", "--lora_r", "16", "--lora_alpha", "16"), None, "rank 16 throughout", "#000000"),
    "migrated": (GROWN, None, "4 → 16, state migrated", "#0072B2"),
    "cleared": (GROWN, cleared, "4 → 16, state cleared", "#E69F00"),
    "without_moments": (GROWN, without_moments, "4 → 16, m and v cleared, t kept", "#009E73"),
    "prefix": (GROWN, prefix, "4 → 16, state moved as a flat prefix", "#D55E00"),
}


# ------------------------------------------------------------------------------------------------------------- runs


def train_one(arm: str, seed: int, out: Path, overrides: list[str]) -> None:
    """Train a run to its end, in this process."""
    (recipe, *keys), migrate, _, _ = ARMS[arm]
    torch.set_num_threads(1)
    parser = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
    given = ["--config", str(RECIPES / f"{recipe}.yaml"), *keys, "--output_dir", str(out), "--seed", str(seed)]
    task_args, args, model_args = parser.parse_args_and_config([*given, "--disable_tqdm", "true", *overrides])
    trainer, resume = build(task_args, args, model_args)
    if migrate is not None:
        trainer.parts["growth"].migrate = migrate
    train(trainer, resume)


def run_missing(out: Path, arms: list[str], seeds: list[int], overrides: list[str]) -> None:
    """Train and evaluate what is missing, one process after another."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    for seed in seeds:
        for arm in arms:
            run = out / f"{arm}_seed{seed}"
            if (run / "passk.json").exists():
                continue
            print(f"{run.name} …", flush=True)
            if not (run / "adapter_model.safetensors").exists():
                shutil.rmtree(run, ignore_errors=True)
                command = [sys.executable, __file__, "one", "--arms", arm, "--seeds", str(seed), "--out", str(out)]
                log = run.with_suffix(".log")
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("w") as file:
                    subprocess.run([*command, *overrides], env=env, stdout=file, stderr=file, check=True)
            passk = [sys.executable, "-m", "eval.passk", "--run", str(run), "--prompts", PROMPTS, "--n", SAMPLES]
            subprocess.run(passk, env=env, stdout=subprocess.DEVNULL, check=True, cwd=ROOT)


# ----------------------------------------------------------------------------------------------------------- tables


def read_run(run: Path, arm: str, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A row of `runs.csv`, and the rows of `steps.csv`."""
    passk = json.loads((run / "passk.json").read_text())
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    grown = [event["step_applied"] for event in events if event["event"] == "growth"]
    if grown != (list(GROWTHS) if ARMS[arm][0] == GROWN else []):
        raise ValueError(f"{run} has grown at steps {grown}.")
    whole = {"arm": arm, "seed": seed, "base": passk["base"]["pass@1"], "pass@1": passk["trained"]["pass@1"]}
    keys = ("step", "reward", "update_norm")
    return whole, [{"arm": arm, "seed": seed, **{key: round(row[key], 6) for key in keys}} for row in rows]


def write_tables(out: Path, arms: list[str], seeds: list[int]) -> None:
    """Both tables, of the runs that are finished."""
    found = [
        read_run(out / f"{arm}_seed{seed}", arm, seed)
        for arm in arms
        for seed in seeds
        if (out / f"{arm}_seed{seed}" / "passk.json").exists()
    ]
    for path, table in ((RUNS, [whole for whole, _ in found]), (STEPS, [row for _, rows in found for row in rows])):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, table[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
        print(f"{path.relative_to(ROOT)}: {len(table)} rows")


# --------------------------------------------------------------------------------------------- what they say


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def curves(arm: str, key: str) -> np.ndarray:
    """Return a metric of a variant, shape `(seeds, steps)`."""
    rows = [row for row in read_table(STEPS) if row["arm"] == arm]
    seeds = sorted({int(row["seed"]) for row in rows})
    return np.array([[float(row[key]) for row in rows if int(row["seed"]) == seed] for seed in seeds])


def closeups(values: np.ndarray) -> np.ndarray:
    """A metric around every growth, relative to its mean before, shape `(seeds · growths, before + after)`."""
    cut = np.concatenate([values[:, step - BEFORE : step + AFTER] for step in GROWTHS])
    return cut / cut[:, :BEFORE].mean(axis=1, keepdims=True)


def responses(arm: str) -> list[Response]:
    """Dip and reconvergence at every growth of every seed."""
    rewards = curves(arm, "reward")
    steps = range(1, rewards.shape[1] + 1)
    return [response for seed in rewards for response in reset_responses(pd.Series(seed, steps), list(GROWTHS))]


def shown(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def numbers() -> str:
    """Return a table of all variants, in Markdown."""
    scores = {arm: {} for arm in ARMS}
    for row in read_table(RUNS):
        scores[row["arm"]][int(row["seed"])] = float(row["pass@1"])
    lines = [
        "| variant | pass@1 | paired difference to migrated | steps until the reward is back, median | not back | dip"
        " | first update | largest of 20 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, (_, _, words, _) in ARMS.items():
        if not scores[arm]:
            continue
        mine = scores[arm]
        theirs = scores["migrated"]
        pairs = [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]
        difference = shown(t_interval(pairs)) if arm != "migrated" and len(pairs) > 1 else "–"
        found = responses(arm)
        norms = closeups(curves(arm, "update_norm"))[:, BEFORE : BEFORE + 20]
        median = median_reconvergence(found)
        lines.append(
            f"| {words} | {np.mean(list(mine.values())):.3f} | {difference} | {median:g} | "
            f"{sum(response.censored for response in found)} of {len(found)} | {mean_dip(found):.3f} | "
            f"{norms[:, 0].mean():.2f} | {norms.max(axis=1).mean():.2f} |"
        )
    return "\n".join(lines)


def draw(picture: Path) -> None:
    """Rewards over the run, and the size of the updates around a growth."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    whole, close = figure.subplots(1, 2)
    for arm, (_, _, words, colour) in ARMS.items():
        rewards = curves(arm, "reward")
        if not len(rewards):
            continue
        smooth = np.apply_along_axis(lambda one: np.convolve(one, np.ones(10) / 10, mode="valid"), 1, rewards)
        style = {"color": colour, "linewidth": 1.5, "label": f"{words}"}
        whole.plot(np.arange(10, rewards.shape[1] + 1), smooth.mean(axis=0), **style)
        norms = closeups(curves(arm, "update_norm"))
        close.plot(np.arange(1 - BEFORE, AFTER + 1), norms.mean(axis=0), **style)
    for step in GROWTHS:
        whole.axvline(step, color="#7F7F7F", linewidth=0.8)
    close.axvline(0.5, color="#7F7F7F", linewidth=0.8)
    whole.set(xlabel="optimizer steps", ylabel="reward, running mean of 10 steps", title="Reward, mean over the seeds")
    whole.legend(frameon=False, fontsize=8)
    close.set(
        xlabel="steps after a growth",
        ylabel="norm of the update, by its mean before",
        title="Size of the updates, mean over growths and seeds",
    )
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("command", choices=("run", "one", "tables", "figure"))
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs" / "rank_growth", help="where the runs and the picture go"
    )
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    args, overrides = parser.parse_known_args()
    if args.command == "run":
        run_missing(args.out, args.arms, args.seeds, overrides)
    elif args.command == "one":
        train_one(args.arms[0], args.seeds[0], args.out / f"{args.arms[0]}_seed{args.seeds[0]}", overrides)
    elif args.command == "tables":
        write_tables(args.out, args.arms, args.seeds)
    else:
        draw(args.out / "rank_growth.png")
        print(numbers())


if __name__ == "__main__":
    main()
