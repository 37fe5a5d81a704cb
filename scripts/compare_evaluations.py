"""
Two commits evaluate the same ten run folders: which of their numbers differ?

    python scripts/compare_evaluations.py main HEAD --cache runs/compare_evaluations

The runs are trained once by the first commit, into the cache. Each commit gets a copy of them, samples it anew and
writes passk.json, drift.json, the JSON of `compare` and `preflight`, the report's page and the output of `why`. Every
number that is not equal to the bit is printed: its path, its old and its new value. Numbers of one side alone are
counted by name. Only the measured time and memory of `preflight` are left out.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compare_commits import unpack


KEYS = "--max_steps 24 --save_strategy steps --save_steps 8 --logging_steps 1 --report_to none --disable_tqdm true"
RECIPES = {
    "no_kl": "tiny/plain",
    "A": "tiny/variantA --ref_reset_every 10",
    "B": "tiny/variantB",
    "C": "tiny/variantC --ref_reset_every 10",
    "resets": "tiny/variantA --ref_reset_every 6 --optimizer_reset soft --seed 2",
    "dynamic": "tiny/control --dynamic_sampling_rounds 2",
    "evaluated": "tiny/control --eval_strategy steps --eval_steps 8 --seed 2",
    "resumed": "tiny/plain --seed 2 --learning_rate 0.001",
}
RESUME = "--resume_from_checkpoint true --allow_config_change true --learning_rate 0.0005"
TRL_RUNS = {"trl": 1, "trl_seed2": 2}  # name: seed
TRAIN_TRL = """
import sys
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from trl_prorl import RunRecorder, embedded_model, task_reward
from trl_prorl.tasks import get_task

