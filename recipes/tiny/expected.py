"""
Write the scores of these recipes on the embedded model to `expected.csv`, and from there into README.md.

    trl-prorl demo --seed 2 --out runs/seeds/2            # and so on
    python recipes/tiny/expected.py runs/seeds/*/*/       # writes expected.csv and README.md
    python recipes/tiny/expected.py                       # only README.md
    python recipes/tiny/expected.py --check runs/demo/*/  # exit code 1: a score is outside its 99.9 % interval
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from scipy import stats

from trl_prorl.cli.recipe_yaml import read_recipe
from trl_prorl.cli.variants import VARIANTS
from trl_prorl.embedded.shipped import weights_sha256
from trl_prorl.eval.analysis.statistics import Estimate, t_interval
from trl_prorl.run.files import replaced


HERE = Path(__file__).resolve().parent
TABLE = HERE / "expected.csv"
PAGE = HERE / "README.md"
BEGIN = "<!-- Written by recipes/tiny/expected.py. -->\n"
END = "<!-- Until here. -->\n"

RECIPES = {
    "plain": VARIANTS["plain"].recipe,
    "control": VARIANTS["control"].recipe,
    "variantA": f"{VARIANTS['A'].recipe}, reset every 40 steps",
    "variantB": VARIANTS["B"].recipe,
    "variantC": VARIANTS["C"].recipe,
}
SET_BY_DEMO = ("output_dir", "save_strategy", "seed")  # keys that the demo sets


def row_of(run: Path) -> dict:
    """
    Return the row of a run that the demo wrote: `RECIPE`. Raises `ValueError` if the folder is not a
    complete run of that recipe on the embedded model, or if the run was not evaluated at its last step.
    """
    try:
        config = yaml.safe_load((run / "config.yaml").read_text())
        env = json.loads((run / "env.json").read_text())
        passk = json.loads((run / "passk.json").read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{run} is not an evaluated run: {error}.") from error
    recipe = run.name.partition("_seed")[0]
    if recipe not in RECIPES:
        raise ValueError(f"{run} is not a run of {', '.join(RECIPES)}.")
    for key, value in read_recipe(HERE / f"{recipe}.yaml").items():
        if key not in SET_BY_DEMO and config.get(key, value) != value:  # a key at TRL's default is not written
            raise ValueError(f"{run} is not a run of {recipe}: it has {key}: {config[key]}, the recipe has {value}.")
    if env["base_model"].get("sha256") != weights_sha256("embedded"):
        raise ValueError(f"{run} did not start from the embedded model: {env['base_model']}.")
    if passk["step"] != config["max_steps"]:
        raise ValueError(f"{run} was evaluated at step {passk['step']} of {config['max_steps']}.")
    return {
        "recipe": recipe,
        "seed": env["seed"],
        "base_hash": env["base_model"]["sha256"],
        "prompts": passk["prompts"],
        "samples": passk["n"],
        "base_pass@1": passk["base"]["pass@1"],
        "pass@1": passk["trained"]["pass@1"],
        "pass@8": passk["trained"]["pass@8"],
        "commit": env["git_commit"],
    }


def write_rows(runs: list[Path]) -> None:
    """Write `expected.csv`, one row per run."""
    rows = pd.DataFrame(map(row_of, runs))
    if rows.duplicated(["recipe", "seed"]).any():
        raise ValueError("two runs have the same recipe and seed: pass each run once.")
    if len(rows[["prompts", "samples"]].drop_duplicates()) > 1:
        raise ValueError("the runs have different numbers of prompts or samples: evaluate all runs with the same.")
    rows["recipe"] = pd.Categorical(rows["recipe"], RECIPES)
    with replaced(TABLE) as aside:
        rows.sort_values(["recipe", "seed"]).to_csv(aside, index=False, float_format="%.6f")


def read_rows() -> pd.DataFrame:
    return pd.read_csv(TABLE)


def outside(runs: list[Path]) -> list[str]:
    """
    Return a line for each run whose pass@1 is outside the 99.9 % prediction interval of its recipe.
    """
    rows = read_rows()
    lines = []
    for run in runs:
        row = row_of(run)
        if any(row[name] != rows[name][0] for name in ("prompts", "samples")):
            raise ValueError(f"{run} was evaluated with other prompts or samples than expected.csv.")
        _, low, high = prediction_interval(list(rows.loc[rows["recipe"] == row["recipe"], "pass@1"]), level=0.999)
        print(f"{run}: pass@1 {row['pass@1']:.3f}, expected [{low:.3f}, {high:.3f}]")
        if not low <= row["pass@1"] <= high:
            lines.append(f"{run}: pass@1 {row['pass@1']:.3f} is outside [{low:.3f}, {high:.3f}] of {row['recipe']}")
    return lines


def prediction_interval(values: list[float], level: float = 0.95) -> Estimate:
    """Return the mean of runs with the interval for one more run: ± t s √(1 + 1/S) with S − 1 degrees of freedom."""
    mean, low, high = t_interval(values, level)
    wider = math.sqrt(len(values) + 1)  # of t s / √S
    return Estimate(mean, mean - wider * (mean - low), mean + wider * (high - mean))


def fieller_ratio(b: list[float], a: list[float]) -> Estimate:
    """
    Return the ratio of means of `b` and `a`, paired by seed, with the 95 % interval of Fieller (1954): every ρ with
    which a t-test of mean(b) = ρ mean(a) does not reject. Raises `ValueError` if `a` does not differ from 0.
    """
    means = np.array([np.mean(b), np.mean(a)])
    allowed = np.outer(means, means) - stats.t.ppf(0.975, df=len(a) - 1) ** 2 * np.cov(b, a) / len(a)
    if allowed[1, 1] <= 0:
        raise ValueError("the scores of A do not differ significantly from 0: there is no ratio to them.")
    # The ends are the roots of square ρ² − 2 half ρ + allowed[0, 0].
    half, square = allowed[1]
    root = math.sqrt(max(0.0, half**2 - square * allowed[0, 0]))
    return Estimate(means[0] / means[1], (half - root) / square, (half + root) / square)


def text(rows: pd.DataFrame) -> str:
    """Return the page's table, and the differences between recipes."""
    scores = {recipe: rows[rows["recipe"] == recipe] for recipe in RECIPES}
    first = rows.iloc[0]
    lines = [
        f"Held-out pass@1 after 240 steps, {first['prompts']} prompts × {first['samples']} samples, on the starting "
        f"model that comes with the package (pass@1 {first['base_pass@1']:.3f}; SHA-256 of its weights "
        f"`{first['base_hash'][:12]}…`); {len(scores['plain'])} training seeds of each recipe:",
        "",
        "| recipe | | pass@1, mean | **one new run, 95 %** | pass@8, mean | one new run, 95 % |",
        "|---|---|---|---|---|---|",
    ]
    for recipe, what in RECIPES.items():
        mean_1, new_run_1 = _predicted(scores[recipe]["pass@1"])
        mean_8, new_run_8 = _predicted(scores[recipe]["pass@8"])
        cells = [f"[`{recipe}.yaml`]({recipe}.yaml)", what, mean_1, f"**{new_run_1}**", mean_8, new_run_8]
        lines.append(f"| {' | '.join(cells)} |")
    plain, control, a, b, c = (list(scores[recipe]["pass@1"]) for recipe in RECIPES)
    ratio = fieller_ratio(b, a)
    lines += [
        "",
        "Differences of the means, with 95 % t-intervals over the training seeds, paired by seed: "
        f"A − control {_difference(a, control)}; B − A {_difference(b, a)} (B has "
        f"{ratio.value:.0%} [{ratio.low:.0%}, {ratio.high:.0%}] of A's score); plain − B {_difference(plain, b)}; "
        f"C − A {_difference(c, a)}.",
        "",
    ]
    return "\n".join(lines)


