"""
One command that proves it on a GPU: `trl-prorl gpu-check`, or `make gpu-check`.

It checks that the numbers are right there (the tests that run on a GPU, from a checkout: TRL is their control), and
measures what a step costs, generation included: on one card in at most 25 minutes, with the shapes of Qwen2.5 and
random weights, without the Hub. Every part runs in a process of its own with a limit, and its result is kept, so the
same command goes on where it was stopped. What is not installed is left out by name. `--cpu` runs the parts at toy
size, without the tests.
"""

import functools
import os
import sys
from pathlib import Path

import torch

from trl_prorl.eval import command_lines
from trl_prorl.eval.command import command
from trl_prorl.eval.gpucheck.page import page, publish
from trl_prorl.eval.gpucheck.parts import CARD, CPU
from trl_prorl.eval.gpucheck.runner import ROOT, run_all, see_one_gpu


NO_GPU = "there is no GPU that torch can use here: nothing was measured. `--cpu` runs the parts at toy size."
KEPT = "the parts that have passed are kept. The same command goes on from there."


@functools.partial(command, kept=KEPT)
def main(argv: list[str] | None = None) -> int:
    """Entry point; 0 if all holds, 1 if something failed or was left, 2 without a GPU."""
    args = command_lines.gpu_check(argv)
    if not args.cpu and not torch.cuda.is_available():
        print(f"error: {NO_GPU}", file=sys.stderr)
        return 2
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # for the parts: nothing here needs the Hub
    if not args.cpu and (said := see_one_gpu()) is not None:
        print(said)
    size = CPU if args.cpu else CARD
    folder = args.out or Path("runs/gpu_check") / size.name
    outcome = run_all(size, folder, args.parts, args.minutes, args.again, functools.partial(print, flush=True))
    if (folder / "machine.json").is_file():
        (folder / "page.md").write_text(page(folder))
        where = folder / "page.md"
        if size.on_card and (ROOT / "docs").is_dir() and (ROOT / "Makefile").is_file():
            where = publish(folder, ROOT)
        print(f"{where}, and the numbers in {folder}")
    for name in outcome.failed:
        print(f"FAILED {name}")
    if outcome.left:
        print(f"no time was left for {', '.join(outcome.left)}: the same command goes on there.")
    return 1 if outcome.failed or outcome.left else 0


if __name__ == "__main__":
    sys.exit(main())