folder, seed = sys.argv[1], int(sys.argv[2])
task = get_task("reverse_digits", level=3)
args = GRPOConfig(
    folder, max_steps=24, save_strategy="no", logging_steps=1, per_device_train_batch_size=128, num_generations=8,
    max_completion_length=12, learning_rate=5e-4, beta=0.1, seed=seed, bf16=False, use_cpu=True, report_to="none",
    disable_tqdm=True, gradient_checkpointing=False,
)
adapter = LoraConfig(r=32, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
rows = task.rows("train", 512)
trainer = GRPOTrainer(
    embedded_model(), task_reward(task), args, rows, peft_config=adapter, callbacks=[RunRecorder()]
)
trainer.train()
trainer.save_model(folder)
"""
PREFLIGHTS = {"A": "tiny/variantA", "hacked": "tiny/gamed/plain", "slow": "tiny/plain --learning_rate 1e-6"}
# `resumed` changed its learning rate, so it is no seed of `no_kl`: it is compared with it alone.
GROUPED = " ".join(name for name in (*RECIPES, *TRL_RUNS) if name != "resumed")
SAMPLING = "--prompts 24 --checkpoints all"
MEASURED = re.compile("second|time|memory|GiB|tokens per|cost", re.I)  # findings that differ from call to call
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def call(tree: Path, folder: Path, *words: str) -> str:
    """Run Python with the code of a tree in a folder, on one thread; return what it prints."""
    variables = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True
    )
    if done.returncode not in (0, 1):
        sys.exit(f"error: {shlex.join(words)} failed with the code in {tree}:\n{done.stdout}{done.stderr[-3000:]}")
    return done.stdout


def command(tree: Path, folder: Path, words: str) -> str:
    return call(tree, folder, "-m", "trl_prorl", *shlex.split(words))


def train_runs(tree: Path, cache: Path) -> None:
    """Train the runs that the cache does not have."""
    cache.mkdir(parents=True, exist_ok=True)
    for name, recipe in RECIPES.items():
        if not (cache / name / "finished").exists():
            shutil.rmtree(cache / name, ignore_errors=True)
            words = f"train {recipe} {KEYS} --output_dir {name}"
            if name == "resumed":
                command(tree, cache, f"{words} --max_steps 12 --save_steps 4")
                words += f" --save_steps 4 {RESUME}"
            command(tree, cache, words)
            (cache / name / "finished").touch()
    for name, seed in TRL_RUNS.items():
        if not (cache / name / "finished").exists():
            shutil.rmtree(cache / name, ignore_errors=True)
            call(tree, cache, "-c", TRAIN_TRL, name, str(seed))
            (cache / name / "finished").touch()


def evaluate(tree: Path, cache: Path, runs: Path) -> dict[str, Any]:
    """Evaluate a copy of the runs with the code of a tree; return the results by name."""
    shutil.copytree(cache, runs)
    recipes = " ".join(RECIPES)
    command(tree, runs, f"passk --run {recipes} {SAMPLING} --n 8 --k 1 4 8")
    command(tree, runs, f"passk --run A B {SAMPLING} --n 8 --k 1 4 8 --others parity@2")
    for name in TRL_RUNS:
        options = "--task reverse_digits@3 --prompts 24 --n 8 --k 1 4 8 --temperature 1 --max-new-tokens 12"
        command(tree, runs, f"passk --model {name} {options} --out {name}")
    command(tree, runs, f"drift --run {recipes} {SAMPLING} --samples 2")
    for name, recipe in PREFLIGHTS.items():
        command(tree, runs, f"preflight {recipe} --prompts 8 --json preflight_{name}.json")
    return read_results(tree, runs)


def read_results(tree: Path, runs: Path) -> dict[str, Any]:
    """Compare and report evaluated runs with the code of a tree; return all results by name."""
    command(tree, runs, f"compare --runs {GROUPED} --json compare.json")
    command(tree, runs, "compare --runs no_kl resumed --json compare_two.json")
    command(tree, runs, f"report --runs {GROUPED} --out page.html")
    lines = command(tree, runs, f"why {GROUPED} resumed").splitlines()
    results = {"why": {line.partition(":")[0]: line for line in lines}}
    for path in sorted([*runs.glob("*/passk.json"), *runs.glob("*/drift.json"), *runs.glob("*.json")]):
        content = json.loads(path.read_text())
        if "comparisons" in content:
            content = dict(map(named_pair, content["comparisons"]))
        if "findings" in content:
            rows = dict(map(named_finding, content["findings"]))
            content = {label: row for label, row in rows.items() if not MEASURED.search(label)}
        results[str(path.relative_to(runs))] = content
    page = Cells()
    page.feed((runs / "page.html").read_text())
    results["page"] = page.cells
    return results


def named_pair(row: dict) -> tuple[str, dict]:
    """Return a comparison by its runs and outcome, which stand in its key in place of the row."""
    row = dict(row)
    return f"{short(row.pop('first'))} - {short(row.pop('second'))}, {row['outcome']}", row


def named_finding(row: dict) -> tuple[str, dict]:
    """Return a finding of a preflight by its printed name, which once was its label."""
    row = dict(row)
    what = row.pop("what")
    return row.pop("label", what), row


def short(label: str) -> str:
    """Return the label of a run without what stands in parentheses, and without its star."""
    return re.sub(r" \(.*?\)| ★", "", label)


class Cells(HTMLParser):
    """The numbers in a page's tables, by column and row."""

    def __init__(self):
        super().__init__()
        self.cells: dict[str, list[str]] = {}
        self.header: list[str] = []
        self.row: list[str] = []
        self.text: list[str] | None = None

    def handle_starttag(self, tag, attrs):
        if tag == "thead":
            self.header = []
        if tag == "tr":
            self.row = []
        if tag in ("th", "td"):
            self.text = []

    def handle_data(self, data):
        if self.text is not None:
            self.text.append(data)

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.row.append(" ".join("".join(self.text).split()))
            self.text = None
        if tag == "thead":
            self.header = self.row
        if tag == "tr" and self.row is not self.header and len(self.row) == len(self.header):
            for column, cell in zip(self.header[1:], self.row[1:], strict=True):
                self.cells.setdefault(f"{short(self.row[0])} | {column}", []).append(" ".join(NUMBER.findall(cell)))


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of a result by their path."""
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    else:
        return {path: value}
    leaves = {}
    for name, part in parts:
        leaves |= flatten(part, f"{path}/{name}")
    return leaves


def print_differences(name: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Print how many leaves of a result are equal, those that differ, and where there are leaves of one side alone."""
    shared = old.keys() & new.keys()
    different = [path for path in old if path in shared and old[path] != new[path]]
    print(f"{name}: {len(shared) - len(different)} equal, {len(different)} differ")
    for path in different:
        print(f"    {path}\n        old {old[path]!r}\n        new {new[path]!r}")
    for side, paths in (("old", old.keys() - shared), ("new", new.keys() - shared)):
        names = Counter("/".join(path.split("/")[:2]) for path in paths)
        for path, count in sorted(names.items()):
            print(f"    only {side}: {path} ({count})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default="HEAD")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the trained runs")
    args = parser.parse_args()
    cache = args.cache.resolve()
    with TemporaryDirectory() as folder:
        trees = [Path(folder, "old"), Path(folder, "new")]
        for commit, tree in zip((args.old, args.new), trees, strict=True):
            unpack(commit, tree)
        train_runs(trees[0], cache)
        old, new = [evaluate(tree, cache, Path(folder, f"runs_{tree.name}")) for tree in trees]
    for name in old:
        print_differences(name, flatten(old[name]), flatten(new.get(name, {})))


if __name__ == "__main__":
    main()
