"""
Measure the effect of migrating Adam's state when a LoRA adapter grows. The same run is trained with its state
migrated, cleared, cleared except for the step count, or moved as a flat prefix, and with a small and a large rank.

    python docs/examples/rank_growth/measure.py run      # train the missing runs of five seeds
    python docs/examples/rank_growth/measure.py tables   # write runs.csv and steps.csv next to this file
    python docs/examples/rank_growth/measure.py figure   # draw a picture into --out, and print the numbers

A run takes two to three minutes on one core, its evaluation one more. `run` can be killed at any time and continues
with the interrupted run. `--seeds 1` and `--arms` select fewer runs. `eval/analysis/around_resets.py` defines
reconvergence and dip, here at the steps of the growths in every variant.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from trl import ModelConfig

from trl_prorl import ProRLConfig
from trl_prorl.eval import passk
from trl_prorl.eval.analysis.around_resets import mean_dip, median_reconvergence, reset_responses
from trl_prorl.eval.analysis.statistics import t_interval
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


def train_one(arm: str, seed: int, run: Path, overrides: list[str]) -> None:
    """Train a run to its end."""
    (recipe, *keys), migrate, _, _ = ARMS[arm]
    torch.set_num_threads(1)
    parser = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
    given = ["--config", str(RECIPES / f"{recipe}.yaml"), *keys, "--output_dir", str(run), "--seed", str(seed)]
    task_args, args, model_args = parser.parse_args_and_config([*given, "--disable_tqdm", "true", *overrides])
    trainer, resume = build(task_args, args, model_args)
    if migrate is not None:
        trainer.parts["growth"].migrate = migrate
    train(trainer, resume)


def run_missing(out: Path, arms: list[str], seeds: list[int], overrides: list[str]) -> None:
    """Train and evaluate what is missing, one after another."""
    for seed in seeds:
        for arm in arms:
            run = out / f"{arm}_seed{seed}"
            if (run / "passk.json").exists():
                continue
            print(f"{run.name} …", flush=True)
            if not (run / "adapter_model.safetensors").exists():
                shutil.rmtree(run, ignore_errors=True)
                train_one(arm, seed, run, overrides)
            passk.main(["--run", str(run), "--prompts", PROMPTS, "--n", SAMPLES])


def write_tables(out: Path, arms: list[str], seeds: list[int]) -> None:
    """Write both tables, of the runs that are finished."""
    runs = []
    steps = []
    for arm in arms:
        for seed in seeds:
            run = out / f"{arm}_seed{seed}"
            if not (run / "passk.json").exists():
                continue
            scores = json.loads((run / "passk.json").read_text())
            base, trained = (scores[side]["pass@1"] for side in ("base", "trained"))
            runs.append({"arm": arm, "seed": seed, "base": base, "pass@1": trained})
            metrics = pd.read_json(run / "metrics.jsonl", lines=True)[["step", "reward", "update_norm"]]
            steps.append(metrics.round(6).assign(arm=arm, seed=seed)[["arm", "seed", *metrics]])
    pd.DataFrame(runs).to_csv(RUNS, index=False)
    pd.concat(steps).to_csv(STEPS, index=False)


# --------------------------------------------------------------------------------------------- what they say


def curves(arm: str, key: str) -> np.ndarray:
    """Return a metric of a variant, shape `(seeds, steps)`."""
    steps = pd.read_csv(STEPS)
    return steps[steps["arm"] == arm].pivot(index="seed", columns="step", values=key).to_numpy()


def closeups(values: np.ndarray) -> np.ndarray:
    """A metric around every growth, relative to its mean before, shape `(seeds · growths, before + after)`."""
    cut = np.concatenate([values[:, step - BEFORE : step + AFTER] for step in GROWTHS])
    return cut / cut[:, :BEFORE].mean(axis=1, keepdims=True)


def numbers() -> str:
    """Return a table of all variants, in Markdown."""
    scores = pd.read_csv(RUNS).pivot(index="seed", columns="arm", values="pass@1")
    lines = [
        "| variant | pass@1 | paired difference to migrated | steps until the reward is back, median | not back | dip"
        " | first update | largest of 20 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in scores[[arm for arm in ARMS if arm in scores]]:
        difference = "–"
        if arm != "migrated":
            one = t_interval((scores[arm] - scores["migrated"]).dropna().tolist())
            difference = f"{one.value:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"
        rewards = curves(arm, "reward")
        steps = range(1, rewards.shape[1] + 1)
        # Dip and reconvergence at every growth of every seed.
        found = [response for seed in rewards for response in reset_responses(pd.Series(seed, steps), list(GROWTHS))]
        norms = closeups(curves(arm, "update_norm"))[:, BEFORE : BEFORE + 20]
        lines.append(
            f"| {ARMS[arm][2]} | {scores[arm].mean():.3f} | {difference} | {median_reconvergence(found):g} | "
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
        smooth = np.apply_along_axis(lambda one: np.convolve(one, np.ones(10) / 10, mode="valid"), 1, rewards)
        style = {"color": colour, "linewidth": 1.5, "label": words}
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
    parser.add_argument("command", choices=("run", "tables", "figure"))
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs" / "rank_growth", help="where the runs and the picture go"
    )
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    args, overrides = parser.parse_known_args()
    if args.command == "run":
        run_missing(args.out, args.arms, args.seeds, overrides)
    elif args.command == "tables":
        write_tables(args.out, args.arms, args.seeds)
    else:
        draw(args.out / "rank_growth.png")
        print(numbers())


if __name__ == "__main__":
    main()
