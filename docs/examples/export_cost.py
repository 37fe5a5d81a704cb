"""
Compare the time of an export with a plain save of the same tensors: `python docs/examples/export_cost.py`.

The state of a LoRA run of 1.5 B parameters, in real shapes and random values: Qwen2.5-1.5B has 28 layers, a hidden
size of 1536, 12 heads and 2 for keys and values of 128 each, and an MLP of 8960. As in a real run, an export copies
the gradients and, at a boundary, the state; then it hashes, writes and renames. The plain save is
`safetensors.torch.save_file` of the same parameters, gradients and moments. Both write to new folders and alternate.
Quote the ratio, not the times. Nothing is deleted before the end, because ext4 creates files ten times as slowly for
some seconds after many were deleted. Seven repeats need 5 GB.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from trl_prorl.interchange import UpdateInputs, write


def shapes(rank, layers=28, hidden=1536, key_value=256, mlp=8960):
    """Shapes of every A and B, by name."""
    linear = {
        "q_proj": (hidden, hidden),
        "k_proj": (hidden, key_value),
        "v_proj": (hidden, key_value),
        "o_proj": (hidden, hidden),
        "gate_proj": (hidden, mlp),
        "up_proj": (hidden, mlp),
        "down_proj": (mlp, hidden),
    }
    found = {}
    for layer in range(layers):
        for name, (wide, tall) in linear.items():
            place = f"base_model.model.model.layers.{layer}.{name}"
            found[f"{place}.lora_A.default.weight"] = (rank, wide)
            found[f"{place}.lora_B.default.weight"] = (tall, rank)
    return found


def main():
    """Time both, one after the other, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--boundary", action="store_true", help="the update is the first after a generation")
    parser.add_argument("--folder", help="on the disk to be measured; a temporary folder by default")
    args = parser.parse_args()
    sizes = shapes(args.rank)
    kinds = ("parameters", "gradients", "exp_avg", "exp_avg_sq")
    live = {kind: {name: torch.rand(shape) for name, shape in sizes.items()} for kind in kinds}
    steps = {name: torch.tensor([100.0]) for name in sizes}
    group = {"lr": 1e-5, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "decoupled": True}
    values = {
        "names": list(sizes),
        "groups": [{**group, "parameters": list(sizes)}],
        "clip_norm": 1.0,
        "grad_norm": 1.0,
        "update": 101,
    }
    root = Path(tempfile.mkdtemp(dir=args.folder))

    def export(folder):
        copied = kinds if args.boundary else ("gradients",)
        taken = {
            kind: {name: tensor.to("cpu", copy=kind in copied) for name, tensor in live[kind].items()}
            for kind in kinds
        }
        write(UpdateInputs(**taken, steps=steps, new_rows={}, **values), folder / "aside")
        (folder / "aside").rename(folder / "export")

    def plain(folder):
        tensors = {f"{kind}/{name}": tensor for kind in kinds for name, tensor in live[kind].items()}
        save_file(tensors, folder / "plain.safetensors")

    def seconds(work):
        folder = Path(tempfile.mkdtemp(dir=root))
        began = time.perf_counter()
        work(folder)
        return time.perf_counter() - began

    try:
        pairs = [(seconds(export), seconds(plain)) for _ in range(args.repeats + 1)]
        pairs = pairs[1:]  # the first warms up
    finally:
        shutil.rmtree(root)
    megabytes = sum(tensor.nbytes for kind in live.values() for tensor in kind.values()) / 1e6
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    print(f"{megabytes:.0f} MB: export {ours:.3f} s, plain save {theirs:.3f} s")
    print(f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
