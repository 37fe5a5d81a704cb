"""
`trl-prorl demo`: trains five recipes of `recipes/tiny` side by side, evaluates them, and writes a report.

The same command continues after an interruption.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..errors import RunError
from .ending import DEBUG, Parser, announce, in_one_line


COMMAND = [sys.executable, "-m", "trl_prorl"]
RECIPES = ("control", "variantA", "variantB", "variantC", "plain")
TRAINING = "--disable_tqdm true --save_strategy steps --save_steps 0.25 --resume_from_checkpoint auto".split()
RUNS_KEPT = "finished runs, checkpoints and samples are kept. Repeat the same command to continue."


def main() -> None:
    with in_one_line(RUNS_KEPT, debug=DEBUG in sys.argv):
        description = "Train five variants, evaluate them and write a report. Other options are keys of a recipe."
        parser = Parser(prog="trl-prorl demo", description=description)
        parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="output folder")
        parser.add_argument("--prompts", type=int, default=256, help="number of held-out prompts")
        args, keys = parser.parse_known_args()
        keys = [key for key in keys if key != DEBUG]
        announce(f"demo: training {', '.join(RECIPES)} into {args.out}, then evaluation and a report")
        args.out.mkdir(parents=True, exist_ok=True)
        runs = [args.out / recipe for recipe in RECIPES]
        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            list(pool.map(lambda run: train(run, keys), runs))
        finally:
            pool.shutdown(cancel_futures=True)
        evaluate_and_report(runs, args.prompts)


def train(run: Path, keys: list[str]) -> None:
    """Train the recipe of a run's name in a process of its own, unless it is finished."""
    if any(run.glob("*model.safetensors")):
        return
    log = run.with_suffix(".log")
    errors = run.with_suffix(".err")
    command = [*COMMAND, "train", f"tiny/{run.name}", "--output_dir", str(run), *TRAINING, *keys]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    # In files of their own: stdout is buffered, so it may be written after the error.
    with open(log, "a") as output, open(errors, "a") as error_output:
        start = error_output.tell()
        code = subprocess.run(command, stdout=output, stderr=error_output, env=env).returncode
    if code:
        lines = errors.read_bytes()[start:].decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else "it printed no error"
        raise RunError(f"{run.name} ended with exit code {code}, see {errors}: {reason}")
    print(f"{run.name}: trained", flush=True)


def evaluate_and_report(runs: list[Path], prompts: int) -> None:
    options = ["--checkpoints", "all"]
    for run in runs:
        options += ["--run", str(run)]
    out = runs[0].parent
    for words in (
        ["passk", "--prompts", str(prompts), "--n", "16", *options],
        ["drift", "--prompts", str(min(prompts, 64)), *options],
        ["report", "--runs", *map(str, runs), "--out", str(out)],
    ):
        shown = None if words[0] == "report" else subprocess.DEVNULL  # the page says what the others print
        if subprocess.run([*COMMAND, *words], stdout=shown).returncode:
            raise RunError(f"{words[0]} failed, see above.")
