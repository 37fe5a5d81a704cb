"""
A teacher as the reference: the runs and the table of study/protocols/teacher.md.

    python study/teacher.py run       # trains what is missing, one run at a time; a row is written as its run ends
    python study/teacher.py           # the table
    python study/teacher.py page      # also writes docs/teacher.md's

The variables BASES and FOLDER name the folders of starting models and of runs. Each run is a process of its own.
"""

import os
import shutil
import subprocess
import sys
import time
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
from protocol5 import append, graded, tested

from trl_prorl.cli.recipe import parse_recipe
from trl_prorl.eval.analysis.statistics import holm
from trl_prorl.eval.samples.held_out import HeldOut
from trl_prorl.train import build, train


STUDY = Path(__file__).resolve().parent
TABLE = STUDY / "tables" / "teacher.csv"
NAMES = ["task", "base", "variant"]
BASES = range(1, 6)
# Keys of a task in addition to study/recipes/reverse_digits.yaml; its rewards, hacked and by the verifier.
TASKS = {
    "sorting": ("--task sorting --max_completion_length 16", "inclusion_ordering", "distance"),
    "reverse_digits": ("--task reverse_digits", "ends", "exact"),
}
FAMILIES = {"sorting": ("gamed_sorting", "gamed"), "reverse_digits": ("gamed_reverse", "gamed2")}
BETA = "--beta 0.3"
NEW = {"teacher": "", "teacher_alone": "--reward_weights 0"}
REUSED = {"no_kl": "plain", "fixed": "control"}  # the names in runs.csv
LABELS = {
    "untrained": "untrained",
    "no_kl": "(a) no KL",
    "fixed": "(b) fixed reference",
    "teacher": "(c) teacher",
    "teacher_alone": "(d) teacher, no reward",
    "verifier": "(e) the verifier as the reward: the teachers",
}
TITLES = {"sorting": "sorting", "reverse_digits": "reversing"}
PAGE = STUDY.parent / "docs" / "teacher.md"
BEGIN = "<!-- Written by study/teacher.py. -->"
END = "<!-- Until here. -->"
REPEATED = (("sorting", 4, "no_kl_again"), ("reverse_digits", 4, "fixed_again"))
COMPARED = (("teacher", "fixed"), ("teacher_alone", "fixed"), ("teacher_alone", "teacher"))
# A difference, sampled, and the bounds between which its mean is predicted for each task
PREDICTIONS = (
    ("teacher", "fixed", 0.0, 1.0),
    ("teacher_alone", "teacher", 0.0, 1.0),
    ("teacher_alone", "its_teacher", -0.05, 0.05),
)


def teacher_of(base: int) -> int:
    """Return the starting model of the teacher of a starting model: the next one."""
    return base % 5 + 1


def runs() -> list[tuple]:
    """List all runs by [`NAMES`], a task at a time, teachers first; the repetitions last."""
    listed = []
    for task in TASKS:
        listed += [(task, base, "verifier") for base in BASES]
        listed += [(task, base, variant) for base, variant in product(BASES, NEW)]
    return [*REPEATED[:1], *listed, *REPEATED[1:]]


def folder_of(run: tuple) -> Path:
    return Path(os.environ["FOLDER"], "-".join(map(str, run))).resolve()


def keys_of(run: tuple) -> str:
    """Return the command line of a run."""
    task, base, variant = run
    task_keys, hacked, verified = TASKS[task]
    reward = verified if variant == "verifier" else hacked
    model = Path(os.environ["BASES"], f"{task}-{base}").resolve()
    keys = f"--config {STUDY}/recipes/reverse_digits.yaml --model_name_or_path {model} --output_dir {folder_of(run)}"
    keys += f' {task_keys} --task_options {{"reward":"{reward}"}} --max_steps 600 --seed {base} --disable_tqdm true'
    if variant in NEW:
        keys += f" {BETA} --ref_model {folder_of((task, teacher_of(base), 'verifier'))} {NEW[variant]}"
    return f"{keys} {BETA}" if variant == "fixed_again" else keys


def make(run: tuple) -> dict:
    """Train and evaluate a run, and return its row."""
    output = folder_of(run)
    shutil.rmtree(output, ignore_errors=True)  # of an interrupted run
    began = time.time()
    train(*build(*parse_recipe(keys_of(run).split())))
    log = pd.read_json(output / "metrics.jsonl", lines=True)
    row = dict(zip(NAMES, run, strict=True)) | {"seconds": round(time.time() - began)}
    row |= {"tokens": log["tokens_generated"].sum(), "ref_tokens": log["tokens_processed_ref"].sum()}
    row["reward_end"] = log["reward"].iloc[-50:].mean()
    if "kl_ref" in log:
        row |= {"kl_first": log["kl_ref"].iloc[0], "kl_last": log["kl_ref"].iloc[-50:].mean()}
    held_out = HeldOut(output, "test", 256)
    for prefix, model in (("", held_out.trained), ("untrained_", held_out.base)):
        row[f"{prefix}sampled"] = held_out.samples(model, 16)["correct"].mean()
        row[f"{prefix}greedy"] = held_out.samples(model, 1, temperature=0.0)["correct"].mean()
    row["commit"] = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=STUDY, text=True).strip()[:12]
    return row


