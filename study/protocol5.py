"""
The fifth protocol's runs, table, tests and pictures. study/protocols/protocol5.md says what they are for.

    python study/protocol5.py run FOLDER exact        # trains what is missing; a row is committed as its run ends
    python study/protocol5.py questions FOLDER        # keeps SmolLM2's scores by question
    python study/protocol5.py table                   # tests, predictions, pictures, from study/tables/protocol5*.csv

FOLDER keeps the runs. Parts: `tuning`, `exact`, `smollm2`. Options of `run`: --jobs 2, --only 5 (so many runs),
--tables STUDY/TABLES of another checkout.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from threading import Lock

import numpy as np
import pandas as pd
from filelock import FileLock
from matplotlib.figure import Figure
from scipy import stats

from trl_prorl.embedded.shipped import weights_sha256
from trl_prorl.eval.analysis.statistics import holm, t_interval
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.eval.samples.models import checkpoint_points
from trl_prorl.tasks.instructions import tokens


STUDY = Path(__file__).resolve().parent
TABLES = STUDY / "tables"
NAMES = {part: f"protocol5_{part}.csv" for part in ("tuning", "exact", "smollm2")}
CURVES = "protocol5_curves.csv"
QUESTIONS = "protocol5_questions.csv"  # SmolLM2's scores by question
STARTING = "protocol5_bases"
LOGS = "protocol5_logs"  # a run's metrics.jsonl, 4 digits, without times

STEPS = {"reverse_digits": 3000, "sums": 1500}
WARM_STARTS = {"reverse_digits": {"wrong_share": 0.15, "level": 8, "steps": 450}, "sums": {"wrong_share": 0.3}}
BASES = range(11, 21)
TUNING_BASES = (91, 92)
TUNING_STEPS = 600
BETAS = (0.1, 0.3, 1.0)
WITHIN = 0.01  # of the best accuracy: the largest such β is chosen
RESETS = {"ref_reset_every": 300}
TEMPERATURES = (0.3, 0.7, 1.0)
MARGIN = 0.03
COMPARED = (("A", "no_kl"), ("C_hard", "A"), ("A", "fixed"), ("fixed", "no_kl"))  # the first two are registered
# A difference of two variants, its score, and the bounds between which its mean is predicted
PREDICTIONS = (
    ("E1", "A", "no_kl", "sampled", -MARGIN, MARGIN),
    ("E2", "A", "no_kl", "greedy", -MARGIN, MARGIN),
    ("E3", "C_hard", "A", "sampled", -MARGIN, MARGIN),
    ("E4", "C_hard", "A", "greedy", -MARGIN, MARGIN),
    ("E5", "fixed", "no_kl", "sampled", -np.inf, 0.0),
    ("E6", "A", "fixed", "sampled", 0.0, np.inf),
    ("E7", "A", "no_kl", "pass@64", 0.0, np.inf),
)
SMOLLM2_PREDICTIONS = (
    ("S1", "KL − no KL, sampled", 0.0, np.inf),
    ("S2", "KL − no KL, greedy", 0.0, np.inf),
    ("S3", "KL − untrained, sampled", 0.0, np.inf),
    ("S4", "KL − no KL, stopped, sampled", -0.08, 0.08),
)
TITLES = {"reverse_digits": "reversing", "sums": "sums"}
LABELS = {
    "no_kl": "no KL",
    "fixed": "fixed reference",
    "A": "moving reference (A)",
    "C_hard": "A, Adam's state cleared (C)",
}
SMOLLM2_SEEDS = range(11, 17)
SMOLLM2 = {"no_kl": {"save_strategy": "steps", "save_steps": 20}, "kl_target": {"beta": 0.3, "kl_target": 0.066}}
DROPPED = ("time_", "tokens_per_", "positions_per_", "peak_memory", "gpu_")
git_lock = Lock()


@dataclass(frozen=True)
class Run:
    part: str
    task: str
    base: int
    variant: str
    steps: int
    seed: int
    keys: tuple = ()

    @property
    def name(self) -> str:
        return f"{self.part}-{self.task}-{self.base}-{self.variant}-seed{self.seed}"


def chosen_beta(tuning: pd.DataFrame, task: str, variant: str) -> float:
    """Return the largest β of a variant within [`WITHIN`] of the best mean accuracy over the tuning's models."""
    rows = tuning[tuning["task"] == task]
    rows = rows[rows["variant"].str.startswith(f"{variant}_beta")]
    means = rows.groupby("beta")["sampled"].mean()
    return float(means.index[means >= means.max() - WITHIN].max())


