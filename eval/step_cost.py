"""
Time a training step against TRL: `make step-cost`.

Every variant trains the same model on the same batches in one process, in turns: TRL with and without a reference, and
A, B and C, padded and packed; the packed variants also sample compactly. Completion lengths follow those of GSM8K's
answers (`eval/gsm8k_lengths.json`, counted in the pieces of Qwen2's pre-tokenizer) times `--scale`, because models
write more than the reference answers; the tokens are random. Each variant generates in its own way, and every
completion is forced to end at the length that was drawn for it. Quote the ratios to TRL. The variant `floor` is the
bare model on the tokens that are left if nothing is computed twice.
"""

import argparse
import functools
import json
import sys

import torch
from rich.progress import track

from trl_prorl.eval.command import command
from trl_prorl.eval.pages.table import terminal
from trl_prorl.eval.stepcost.measuring import measure, memory, tokens_per_step
from trl_prorl.eval.stepcost.settings import BASELINE, parse, settings
from trl_prorl.eval.stepcost.tables import draw, show, show_memory, show_tokens
from trl_prorl.launch.ending import NOTHING_CHANGED


@functools.partial(command, kept=NOTHING_CHANGED)
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    console = terminal()
    if args.mode == "memory":
        show_memory(console, memory(args))
        return
    results = {}
    tokens = {}
    # A setting of growth sets the group size of `args` when its turn comes.
    planned = settings(args) if args.mode == "growth" else list(settings(args))
    for title, arms, batches, iterations, checkpointing, generate in track(planned, description=args.mode):
        results[title] = measure(arms, args, batches, iterations, checkpointing, generate)
        show(console, title, results[title])
        tokens[title] = tokens_per_step(args, batches, iterations)
        show_tokens(console, tokens[title])
    args.out.mkdir(parents=True, exist_ok=True)
    content = {"settings": settings_used(args), "tokens": tokens, "results": results}
    (args.out / f"{args.mode}.json").write_text(json.dumps(content, indent=1) + "\n")
    picture = args.out / f"{args.mode}.png"
    draw(results, picture)
    console.print(
        f"Wrote {args.out / f'{args.mode}.json'} and {args.mode}.png. A ratio above 1 is faster than {BASELINE}."
    )


def settings_used(args: argparse.Namespace) -> dict:
    """Return the command line as JSON values, and the hardware."""
    used = {}
    for name, value in vars(args).items():
        used[name] = value if isinstance(value, (int, list, str)) else str(value)
    if args.device == "cuda":
        used["hardware"] = torch.cuda.get_device_name()
    else:
        used["hardware"] = f"{torch.get_num_threads()} CPU threads"
    return used


if __name__ == "__main__":
    sys.exit(main())
