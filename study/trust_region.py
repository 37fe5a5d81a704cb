"""
Trust regions in place of the clip: the runs and the table of study/protocols/trust_region.md.

    python study/trust_region.py papers tuning tuned      # trains what is missing; a row is written as its run ends
    python study/trust_region.py                          # the table

The variables BASES and FOLDER name the folders of starting models and of runs. Each run is a process of its own; two
run at a time.
"""

import os
import shutil
import sys
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
from protocol5 import append, tested

from trl_prorl.cli.recipe import parse_recipe
from trl_prorl.eval.analysis.statistics import holm
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.train import build, train


STUDY = Path(__file__).resolve().parent
TABLE = STUDY / "tables" / "trust_region.csv"
NAMES = ["part", "base", "variant", "value"]
# Their keys; {} is the threshold.
VARIANTS = {
    "clip": "--epsilon {}",
    **{name: f"--trust_region {name} --trust_region_threshold {{}}" for name in ("dppo_tv", "dppo_kl", "ipo", "m2po")},
    "B": "--beta_old {}",
}
THRESHOLDS = dict(zip(VARIANTS, (0.2, 0.15, 0.05, 0.3, 0.04, 1.0), strict=True))
KEYS = "--num_iterations 8 --per_device_train_batch_size 64 --seed 110 --disable_tqdm true "


def runs_of(part: str) -> list[tuple]:
    """List the runs of a part, by [`NAMES`], base by base."""
    if part == "tuning":
        return [(part, 6, name, round(x * factor, 4)) for name, x in THRESHOLDS.items() for factor in (1 / 3, 1, 3)]
    values = THRESHOLDS
    if part == "tuned":
        tuning = pd.read_csv(TABLE).query("part == 'tuning'").sort_values("sampled")
        values = tuning.groupby("variant")["value"].last().to_dict()  # the best
        values = {name: values[name] for name in VARIANTS if values[name] != THRESHOLDS[name]}
    return [(part, base, name, value) for base, (name, value) in product(range(1, 6), values.items())]


def make(run: tuple) -> dict:
    """Train and evaluate a run, and return its row."""
    part, base, variant, value = run
    output = Path(os.environ["FOLDER"], "-".join(map(str, run)))
    shutil.rmtree(output, ignore_errors=True)  # of an interrupted run
    model = f"{os.environ['BASES']}/reverse_digits-{base}"
    keys = f"--config {STUDY}/recipes/reverse_digits.yaml --model_name_or_path {model} --output_dir {output} {KEYS}"
    keys += f"--max_steps {240 if part == 'tuning' else 480} {VARIANTS[variant].format(value)}"
    train(*build(*parse_recipe(keys.split())))
    log = pd.read_json(output / "metrics.jsonl", lines=True)
    row = dict(zip(NAMES, run, strict=True))
    row |= {"tokens": log["tokens_generated"].sum(), "masked": log["clip_region_mean"].mean()}
    held_out = HeldOut(output, "validation" if part == "tuning" else "test", 512)
    for prefix, model in (("", held_out.trained), ("untrained_", held_out.base)):
        row[f"{prefix}sampled"] = held_out.samples(model, 8)["correct"].mean()
        row[f"{prefix}greedy"] = held_out.samples(model, 1, temperature=0.0)["correct"].mean()
    return row


def make_missing(part: str) -> None:
    done = set()
    if TABLE.exists():
        done = set(pd.read_csv(TABLE)[NAMES].itertuples(index=False, name=None))
    missing = [run for run in runs_of(part) if run not in done]
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        for row in pool.imap(make, missing):
            append(TABLE, pd.DataFrame([row]), NAMES)


def table(part: str) -> pd.DataFrame:
    """Return each variant minus the clip, sampled and greedy: intervals over starting models, p by Holm."""
    rows = pd.read_csv(TABLE).query("part in ('papers', @part)").sort_values("part")
    rows = rows.drop_duplicates(["base", "variant"], keep="last")  # a tuned threshold may be the paper's
    wide = rows.pivot(index="base", columns="variant", values=["sampled", "greedy"])
    pairs = product(list(VARIANTS)[1:], ("sampled", "greedy"))
    found = [tested(f"{name}, {score}", (wide[score, name] - wide[score, "clip"]).dropna()) for name, score in pairs]
    found = pd.DataFrame(found)
    print(rows.groupby("variant").mean(numeric_only=True))
    return found.assign(holm=holm(found["p"]))


if __name__ == "__main__":
    for part in sys.argv[1:]:
        make_missing(part)
    print(table("papers"), table("tuned"), sep="\n")
