"""
Compare the time of a reset with copying the same amount of memory: `make reset-cost`.

For LoRA and full fine-tuning and each optimizer mode: median time of a reset of reference and optimizer, and of
`copy_` over tensors of the same sizes, measured in turns in one process. Quote the ratios.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from peft import LoraConfig, get_peft_model

from trl_prorl.embedded.shipped import byte_tokenizer
from trl_prorl.eval.command import command, program_name
from trl_prorl.eval.pages.table import Table, terminal
from trl_prorl.eval.stepcost.settings import SHAPES, at_least, new_model
from trl_prorl.launch.ending import NOTHING_CHANGED, Parser
from trl_prorl.optimizer import reset_optimizer
from trl_prorl.reference import AdapterReference, SnapshotReference, frozen_adapter
from trl_prorl.treatments import TREATMENTS


MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}  # of Adam, by their names in `TREATMENTS`


def build_policy(kind: str, args: argparse.Namespace):
    """Return a policy's reference, and an AdamW after one update."""
    tokenizer = byte_tokenizer()
    model = new_model(args, tokenizer)
    if kind == "lora":
        model = get_peft_model(model, LoraConfig(r=args.rank, target_modules="all-linear"))
        reference = AdapterReference(model, frozen_adapter(model, "ref"))
    else:
        reference = SnapshotReference(model, new_model(args, tokenizer))
    trained = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    for param in trained:
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.zero_grad()
    return reference, optimizer


def time_work(work: Callable[[], None], device: str) -> float:
    """Return the seconds of a call."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(reference, optimizer, mode: str, args: argparse.Namespace) -> list[str]:
    """Return the cells of an optimizer mode: bytes, seconds of the reset, seconds of plain copies, and their ratio."""
    # The same bytes: the reference, and the optimizer tensors that the treatment writes, without step counts.
    tensors = [ref.data for ref, _ in reference.pairs()]
    for moment, key in MOMENTS.items():
        if moment in TREATMENTS[mode].changes:
            tensors += [state[key] for state in optimizer.state.values()]
    sources = [torch.zeros_like(tensor) for tensor in tensors]

    def reset() -> None:
        reference.move(1.0)
        reset_optimizer(optimizer, mode, 0.1)

    def copy() -> None:
        for tensor, source in zip(tensors, sources, strict=True):
            tensor.copy_(source)

    pairs = [(time_work(reset, args.device), time_work(copy, args.device)) for _ in range(args.repeats + 1)]
    pairs = pairs[1:]  # the first warms up
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    megabytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / 1e6
    ours, theirs = (statistics.median(values) for values in zip(*pairs, strict=True))
    return [f"{megabytes:,.1f}", f"{1e3 * ours:.2f}", f"{1e3 * theirs:.2f}", f"{ratio:.2f}"]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        prog=program_name("reset_cost"),
        description="Compare the time of a reset with copying the same amount of memory.",
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="small", help="shape of the model (default: small)")
    parser.add_argument("--rank", type=at_least(1), default=32, help="rank of the LoRA adapter (default: 32)")
    parser.add_argument("--repeats", type=at_least(1), default=11, help="repetitions of each timing (default: 11)")
    # To choose one of several GPUs: CUDA_VISIBLE_DEVICES.
    parser.add_argument("--device", choices=("cuda", "cpu"), help="device (default: a GPU if there is one)")
    args = parser.parse_args(argv)
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    args.dtype = torch.float32
    return args


@functools.partial(command, kept=NOTHING_CHANGED)
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    args = parse(argv)
    title = f"Reset against copy_ of the same bytes, {args.device}, median of {args.repeats}"
    header = ["", "optimizer_reset", "MB written", "reset, ms", "copy_, ms", "ratio"]
    rows = []
    for kind in ("lora", "full"):
        reference, optimizer = build_policy(kind, args)
        rows += [[kind, mode, *measure(reference, optimizer, mode, args)] for mode in TREATMENTS]
    terminal().print(Table(title, header, rows).to_rich())


if __name__ == "__main__":
    sys.exit(main())