def make_missing() -> None:
    done = set()
    if TABLE.exists():
        done = set(pd.read_csv(TABLE)[NAMES].itertuples(index=False, name=None))
    for run in runs():
        if run in done:
            continue
        with get_context("fork").Pool(1) as pool:
            row = pool.apply(make, (run,))
        append(TABLE, pd.DataFrame([row]), NAMES)
        print(*run, f"{row['sampled']:.3f} sampled, {row['greedy']:.3f} greedy, {row['seconds']} s", flush=True)


def reused() -> pd.DataFrame:
    """Return the rows of no KL and the fixed reference whose training seed is the starting model's number."""
    table = pd.read_csv(STUDY / "tables" / "runs.csv")
    table = table[table["seed"] == table["base_seed"]]
    parts = []
    for (task, (family, block)), (variant, arm) in product(FAMILIES.items(), REUSED.items()):
        rows = table[(table["family"] == family) & (table["block"] == block) & (table["arm"] == arm)]
        rows = rows.rename(columns={"base_seed": "base", "pass@1": "sampled", "tokens_generated": "tokens"})
        parts.append(rows.assign(task=task, variant=variant))
    return pd.concat(parts)[[*NAMES, "sampled", "greedy", "tokens", "commit"]]


def accuracies() -> pd.DataFrame:
    """Return all variants' rows, with the untrained models, and each starting model's teacher as `its_teacher`."""
    new = pd.read_csv(TABLE)
    verified = new[new["variant"] == "verifier"]
    student = {teacher_of(base): base for base in BASES}
    teachers = verified.assign(variant="its_teacher", base=verified["base"].map(student))
    untrained = verified.assign(
        variant="untrained", sampled=verified["untrained_sampled"], greedy=verified["untrained_greedy"]
    )
    return pd.concat([reused(), new, teachers, untrained])


def differences(rows: pd.DataFrame, task: str, pairs) -> list[dict]:
    """Return each pair's differences on a task, sampled and greedy, of pairs that have all starting models."""
    found = []
    for (first, second), score in product(pairs, ("sampled", "greedy")):
        values = paired(rows, task, first, second, score)
        if len(values) == len(BASES):
            found.append({"task": task} | tested(f"{first} − {second}, {score}", values))
    return found


def paired(rows: pd.DataFrame, task: str, first: str, second: str, score: str) -> pd.Series:
    """Return the differences of two variants' accuracies on a task, by starting model."""
    of_task = rows[rows["task"] == task].set_index("base")
    one, other = (of_task.loc[of_task["variant"] == variant, score] for variant in (first, second))
    return (one - other).dropna()


def table() -> None:
    rows = accuracies()
    columns = ["sampled", "greedy", "tokens", "ref_tokens", "reward_end", "kl_first", "kl_last"]
    print(rows.groupby(["task", "variant"])[columns].mean().to_string())
    registered = pd.DataFrame(sum((differences(rows, task, COMPARED) for task in TASKS), []))
    registered["p (Holm)"] = holm(registered["p"])
    print(registered.to_string(index=False))
    others = [("teacher", "no_kl"), ("teacher", "verifier"), ("teacher_alone", "its_teacher")]
    others += [(variant, "untrained") for variant in NEW]
    print(pd.DataFrame(sum((differences(rows, task, others) for task in TASKS), [])).to_string(index=False))
    found = []
    for task, (first, second, low, high) in product(TASKS, PREDICTIONS):
        values = paired(rows, task, first, second, "sampled")
        if len(values) == len(BASES):
            found.append(graded(f"{task}: {first} − {second}", values, low, high))
    print(pd.DataFrame(found).to_string(index=False))


def percent(value: float) -> str:
    return "–" if pd.isna(value) else f"{100 * value:.0f}"


def write_page() -> None:
    """Write docs/teacher.md's table and registered differences."""
    rows = accuracies()
    lines = ["| | sorting: sampled | greedy | reversing: sampled | greedy |", "|---|---|---|---|---|"]
    for variant, label in LABELS.items():
        of_variant = rows[rows["variant"] == variant]
        means = [of_variant.loc[of_variant["task"] == task, ["sampled", "greedy"]].mean() for task in TASKS]
        lines.append(f"| {label} | {' | '.join(percent(value) for mean in means for value in mean)} |")
    registered = pd.DataFrame(sum((differences(rows, task, COMPARED) for task in TASKS), []))
    registered["p (Holm)"] = holm(registered["p"])
    lines += ["", "Registered differences in points, with 95 % intervals and Holm's p:", ""]
    for test in registered.to_dict("records"):
        points = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * test[name] for name in ("mean", "low", "high")))
        points = points.replace("-", "−")
        lines.append(f"- {TITLES[test['task']]}, {test['name']}: {points}, p {test['p (Holm)']:.3f}")
    text = PAGE.read_text()
    before, _, rest = text.partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    PAGE.write_text(before + f"{BEGIN}\n" + "\n".join(lines) + f"\n{END}" + after)


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        make_missing()
    table()
    if sys.argv[1:] == ["page"]:
        write_page()
