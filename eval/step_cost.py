"""
Time a training step against TRL: `make step-cost`.

Every variant trains the same model on the same batches in one process, in turns: TRL with and without a reference, and
A, B and C, padded and packed; the packed variants also sample compactly. Completion lengths follow those of GSM8K's
answers (`eval/gsm8k_lengths.json`, counted in the pieces of Qwen2's pre-tokenizer) times `--scale`, because models
write more than the reference answers; the tokens are random. Each variant generates in its own way, and every
completion is forced to end at the length that was drawn for it. Quote the ratios to TRL. The variant `floor` is the
bare model on the tokens that are left if nothing is computed twice.
"""

import functools
import json
import sys

import torch
from rich.console import Console
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
    results = {}
    tokens = {}
    for title, names, batches, iterations in track(list(settings(args)), args.mode, console=Console(stderr=True)):
        if args.mode == "memory":
            show_memory(console, title, memory(names, args, batches, iterations))
            continue
        results[title] = measure(names, args, batches, iterations)
        show(console, title, results[title])
        tokens[title] = tokens_per_step(args, batches, iterations)
        show_tokens(console, tokens[title])
    if args.mode == "memory":
        return
    args.out.mkdir(parents=True, exist_ok=True)
    hardware = torch.cuda.get_device_name() if args.device == "cuda" else f"{args.threads} CPU threads"
    content = {"settings": {**vars(args), "hardware": hardware}, "tokens": tokens, "results": results}
    (args.out / "arms.json").write_text(json.dumps(content, indent=1, default=str) + "\n")
    draw(results, args.out / "arms.png")
    console.print(f"Wrote {args.out / 'arms.json'} and arms.png. A ratio above 1 is faster than {BASELINE}.")


if __name__ == "__main__":
    sys.exit(main())
