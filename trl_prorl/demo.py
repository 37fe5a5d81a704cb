"""
The demo, `trl-prorl demo` and `make demo`: trains recipes of `recipes/tiny`, evaluates held-out pass@k, and writes a
report.

Recipes train side by side, one thread each. Finished runs are kept: the same command continues where it was stopped.
It ends with one table of the runs; all others are in the report. `--model smollm2` trains a pretrained language model,
with and without a KL, and also prints what each run writes in the end, next to what the starting model writes.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from glob import glob
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .embedded.shipped import SMOLLM2, embedded_model, is_embedded
from .files import open_own
from .launch.ending import DEBUG, INTERRUPTED, Parser, announce, as_bad_input, in_one_line
from .launch.recipe_yaml import read_recipe
from .launch.shipped_recipes import RECIPES
from .provenance import identify
from .run_files import read_jsonl
from .run_folder import RunFolders, check_free, has_begun
from .text import visible


COMMAND = [sys.executable, "-m", "trl_prorl"]
DEMOS = {  # `drift`: at most so many prompts, because a KL over the whole vocabulary needs fewer samples than a rate
    "embedded": {
        "recipes": RECIPES / "tiny",
        "out": Path("runs/demo"),
        "arms": ("control", "variantA", "variantB", "variantC", "plain"),
        "prompts": 256,
        "drift": 64,
        "samples": 16,
    },
    SMOLLM2: {
        "recipes": RECIPES / SMOLLM2,
        "out": Path("runs/demo-smollm2"),
        "arms": ("control", "plain"),
        "prompts": 24,
        "drift": 8,
        "samples": 4,
    },
}
SMOLLM2_STEPS = "40"
CHECKPOINTS = 4  # of a run, including its end, for held-out pass@k over training
TEXTS = 6  # prompts whose texts are printed
KEPT = "finished runs and samples are kept. Repeat the same command to continue."
console = Console()


def main() -> None:
    """Train, evaluate and report, in the working directory; Ctrl-C ends it with one line."""
    with in_one_line(KEPT, debug=DEBUG in sys.argv):
        args, overrides = parse_options()
        announce(f"demo: training {', '.join(args.arms)} into {args.out}, then evaluation and a report")
        recipes = [args.recipes / f"{arm}.yaml" for arm in args.arms]
        print_starting_models(recipes, overrides)
        runs = []
        for seed in args.seeds:
            for recipe in recipes:
                folder = recipe.stem if len(args.seeds) == 1 else f"{recipe.stem}_seed{seed}"
                runs.append(DemoRun(recipe, args.out / folder, seed, overrides))
        train(runs, max(1, args.side_by_side))
        evaluate_and_report(args, [run.out for run in runs])


def parse_options() -> tuple[argparse.Namespace, list[str]]:
    """Return the options of the demo, and the rest of the command line, which overrides the recipes."""
    parser = Parser(
        prog=sys.argv[0] if sys.argv[0].startswith("trl-prorl ") else None,
        description="Train several variants, evaluate pass@k, and write a report. Other options override the recipes.",
    )
    parser.add_argument(
        "--model", choices=DEMOS, default="embedded", help="a tiny model and five recipes, or a pretrained one and two"
    )
    parser.add_argument("--recipes", type=Path, metavar="DIR", help="folder of recipes (default: tiny, or smollm2)")
    parser.add_argument("--out", type=Path, help="output folder")
    parser.add_argument("--arms", nargs="+", help="variants to train: recipes of that folder, without .yaml")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="seeds; every recipe is trained with each")
    parser.add_argument("--side-by-side", type=int, default=os.cpu_count(), help="runs to train in parallel")
    parser.add_argument("--prompts", type=int, help="number of held-out prompts")
    parser.add_argument("--samples", type=int, help="samples per prompt")
    model = parser.parse_known_args()[0].model
    parser.set_defaults(**DEMOS[model])
    args, overrides = parser.parse_known_args()
    if model == SMOLLM2 and "--max_steps" not in overrides:
        overrides += ["--max_steps", SMOLLM2_STEPS]
    for arm in args.arms:
        if not (args.recipes / f"{arm}.yaml").is_file():
            there = ", ".join(sorted(path.stem for path in args.recipes.glob("*.yaml"))) or "none"
            parser.error(f"--arms {arm}: {args.recipes} has no {arm}.yaml; its recipes: {there}")
    return args, overrides


def value_of_key(recipe: Path, overrides: list[str], key: str) -> Any:
    """Return the value of a key, on the command line or else in the recipe."""
    if f"--{key}" in overrides:
        return overrides[overrides.index(f"--{key}") + 1]
    return read_recipe(recipe)[key]


def print_starting_models(recipes: list[Path], overrides: list[str]) -> None:
    """Print the starting model of the recipes; one that is not there, or damaged, ends the process with one line."""
    for name in sorted({value_of_key(recipe, overrides, "model_name_or_path") for recipe in recipes}):
        with as_bad_input():
            base = identify(embedded_model(name) if is_embedded(name) else name)
        sha256 = f"; SHA-256 of its weights: {base.sha256[:12]}…" if base.sha256 else ""
        console.print(f"starting model: {base.name}{sha256}", soft_wrap=True)


class DemoRun:
    """A run of a recipe, in a process of its own."""

    def __init__(self, recipe: Path, out: Path, seed: int, overrides: list[str]):
        self.name = out.name
        self.out = out
        self.log = out.with_suffix(".log")
        self.steps = int(value_of_key(recipe, overrides, "max_steps"))
        saves = ["--save_strategy", "steps", "--save_steps", str(max(1, self.steps // CHECKPOINTS))]
        self.command = [*COMMAND, "train", str(recipe), "--output_dir", str(out), "--seed", str(seed)]
        self.command += ["--disable_tqdm", "true", *overrides, *saves, "--save_only_model", "true"]
        self.process: subprocess.Popen | None = None

    @property
    def finished(self) -> bool:
        weights = ("adapter_model.safetensors", "model.safetensors")
        return has_begun(self.out) and any((self.out / name).exists() for name in weights)

    def start(self) -> None:
        """Start to train; what a run that was stopped left here is set aside."""
        with as_bad_input():
            check_free(self.out)
        RunFolders(self.out).set_earlier_run_aside(base=None)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        log = open_own(self.log, "a")
        self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, env=env)

    def progress(self) -> tuple[int, str]:
        """Return how many steps are done, and the mean reward of the last ones in words."""
        rows = read_jsonl(self.out / "metrics.jsonl", growing=True)
        if not rows:
            return 0, ""
        last = [row["reward"] for row in rows[-20:]]
        return len(rows), f"reward {sum(last) / len(last):.2f}"

    def check(self) -> None:
        """End the demo if the process, which has ended, failed."""
        if self.process.returncode in (INTERRUPTED, -signal.SIGINT):  # Ctrl-C reached it first
            raise KeyboardInterrupt
        if self.process.returncode:
            tail = "".join(self.log.read_text().splitlines(keepends=True)[-15:])
            raise SystemExit(f"{self.name} failed with exit code {self.process.returncode}; {self.log} ends:\n{tail}")


def train(runs: list[DemoRun], side_by_side: int) -> None:
    """Train all runs, at most `side_by_side` at a time, with a bar for each."""
    waiting = [run for run in runs if not run.finished]
    running = []
    columns = (TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[reward]}"), console=console) as progress:
        bars = {run: progress.add_task(run.name, total=run.steps, start=False, reward="") for run in waiting}
        try:
            while waiting or running:
                while waiting and len(running) < side_by_side:
                    run = waiting.pop(0)
                    run.start()
                    progress.start_task(bars[run])
                    running.append(run)
                time.sleep(1.0)
                for run in list(running):
                    ended = run.process.poll() is not None
                    done, reward = run.progress()
                    progress.update(bars[run], completed=done, reward=reward)
                    if ended:
                        running.remove(run)
                        progress.stop_task(bars[run])
                        run.check()
        finally:
            for run in running:
                run.process.terminate()


def evaluate_and_report(args: argparse.Namespace, runs: list[Path]) -> None:
    """Evaluate finished runs on held-out prompts, write the report, and print texts of a pretrained model."""
    is_pretrained = args.model == SMOLLM2
    options = [] if is_pretrained else ["--checkpoints", "all"]
    for run in runs:
        options += ["--run", str(run)]
    greedy = ["--no-greedy"] if is_pretrained else []
    evaluate("passk", "--prompts", str(args.prompts), "--n", str(args.samples), *greedy, *options)
    evaluate("drift", "--prompts", str(min(args.drift, args.prompts)), *options)
    evaluate("report", "--runs", *map(str, runs), "--out", str(args.out))
    if is_pretrained:
        console.print(texts(runs))
    show_runs(runs, args.out)


def evaluate(command: str, *arguments: str) -> None:
    """
    Run a command that evaluates. Its progress is printed; its tables are not, because the report has them. It does not
    receive the terminal's Ctrl-C, which ends the demo.
    """
    words = [*COMMAND, command, *arguments]
    subprocess.run(words, check=True, start_new_session=True, stdout=subprocess.DEVNULL)


def texts(runs: list[Path]) -> Table:
    """
    Return the first held-out prompts, each with the first sample of the starting model and of every run, and a mark
    where that is correct.
    """
    import pandas as pd  # `--help` need not wait for it

    folders = {"base": f"{runs[0]}/samples/base-*", **{run.name: f"{run}/samples/trained-*" for run in runs}}
    table = Table("prompt", *folders, title="Held-out samples; ✓ is correct", show_lines=True)
    first_samples = []
    for folder in folders.values():
        samples = pd.concat(map(pd.read_parquet, glob(folder)))
        first_samples.append(samples[samples["sample"] == 0].set_index("prompt_id"))
    for prompt in first_samples[0].index[:TEXTS]:
        rows = [samples.loc[prompt] for samples in first_samples]
        cells = [rows[0]["prompt"]]
        for row in rows:
            cells.append(row["completion"] + " ✓" if row["correct"] else row["completion"])
        table.add_row(*(escape(visible(cell)) for cell in cells))
    return table


def show_runs(runs: list[Path], out: Path) -> None:
    """Print a row for each run, and where the report is."""
    from .eval.pages.runs import summary_table  # pandas takes a second

    console.print("", summary_table(runs).to_rich(narrow=True), "", sep="\n")
    console.print(f"Report: {out / 'report.html'}", soft_wrap=True, highlight=False)
