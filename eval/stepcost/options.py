"""The command line of `trl-prorl step-cost`."""

import argparse
import functools
from pathlib import Path

from trl_prorl.eval.command import program
from trl_prorl.eval.stepcost.arms import ARMS, BASELINE, FLOOR, FP32_ARMS
from trl_prorl.eval.stepcost.shapes import SHAPES


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=(prog := program("step_cost")),
        usage=f"{prog} [--OPTION VALUE ...]",
        description="What a step costs, side by side with TRL.",
        formatter_class=functools.partial(argparse.ArgumentDefaultsHelpFormatter, max_help_position=26),
    )
    parser.add_argument(
        "--mode",
        choices=["arms", "overhead", "growth", "memory"],
        default="arms",
        metavar="MODE",
        help="arms, overhead, growth or memory",
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[*(name for name in ARMS | FP32_ARMS if name != BASELINE), FLOOR],
        default=None,
        metavar="ARM",
        help=f"compared with {BASELINE}: everything, and in growth A and B packed",
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="small", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument(
        "--task", choices=["gsm8k", "instructions"], default="gsm8k", metavar="TASK", help="has the lengths"
    )
    parser.add_argument("--rank", type=int, metavar="N", default=16, help="rank of LoRA; 0 is full fine-tuning")
    parser.add_argument("--iterations", type=int, nargs="+", default=[2], metavar="μ", help="inner passes; B needs 2")
    parser.add_argument(
        "--scale", type=float, nargs="+", default=[1.0], metavar="X", help="completions as multiples of gold answers"
    )
    parser.add_argument(
        "--checkpointing",
        choices=["off", "on", "both"],
        default="off",
        metavar="ON",
        help="gradient checkpointing: off, on or both",
    )
    parser.add_argument("--num_generations", type=int, metavar="G", default=8, help="completions of a prompt, G")
    parser.add_argument("--prompts", type=int, metavar="N", default=4, help="prompts of an optimizer step")
    parser.add_argument("--micro_batch", type=int, metavar="N", default=8, help="completions of one forward")
    parser.add_argument("--template", type=int, metavar="N", default=30, help="tokens of the template in every prompt")
    parser.add_argument("--longest", type=int, metavar="N", default=2048, help="completions are cut here")
    parser.add_argument("--rounds", type=int, metavar="N", default=5, help="rounds after the one that warms up")
    parser.add_argument("--no-generation", "--no_generation", action="store_true", help="do not time generation")
    parser.add_argument(
        "--lengths",
        type=int,
        metavar="N",
        nargs="+",
        default=[64, 256, 1024, 2048],
        help="completion lengths of growth",
    )
    parser.add_argument("--groups", type=int, metavar="G", nargs="+", default=[4, 8, 16, 32], help="G of growth")
    parser.add_argument("--spread", action="store_true", help="growth: lengths spread as GSM8K's answers' are")
    parser.add_argument("--device", choices=("cuda", "cpu"))  # one of several GPUs: CUDA_VISIBLE_DEVICES
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", metavar="CLOCK", help="wall, or cpu on a busy machine"
    )
    parser.add_argument("--threads", type=int, metavar="N", default=1, help="of a CPU; several count their waiting")
    parser.add_argument("--dtype", default=None, help="float32, bfloat16; by default the latter on a GPU")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/step_cost"), metavar="DIR", help="of results.json and the chart"
    )
    args = parser.parse_args(argv)
    import torch  # not for help and complaints

    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    args.dtype = getattr(torch, args.dtype or ("bfloat16" if args.device == "cuda" else "float32"))
    if args.micro_batch > args.prompts * args.num_generations:
        parser.error(f"--micro_batch {args.micro_batch} exceeds --prompts {args.prompts} x --num_generations.")
    return args