def tuning_runs() -> list[Run]:
    runs = []
    for task in STEPS:
        for base in TUNING_BASES:
            for beta in BETAS:
                for variant, keys in (("fixed", {}), ("A", RESETS)):
                    all_keys = tuple({"beta": beta, **keys}.items())
                    runs.append(Run("tuning", task, base, f"{variant}_beta{beta}", TUNING_STEPS, base, all_keys))
    return runs


def exact_runs(tuning: pd.DataFrame) -> list[Run]:
    runs = []
    for base in BASES:
        for task, steps in STEPS.items():
            fixed = {"beta": chosen_beta(tuning, task, "fixed")}
            moving = {"beta": chosen_beta(tuning, task, "A"), **RESETS}
            variants = {"no_kl": {}, "fixed": fixed, "A": moving, "C_hard": {**moving, "optimizer_reset": "hard"}}
            for variant, keys in variants.items():
                runs.append(Run("exact", task, base, variant, steps, base, tuple(keys.items())))
    return runs


def smollm2_runs() -> list[Run]:
    return [
        Run("smollm2", "smollm2_256", 1, variant, 160, seed, tuple(keys.items()))
        for seed in SMOLLM2_SEEDS
        for variant, keys in SMOLLM2.items()
    ]


def make_base(tables: Path, task: str, number: int) -> Path:
    """Return the folder of a starting model, which is made if it is not there: other machines make other weights."""
    path = tables / STARTING / f"{task}-{number}"
    path.parent.mkdir(exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            sys.path.insert(0, str(STUDY.parent / "scripts"))
            making = import_module("embedded_bases")
            making.make_embedded_model(path, replace(making.settings_of(task, number), **WARM_STARTS[task]))
    return path


def train(run: Run, folder: Path, tables: Path) -> Path:
    """Train a run, or go on with it; return its folder."""
    output = folder / run.part / run.name
    keys = {"seed": run.seed, "max_steps": run.steps, "output_dir": output, "disable_tqdm": "true", **dict(run.keys)}
    recipe = f"{run.task}.yaml"
    if run.part != "smollm2":
        keys["model_name_or_path"] = make_base(tables, run.task, run.base)
        recipe = f"p5_{recipe}"
    if not (output / "adapter_model.safetensors").exists():
        options = [part for key, value in keys.items() for part in (f"--{key}", str(value))]
        command = [
            str(Path(sys.executable).with_name("trl-prorl")),
            "train",
            str(STUDY / "recipes" / recipe),
            *options,
        ]
        if any(output.glob("checkpoint-*")):
            command += ["--resume_from_checkpoint", "true"]
        elif output.exists():
            shutil.rmtree(output)  # an interrupted run without a checkpoint
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output


def exact_scores(output: Path, prompts: int, many: int) -> dict[str, float]:
    """Return the scores of a run's end and of its starting model on `prompts` test questions."""
    test = HeldOut(output, "test", prompts)
    validation = HeldOut(output, "validation", prompts // 2)
    scores = {}
    for prefix, model in (("", test.trained), ("base_", test.base)):
        chosen = {T: validation.samples(model, 4, temperature=T)["correct"].mean() for T in TEMPERATURES}
        best = max(TEMPERATURES, key=lambda temperature, found=chosen: found[temperature])
        scores[f"{prefix}sampled"] = test.samples(model, 8)["correct"].mean()
        scores[f"{prefix}greedy"] = test.samples(model, 1, temperature=0.0)["correct"].mean()
        scores[f"{prefix}best_temperature"] = best
        scores[f"{prefix}at_best"] = test.samples(model, 8, temperature=best)["correct"].mean()
        if many:
            drawn = HeldOut(output, "test", prompts // 2).samples(model, many)
            scores[f"{prefix}pass@{many}"] = drawn.groupby("prompt_id")["correct"].max().mean()
    return scores


def makes_sense(row: pd.Series) -> bool:
    """Return whether a correct text has at least six words, one of which is not in its prompt (the stricter score)."""
    words = tokens(row["completion"])
    return bool(row["correct"]) and len(words) >= 6 and not set(words) <= set(tokens(row["prompt"]))


def strict(held_out: HeldOut, model, samples: int, **temperature) -> float:
    return float(held_out.samples(model, samples, **temperature).apply(makes_sense, axis=1).mean())


def smollm2_models(output: Path, test: HeldOut, prompts: int) -> dict:
    """Return a run's end, its starting model, and the checkpoint that validation chooses, if it kept checkpoints."""
    validation = HeldOut(output, "validation", prompts)
    models = {"": test.trained, "base_": test.base}
    before = checkpoint_points(output, ["all"]) if any(output.glob("checkpoint-*")) else []
    if before:
        candidates = [*before, test.trained]
        models["stopped_"] = max(candidates, key=lambda model: strict(validation, model, 2))
    return models


def smollm2_scores(output: Path, prompts: int) -> dict[str, float]:
    """Return the stricter scores of a run's models."""
    test = HeldOut(output, "test", prompts)
    scores = {}
    for prefix, model in smollm2_models(output, test, prompts).items():
        scores[f"{prefix}step"] = model.step
        scores[f"{prefix}sampled"] = strict(test, model, 8)
        scores[f"{prefix}greedy"] = strict(test, model, 1, temperature=0.0)
        scores[f"{prefix}first_score"] = test.samples(model, 8)["correct"].mean()
    return scores


def keep_log(output: Path, tables: Path, run: Run) -> None:
    """Keep a run's log, without times, in four digits, and its curve of held-out accuracy."""
    rows = pd.read_json(output / "metrics.jsonl", lines=True)
    rows = rows[[name for name in rows if not name.startswith(DROPPED)]]
    path = tables / LOGS / f"{run.name}.csv.xz"
    path.parent.mkdir(exist_ok=True)
    rows.to_csv(path, index=False, float_format="%.4g")
    evaluations = output / "evaluations.jsonl"
    if evaluations.exists():
        found = pd.read_json(evaluations, lines=True).drop_duplicates("step", keep="last")
        curve = found[["step", "eval_pass@1"]].assign(run=run.name)
        append(tables / CURVES, curve, ["run", "step"])


def append(path: Path, rows: pd.DataFrame, unique: list[str]) -> None:
    """Add rows to a table, in place of earlier ones with the same key."""
    if path.exists():
        rows = pd.concat([pd.read_csv(path), rows])
    aside = path.with_suffix(".new")
    rows.drop_duplicates(unique, keep="last").sort_values(unique).to_csv(aside, index=False, float_format="%.6g")
    aside.replace(path)


def make_run(run: Run, folder: Path, tables: Path) -> None:
    """Train, evaluate and enter a run, in a process of its own each, and commit its row."""
    log = folder / "logs" / f"{run.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    result = log.with_suffix(".json")
    if not result.exists():
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(STUDY.parent)}
        command = [sys.executable, __file__, "one", str(folder), json.dumps(vars(run)), "--tables", str(tables)]
        with log.open("a") as written:
            done = subprocess.run(command, env=env, stdout=written, stderr=written, check=False)
        if done.returncode:
            print(f"{run.name} failed: {log}", flush=True)
            return
    with git_lock:
        keep_log(folder / run.part / run.name, tables, run)
        row = pd.DataFrame([json.loads(result.read_text())])
        append(tables / NAMES[run.part], row, ["task", "base", "seed", "variant"])
        message = f"Protocol 5: {run.name}, {row['sampled'].iloc[0]:.3f} sampled, {row['greedy'].iloc[0]:.3f} greedy"
        print(message, flush=True)
        for command in (["add", "."], ["commit", "-qm", message, "--", "."]):
            subprocess.run(["git", *command], cwd=tables, check=False)


def one(folder: Path, text: str, tables: Path) -> None:
    """Train and evaluate one run, in this process, and write its row."""
    fields = json.loads(text)
    run = Run(**{**fields, "keys": tuple(map(tuple, fields["keys"]))})
    output = train(run, folder, tables)
    row = {name: value for name, value in vars(run).items() if name not in ("part", "keys")}
    rows = pd.read_json(output / "metrics.jsonl", lines=True)
    row["beta"] = dict(run.keys).get("beta", 0.0)
    if run.part != "smollm2":
        row["base_hash"] = weights_sha256(str(make_base(tables, run.task, run.base)))[:16]
    row["commit"] = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=STUDY, text=True).strip()[:12]
    row["tokens_generated"] = int(rows["tokens_generated"].sum())
    row["kl_ref_end"] = rows["kl_ref"].iloc[-100:].mean() if "kl_ref" in rows else None
    scores = {
        "tuning": lambda: exact_scores(output, 256, 0),
        "exact": lambda: exact_scores(output, 512, 64),
        "smollm2": lambda: smollm2_scores(output, 256),
    }
    row |= {name: float(value) for name, value in scores[run.part]().items()}
    result = folder / "logs" / f"{run.name}.json"
    result.write_text(json.dumps(row))


def difference(table: pd.DataFrame, unit: str, one: str, other: str, score: str) -> pd.Series:
    """Return the differences of a score between two variants, one for each unit, tasks averaged."""
    means = table.groupby([unit, "task", "variant"])[score].mean().unstack("variant")
    return (means[one] - means[other]).groupby(unit).mean().dropna()


def tested(name: str, values: pd.Series) -> dict:
    """Return mean, interval, p, and the 90 % interval that a test of equivalence compares with the margin."""
    mean, low, high = t_interval(values)
    _, narrow_low, narrow_high = t_interval(values, 0.9)
    p = stats.ttest_1samp(values, 0.0).pvalue
    is_equivalent = -MARGIN < narrow_low and narrow_high < MARGIN
    return {
        "name": name,
        "mean": mean,
        "low": low,
        "high": high,
        "90 % low": narrow_low,
        "90 % high": narrow_high,
        "p": p,
        "within margin": is_equivalent,
        "n": len(values),
    }


def answer(test: pd.Series) -> str:
    """Return the protocol's answer for a registered test, which can be two of three."""
    answers = []
    if test["p (Holm)"] < 0.05:
        answers.append("different")
    if test["within margin"]:
        answers.append("equivalent within 3 points")
    return " and ".join(answers) or "open"


def graded(name: str, values: pd.Series, low: float, high: float) -> dict:
    """Grade a prediction that a mean lies between two bounds: it is refuted if the 95 % interval lies outside."""
    mean, interval_low, interval_high = t_interval(values)
    return {
        "prediction": name,
        "mean": mean,
        "low": interval_low,
        "high": interval_high,
        "met": low < mean < high,
        "refuted": interval_low > high or interval_high < low,
    }


def exact_predictions(table: pd.DataFrame) -> pd.DataFrame:
    """Grade the predictions E1 to E8."""
    found = []
    for name, first, second, score, low, high in PREDICTIONS:
        values = difference(table, "base", first, second, score)
        found.append(graded(f"{name} {first} − {second}, {score}", values, low, high))
    sampled = abs(difference(table, "base", "A", "no_kl", "sampled").mean())
    at_best = difference(table, "base", "A", "no_kl", "at_best")
    # Refuted as soon as the mean is farther from 0: E8 has no interval.
    nearer = graded(f"E8 A − no_kl, at_best, within ±{sampled:.4f}", at_best, -sampled, sampled)
    found.append(nearer | {"refuted": abs(nearer["mean"]) > sampled})
    return pd.DataFrame(found)


def exact_tests(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the registered tests, with Holm's p and the answer, and the secondary differences."""
    found = []
    for pairs, scores in (
        (COMPARED[:2], ("sampled", "greedy")),
        (COMPARED[2:], ("sampled", "greedy")),
        (COMPARED, ("at_best", "pass@64")),
    ):
        for first, second in pairs:
            for score in scores:
                values = difference(table, "base", first, second, score)
                if len(values) > 1:
                    found.append(tested(f"{first} − {second}, {score}", values))
    frame = pd.DataFrame(found)
    registered = frame.iloc[:4].copy()
    registered["p (Holm)"] = holm(registered["p"])
    registered["answer"] = registered.apply(answer, axis=1)
    return registered, frame.iloc[4:]


def slopes(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the slope of accuracy over the last third of each run, in points per 1,000 steps."""
    found = []
    for name, curve in curves.groupby("run"):
        last = curve[curve["step"] >= curve["step"].max() * 2 / 3]
        _, task, base, variant, _ = name.split("-")
        found.append(
            {
                "task": task,
                "base": base,
                "variant": variant,
                "slope": 1e5 * np.polyfit(*last[["step", "eval_pass@1"]].T.to_numpy(), 1)[0],
            }
        )
    return pd.DataFrame(found)


def slope_tests(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the differences of slopes, in points per 1,000 steps: secondary outcomes."""
    table = slopes(curves)
    rows = [tested(f"{a} − {b}, slope", difference(table, "base", a, b, "slope")) for a, b in COMPARED]
    return pd.DataFrame(rows).drop(columns=["90 % low", "90 % high", "within margin"])


def check_whole(table: pd.DataFrame, runs: list[Run]) -> None:
    """Raise `SystemExit` if a run's row is missing, or is there twice: a number would have one task alone."""
    keys = ["task", "base", "seed", "variant"]
    there = table[keys].apply(tuple, axis=1).to_list()
    missing = [run.name for run in runs if (run.task, run.base, run.seed, run.variant) not in there]
    if missing or len(there) != len(runs):
        raise SystemExit(f"{len(there)} rows for {len(runs)} runs; missing: {', '.join(missing) or 'none'}.")


def smollm2_differences(table: pd.DataFrame, unit: str) -> dict[str, pd.Series]:
    """Return the differences of SmolLM2's scores by unit, seeds or questions: four registered, then early stopping."""
    means = table.groupby([unit, "variant"]).mean(numeric_only=True).unstack("variant")
    others = {"no KL": ("", "no_kl"), "untrained": ("base_", "kl_target"), "no KL, stopped": ("stopped_", "no_kl")}
    return {
        f"KL − {name}, {score}": (means[score, "kl_target"] - means[f"{prefix}{score}", variant]).dropna()
        for name, (prefix, variant) in others.items()
        for score in ("sampled", "greedy")
    }


def smollm2_tests(table: pd.DataFrame, questions: pd.DataFrame) -> pd.DataFrame:
    """
    Return SmolLM2's differences: the unit is the seed, intervals over questions (means over seeds) stand beside, and
    Holm's p is over the four registered ones.
    """
    by_question = smollm2_differences(questions, "question")
    rows = []
    for name, values in smollm2_differences(table, "seed").items():
        over_questions = t_interval(by_question[name])
        rows.append(tested(name, values) | {"low, questions": over_questions[1], "high, questions": over_questions[2]})
    found = pd.DataFrame(rows)
    found.loc[:3, "p (Holm)"] = holm(found["p"].iloc[:4])
    return found.drop(columns=["within margin", "90 % low", "90 % high"])


def smollm2_predictions(table: pd.DataFrame) -> pd.DataFrame:
    """Grade the predictions S1 to S4."""
    values = smollm2_differences(table, "seed")
    return pd.DataFrame(
        graded(f"{key} {name}", values[name], low, high) for key, name, low, high in SMOLLM2_PREDICTIONS
    )


def keep_questions(folder: Path, tables: Path) -> None:
    """
    Keep the scores of finished SmolLM2 runs by question: shares of correct samples, of the model's end, its starting
    model and the chosen checkpoint. The samples are in the runs' folders; a missing one would be drawn again.
    """
    prompts = 256
    for run in smollm2_runs():
        output = folder / run.part / run.name
        if not (folder / "logs" / f"{run.name}.json").exists():
            continue
        test = HeldOut(output, "test", prompts)
        table = pd.DataFrame({"question": test.prompt_ids})
        for prefix, model in smollm2_models(output, test, prompts).items():
            for score, n, settings in (("sampled", 8, {}), ("greedy", 1, {"temperature": 0.0})):
                drawn = test.samples(model, n, **settings)
                correct = drawn.apply(makes_sense, axis=1).groupby(drawn["prompt_id"]).mean()
                table[f"{prefix}{score}"] = table["question"].map(correct)
        append(tables / QUESTIONS, table.assign(seed=run.seed, variant=run.variant), ["seed", "variant", "question"])


def draw(curves: pd.DataFrame, path: Path) -> None:
    """Draw held-out accuracy over steps, the mean of all starting models."""
    parts = curves["run"].str.split("-", expand=True)
    curves = curves.assign(task=parts[1], variant=parts[3])
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, (task, rows) in zip(figure.subplots(1, 2), curves.groupby("task"), strict=True):
        for variant, label in LABELS.items():
            points = rows[rows["variant"] == variant]
            axes.plot(points.groupby("step")["eval_pass@1"].mean(), label=label)
        axes.set(title=TITLES[task], xlabel="step", ylabel="accuracy on validation questions, sampled")
    axes.legend()
    figure.savefig(path, dpi=120)


def draw_seeds(table: pd.DataFrame, path: Path) -> None:
    """Draw SmolLM2's stricter scores by seed."""
    no_kl, kl = (table[table["variant"] == variant].set_index("seed") for variant in ("no_kl", "kl_target"))
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, score in zip(figure.subplots(1, 2, sharey=True), ("sampled", "greedy"), strict=True):
        axes.plot(100 * kl[score], "o", color="tab:orange", label="fixed reference, kl_target 0.066")
        axes.plot(100 * no_kl[f"stopped_{score}"], "s", color="tab:gray", label="no KL, early stopping")
        axes.plot(100 * no_kl[score], "x", color="black", label="no KL")
        axes.axhline(100 * kl[f"base_{score}"].mean(), color="black", linestyle=":", label="starting model")
        axes.set(title=score, xlabel="seed", xticks=kl.index, ylabel="stricter score, %", ylim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=120)


def table(tables: Path) -> None:
    tuning = pd.read_csv(tables / NAMES["tuning"])
    print(tuning.groupby(["task", "variant"])[["sampled", "greedy", "kl_ref_end"]].mean().to_string())
    exact = pd.read_csv(tables / NAMES["exact"])
    check_whole(exact, exact_runs(tuning))
    print(exact.groupby(["task", "variant"]).mean(numeric_only=True).to_string())
    for tests in (*exact_tests(exact), exact_predictions(exact)):
        print(tests.to_string(index=False))
    curves = pd.read_csv(tables / CURVES)
    curves = curves[curves["run"].str.startswith("exact")]
    print(slopes(curves).groupby(["task", "variant"]).mean(numeric_only=True))
    print(slope_tests(curves).to_string(index=False))
    draw(curves, STUDY / "pictures" / "protocol5.png")
    if (tables / NAMES["smollm2"]).exists():
        smollm2 = pd.read_csv(tables / NAMES["smollm2"])
        check_whole(smollm2, smollm2_runs())
        draw_seeds(smollm2, STUDY / "pictures" / "smollm2_seeds.png")
        questions = pd.read_csv(tables / QUESTIONS)
        for tests in (smollm2_tests(smollm2, questions), smollm2_predictions(smollm2)):
            print(tests.to_string(index=False))


def run_part(folder: Path, part: str, tables: Path, jobs: int, only: int | None) -> None:
    """Make the runs of a part that are not in its table."""
    if part == "exact":
        runs = exact_runs(pd.read_csv(tables / NAMES["tuning"]))
    else:
        runs = tuning_runs() if part == "tuning" else smollm2_runs()
    path = tables / NAMES[part]
    there = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["task", "base", "variant", "seed"])
    done = set(there[["task", "base", "variant", "seed"]].itertuples(index=False, name=None))
    missing = [run for run in runs if (run.task, run.base, run.variant, run.seed) not in done][:only]
    print(f"{part}: {len(runs) - len(missing)} of {len(runs)} runs are in {path.name}", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda run: make_run(run, folder, tables), missing))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "one", "questions", "table"))
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int)
    parser.add_argument("--tables", type=Path, default=TABLES)
    args = parser.parse_args()
    if args.command == "table":
        table(args.tables)
        return
    folder = Path(args.rest[0]).resolve()
    if args.command == "questions":
        keep_questions(folder, args.tables.resolve())
        return
    if args.command == "one":
        one(folder, args.rest[1], args.tables.resolve())
        return
    run_part(folder, args.rest[1], args.tables.resolve(), args.jobs, args.only)


if __name__ == "__main__":
    main()