def _predicted(values: pd.Series) -> tuple[str, str]:
    """Return the mean of every training seed's score, and the prediction interval of one new run."""
    mean, low, high = prediction_interval(list(values))
    return f"{mean:.3f}", f"[{max(low, 0):.3f}, {min(high, 1):.3f}]"


def _difference(first: list[float], second: list[float]) -> str:
    estimate = t_interval([one - other for one, other in zip(first, second, strict=True)])
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*estimate).replace("-", "−")


def with_table(page: Path, rows: pd.DataFrame) -> str:
    """Return the text of a page with its table rewritten."""
    before, rest = page.read_text().split(BEGIN)
    return before + BEGIN + text(rows) + END + rest.split(END)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write expected.csv from runs, and README.md from expected.csv.")
    parser.add_argument("runs", nargs="*", type=Path, help="evaluated run folders; other folders are skipped")
    parser.add_argument("--check", action="store_true", help="compare the runs with expected.csv; write nothing")
    args = parser.parse_args()
    runs = [run for run in args.runs if (run / "config.yaml").is_file()]
    try:
        if args.check:
            if not runs:
                raise ValueError("--check: no run in these folders.")
            raise SystemExit("\n".join(outside(runs)) or 0)
        if args.runs:
            write_rows(runs)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    PAGE.write_text(with_table(PAGE, read_rows()))


if __name__ == "__main__":
    main()
