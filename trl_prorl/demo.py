"""
The demo: embedded model, five arms of `recipes/tiny`, held-out pass@k, report: `trl-prorl demo`, `make demo`.

Arms run side by side, one thread each. Finished arms are kept: a second call continues where the first one stopped.
It ends with one table of the arms; all others are in the report.
`--model smollm2` trains a pretrained language model in place of the embedded one: the control and plain, and what each
writes in the end beside what the base writes.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from glob import glob
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .announce import announce
from .embedded.shipped import SMOLLM2, embedded_model, is_embedded
from .interrupt import INTERRUPTED, ending_in_one_line
from .launch.recipe_yaml import read_recipe
from .launch.shipped_recipes import RECIPES
from .pipes import reader_may_leave
from .record.base_model import identify
from .record.folder_lock import FolderInUseError, check_free
from .record.folders import RunFolders, has_begun
from .record.run_files import read_jsonl
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
TEXTS = 6  # prompts whose texts are printed
KEPT = "arms that came to their end and samples that were drawn are kept. The same command goes on from there."
CHECKPOINTS = 4  # of an arm, including its end, for held-out pass@k over training
console = Console()


def as_options(keys: Mapping[str, Any]) -> list[str]:
    """Write keys of a recipe as a command line."""
    options = []
    for key, value in keys.items():
        options += [f"--{key}", str(value)]
    return options


class DemoRun:
    """One arm, which trains in a process of its own."""

    def __init__(self, recipe: Path, out: Path, seed: int, overrides: list[str]):
        self.name = out.name
        self.out = out
        self.log = out.with_suffix(".log")
        self.steps = int(value_of_key(recipe, overrides, "max_steps"))
        keys = {"output_dir": out, "seed": seed, "disable_tqdm": "true"}
        checkpoints = {
            "save_strategy": "steps",
            "save_steps": max(1, self.steps // CHECKPOINTS),
            "save_only_model": "true",
        }
        self.command = [*COMMAND, "train", str(recipe), *as_options(keys), *overrides, *as_options(checkpoints)]
        self.process: subprocess.Popen | None = None

    @property
    def finished(self) -> bool:
        weights = ("adapter_model.safetensors", "model.safetensors")
        return has_begun(self.out) and any((self.out / name).exists() for name in weights)

    def start(self) -> None:
        check_free(self.out)
        RunFolders(self.out).set_earlier_run_aside(base=None)  # of a run that was stopped
        self.out.parent.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(self.command, stdout=self.log.open("a"), stderr=subprocess.STDOUT, env=env)

    def check(self) -> None:
        if self.process.returncode in (INTERRUPTED, -signal.SIGINT):  # Ctrl-C reached the arm first
            raise KeyboardInterrupt
        if self.process.returncode:
            tail = "".join(self.log.read_text().splitlines(keepends=True)[-15:])
            raise SystemExit(f"{self.name} failed with exit code {self.process.returncode}; {self.log} ends:\n{tail}")


def train(arms: list[DemoRun], side_by_side: int) -> None:
    """Train all arms, at most `side_by_side` at a time, with a bar for each."""
    waiting = [arm for arm in arms if not arm.finished]
    running = []
    columns = (TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[reward]}"), console=console) as progress:
        bars = {arm: progress.add_task(arm.name, total=arm.steps, start=False, reward="") for arm in waiting}
        try:
            while waiting or running:
                while waiting and len(running) < side_by_side:
                    arm = waiting.pop(0)
                    arm.start()
                    progress.start_task(bars[arm])
                    running.append(arm)
                time.sleep(1.0)
                for arm in list(running):
                    rows = read_jsonl(arm.out / "metrics.jsonl", growing=True)
                    reward = ""
                    if rows:
                        last = [row["reward"] for row in rows[-20:]]
                        reward = f"reward {sum(last) / len(last):.2f}"
                    progress.update(bars[arm], completed=len(rows), reward=reward)
                    if arm.process.poll() is not None:
                        running.remove(arm)
                        progress.stop_task(bars[arm])
                        arm.check()
        finally:
            for arm in running:
                arm.process.terminate()


def evaluate(command: str, *arguments: str) -> None:
    """
    Run a command that evaluates. Its progress is shown, and its tables are not, which the report has. It does not get
    the terminal's Ctrl-C, which is the demo's to tell.
    """
    words = [*COMMAND, command, *arguments]
    subprocess.run(words, check=True, start_new_session=True, stdout=subprocess.DEVNULL)


def show_arms(runs: list[Path], out: Path) -> None:
    """Print a row for each run, and where the report is."""
    summary = import_module(".eval.pages.summary", __package__)  # pandas takes a second
    console.print("", summary.summary_table(runs).to_rich(narrow=True), "", sep="\n")
    console.print(f"Everything else is in the report: {out / 'report.html'}", soft_wrap=True, highlight=False)


def value_of_key(recipe: Path, overrides: list[str], key: str) -> Any:
    """Return the value of a key of an arm, on the command line or else in its recipe."""
    if f"--{key}" in overrides:
        return overrides[overrides.index(f"--{key}") + 1]
    return read_recipe(recipe)[key]


def texts(runs: list[Path]) -> Table:
    """Return the first held-out prompts, and the first sample of base and of every run; a mark where it is correct."""
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


@reader_may_leave()
def main() -> None:
    """Run the demo; Ctrl-C ends it with one line."""
    with ending_in_one_line(KEPT):
        run_demo()


def run_demo() -> None:
    """Train, evaluate and report what the command line says, in the working directory."""
    args, overrides = parse_options()
    announce(f"demo: trains {', '.join(args.arms)} into {args.out}, evaluates them and writes a report")
    check_bases(args, overrides)
    arms = []
    for seed in args.seeds:
        for name in args.arms:
            folder = name if len(args.seeds) == 1 else f"{name}_seed{seed}"
            arms.append(DemoRun(args.recipes / f"{name}.yaml", args.out / folder, seed, overrides))
    try:
        train(arms, max(1, args.side_by_side))
    except FolderInUseError as error:
        raise SystemExit(f"error: {error}") from None
    evaluate_and_report(args, [arm.out for arm in arms])


def parse_options() -> tuple[argparse.Namespace, list[str]]:
    """Return the options of the demo, and the rest of the command line, which overrides the recipes."""
    parser = argparse.ArgumentParser(
        prog=sys.argv[0] if sys.argv[0].startswith("trl-prorl ") else None,
        description="Some arms, held-out pass@k, report. Further options override the recipes.",
    )
    parser.add_argument(
        "--model", choices=DEMOS, default="embedded", help="a tiny base and five arms, or a pretrained one and two"
    )
    parser.add_argument("--recipes", type=Path, metavar="DIR", help="folder of recipes (default: tiny, or smollm2)")
    parser.add_argument("--out", type=Path, help="where the runs go")
    parser.add_argument("--arms", nargs="+", help="recipes of the folder, without .yaml")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="one run of every arm for each seed")
    parser.add_argument("--side-by-side", type=int, default=os.cpu_count(), help="arms that train at the same time")
    parser.add_argument("--prompts", type=int, help="held-out prompts of the evaluation")
    parser.add_argument("--samples", type=int, help="samples per prompt")
    model = parser.parse_known_args()[0].model
    parser.set_defaults(**DEMOS[model])
    args, overrides = parser.parse_known_args()
    if args.model == SMOLLM2 and "--max_steps" not in overrides:
        overrides += ["--max_steps", SMOLLM2_STEPS]
    for arm in args.arms:
        if not (args.recipes / f"{arm}.yaml").is_file():
            there = ", ".join(sorted(path.stem for path in args.recipes.glob("*.yaml"))) or "none"
            parser.error(f"--arms {arm}: {args.recipes} has no {arm}.yaml; its recipes: {there}")
    return args, overrides


def check_bases(args: argparse.Namespace, overrides: list[str]) -> None:
    """Print the base of every arm; one that is not there, or damaged, ends the process with one line."""
    names = {value_of_key(args.recipes / f"{arm}.yaml", overrides, "model_name_or_path") for arm in args.arms}
    for name in sorted(names):
        try:
            base = identify(embedded_model(name) if is_embedded(name) else name)
        except ValueError as error:
            raise SystemExit(f"error: {error}") from None
        sha256 = f", SHA-256 of its weights {base.sha256[:12]}…" if base.sha256 else ""
        console.print(f"base model: {base.name}{sha256}", soft_wrap=True)


def evaluate_and_report(args: argparse.Namespace, runs: list[Path]) -> None:
    """Evaluate finished runs on held-out prompts, write the report, and print texts of a pretrained model."""
    is_pretrained = args.model == SMOLLM2
    options = []
    if not is_pretrained:
        options += ["--checkpoints", "all"]
    for run in runs:
        options += ["--run", str(run)]
    greedy = ["--no-greedy"] if is_pretrained else []
    evaluate("passk", "--prompts", str(args.prompts), "--n", str(args.samples), *greedy, *options)
    evaluate("drift", "--prompts", str(min(args.drift, args.prompts)), *options)
    evaluate("report", "--runs", *map(str, runs), "--out", str(args.out))
    if is_pretrained:
        console.print(texts(runs))
    show_arms(runs, args.out)
