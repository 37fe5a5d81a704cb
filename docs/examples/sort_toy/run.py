"""
Train the toy and draw its picture: `python docs/examples/sort_toy/run.py`.

`--engine numpy` trains without PyTorch. `--compare` trains the variants with both engines and prints the largest
difference of their curves.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path


os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and PyTorch begin: matrices of 10 x 10 need no threads
sys.path.insert(0, str(Path(__file__).parent.parent))  # this folder and its neighbours are packages

import numpy as np

from sort_toy.picture import picture
from sort_toy.problem import BETA, DELTAS, LOG_HEAD, LOSSES, REWARD, REWARDS, Setting, grid, label, variants


AGREEMENT = 1e-9  # of two curves, in float64


def train_all(train: Callable[[Setting], np.ndarray], settings: dict, seeds: Iterable[int]) -> dict:
    """The mean over seeds of every setting's curves, by the setting's name."""
    return {
        name: np.mean([train(replace(setting, seed=seed)) for seed in seeds], axis=0)
        for name, setting in settings.items()
    }


def table_of_grid(curves: dict[tuple[str, str, str], np.ndarray]) -> str:
    """The last expected rewards, in Markdown."""
    lines = [
        "| loss | " + " | ".join(f"{delta} | {delta}, KL" for delta in DELTAS) + " |",
        "|---|" + "---|" * 2 * len(DELTAS),
    ]
    for loss in LOSSES:
        cells = [f"{curves[loss, delta, variant][REWARD, -1]:.3f}" for delta in DELTAS for variant in ("plain", "A")]
        lines.append(f"| {loss} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table_of_variants(curves: dict[str, np.ndarray], epochs: int) -> str:
    """The expected rewards of the variants at a quarter, half and the end of a run, in Markdown."""
    shown = sorted({max(1, epochs // 4), max(1, epochs // 2), epochs})
    lines = ["| variant | " + " | ".join(f"epoch {epoch}" for epoch in shown) + " |", "|---|" + "---|" * len(shown)]
    for name, run in curves.items():
        lines.append(f"| {label(name)} | " + " | ".join(f"{run[REWARD, epoch - 1]:.3f}" for epoch in shown) + " |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward", choices=REWARDS, default=Setting.reward)
    parser.add_argument("--epochs", type=int, default=Setting.epochs)
    parser.add_argument("--seeds", type=int, default=1, help="number of runs of each setting; their mean is drawn")
    parser.add_argument("--engine", choices=("torch", "numpy"), default="torch")
    parser.add_argument("--compare", action="store_true", help="compare both engines on the variants; no picture")
    parser.add_argument("--log", type=Path, help="write the samples of variant A to this file; no picture")
    parser.add_argument("--output", type=Path, default=Path("runs/sort_toy.png"), help="file of the picture")
    options = parser.parse_args(argv)
    for name in ("epochs", "seeds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: give a whole number from 1")
    base = Setting(reward=options.reward, epochs=options.epochs)
    seeds = range(options.seeds)
    if options.compare:
        return compare(base)
    if options.log is not None:
        from sort_toy.with_torch import train

        options.log.parent.mkdir(parents=True, exist_ok=True)
        with options.log.open("w") as log:
            log.write(LOG_HEAD)
            train(variants(base)["A"], log)
        print(f"Wrote the samples of variant A to {options.log}")
        return 0
    train = import_module(f"sort_toy.with_{options.engine}").train
    begun = time.process_time()
    of_grid = train_all(train, grid(base), seeds)
    of_variants = train_all(train, variants(base), seeds)
    took = time.process_time() - begun
    runs = (len(of_grid) + len(of_variants)) * options.seeds
    print(f"{runs} runs by {options.engine} in {took:.0f} s of one core; β = {BETA}; reward {options.reward}")
    print(
        f"\nExpected reward at the end:\n\n{table_of_grid(of_grid)}\n\n"
        f"Expected reward of the variants:\n\n{table_of_variants(of_variants, options.epochs)}\n"
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    picture(of_grid, of_variants, options.seeds, options.reward).savefig(options.output, dpi=100)
    print(f"Wrote the picture to {options.output}")
    return 0


def compare(base: Setting) -> int:
    """Train the variants with both engines; the exit status is 1 if a curve differs by more than `AGREEMENT`."""
    from sort_toy import with_numpy, with_torch

    agree = True
    for name, setting in variants(base).items():
        difference = np.abs(with_torch.train(setting) - with_numpy.train(setting)).max()
        agree = agree and difference <= AGREEMENT
        print(f"{label(name):25} largest difference of the curves {difference:.1e}")
    print(f"The curves {'agree' if agree else 'DO NOT AGREE'}: bound {AGREEMENT:.0e}")
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
