"""What is compared: model shapes, batches with a task's lengths, the variants, and the command line."""

import argparse
import functools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from trl_prorl.embedded.shipped import embedded_model
from trl_prorl.eval.command import program_name
from trl_prorl.launch.ending import Parser


SHAPES = {  # hidden, layers, attention heads, key-value heads, intermediate, vocabulary
    "tiny": (32, 2, 2, 1, 64, 300),
    "small": (256, 4, 4, 4, 768, 8192),
    "small-qwen3.5": (256, 4, 4, 4, 768, 8192),  # three layers of Gated DeltaNet, then one of attention
    "small-gemma3": (256, 6, 4, 1, 768, 8192),  # five layers with a window of 512 tokens, then one without
    "smollm2": (576, 30, 9, 3, 1536, 49152),  # the pretrained one
    "qwen2.5-0.5b": (896, 24, 14, 2, 4864, 151936),
    "qwen2.5-1.5b": (1536, 28, 12, 2, 8960, 151936),
}
FAMILIES = {"small-qwen3.5": "qwen3_5_text", "small-gemma3": "gemma3_text"}
FOLDER = Path(__file__).parent.parent  # has the lengths of GSM8K's reference answers and of SmolLM2's samples
BASELINE = "TRL β>0"
DEFAULT = "TRL β=0"  # TRL's default
FLOOR = "floor"  # no trainer: the bare model on the tokens that are left
MOVING = {"beta": 0.02, "ref_reset_every": 200, "reuse_old_logps": True}
OLD_POLICY = {"beta_old": 0.02, "reuse_old_logps": True}
PACKED = {"reuse_old_logps": True, "pack_groups": "on", "compact_generation": "on"}
ARMS = {  # the keys of every variant
    BASELINE: {"beta": 0.02},
    DEFAULT: {"beta": 0.0},
    "A0": {**MOVING, "ref_compute": "naive_epoch"},
    "A": MOVING,
    "B": OLD_POLICY,
    "C": {**MOVING, "optimizer_reset": "hard"},
    "plain packed": {"beta": 0.0, **PACKED},
    "A packed": {**MOVING, **PACKED},
    "B packed": {**OLD_POLICY, **PACKED},
    "C packed": {**MOVING, "optimizer_reset": "hard", **PACKED},
    "ours, all off": {"beta": 0.02},
}


def new_model(args: argparse.Namespace, tokenizer):
    """
    Create a model of `args.shape` in `args.dtype`, always with the same weights. With fp16, which is then used for
    matrix products only, the weights are in fp32.
    """
    import torch  # slow to import, and not needed for the names above
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    dtype = torch.float32 if args.dtype is torch.float16 else args.dtype
    if args.shape == "smollm2":
        model = AutoModelForCausalLM.from_pretrained(embedded_model("smollm2"), dtype=dtype)
        tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
        model.config.update(tokens)
        model.generation_config = GenerationConfig(**tokens)
        return model.to(args.device)

    hidden, layers, heads, key_values, intermediate, vocabulary = SHAPES[args.shape]
    keys = {"head_dim": hidden // heads}
    kind = FAMILIES.get(args.shape, "qwen2")
    if kind == "qwen3_5_text":
        size = hidden // heads
        keys |= {"linear_num_key_heads": heads, "linear_num_value_heads": heads}
        keys |= {"linear_key_head_dim": size, "linear_value_head_dim": size}
    config = AutoConfig.for_model(
        kind,
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_values,
        intermediate_size=intermediate,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **keys,
    )
    torch.manual_seed(0)
    with torch.device(args.device):  # on a CPU, drawing a billion random numbers takes minutes
        return AutoModelForCausalLM.from_config(config).to(dtype)


class Batches:
    """
    Prompts and completions of random tokens, the same for every variant. Their lengths are drawn from a task's, times
    `scale` for completions; or every completion has `length` tokens.
    """

    def __init__(self, args: argparse.Namespace, scale: float = 1.0, length: int | None = None):
        self.args = args
        self.scale = scale
        self.length = length
        self.counts = json.loads((FOLDER / f"{args.task}_lengths.json").read_text())

    def draw(self, number: int) -> tuple[list[list[int]], list[list[int]]]:
        """Return prompt ids and completion ids of a generation batch, one row per completion."""
        source = random.Random(number)
        args = self.args
        prompts = []
        completions = []
        template = args.template if args.task == "gsm8k" else 0
        for _ in range(args.prompts):
            length = template + self._length(source, "question")
            prompt = [source.randrange(3, 250) for _ in range(length)]
            for _ in range(args.num_generations):
                prompts.append(prompt)
                count = self.length or max(1, round(self.scale * self._length(source, "answer")))
                completions.append([source.randrange(3, 250) for _ in range(min(count, args.longest))])
        return prompts, completions

    def _length(self, source: random.Random, what: str) -> int:
        counts = self.counts[what]
        return source.choices(range(len(counts)), weights=counts)[0]


def settings(args: argparse.Namespace) -> Iterator[tuple[str, list[str], Batches, int]]:
    """Yield title, variants, batches and updates per batch, for every setting of the command line."""
    names = [*ARMS, FLOOR]
    if args.arms:
        names = [name for name in names if name == BASELINE or name in args.arms]
    texts = {"gsm8k": "GSM8K's reference answers", "instructions": "SmolLM2's texts"}[args.task]
    batches = {f"{scale:g}× the length of {texts}": Batches(args, scale) for scale in args.scale}
    if args.lengths:
        batches = {f"every completion of {length} tokens": Batches(args, length=length) for length in args.lengths}
    for iterations in args.iterations:
        # With one inner pass B's penalty has no effect, and raises an error.
        chosen = [name for name in names if iterations > 1 or not name.startswith("B")]
        for lengths, drawn in batches.items():
            title = f"num_iterations={iterations}, {lengths}"
            if args.checkpointing == "on":
                title += ", gradient checkpointing"
            yield title, chosen, drawn, iterations


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line of `make step-cost`."""
    prog = program_name("step_cost")
    parser = Parser(
        prog=prog,
        usage=f"{prog} [--OPTION VALUE ...]",
        description="Time a training step and compare it with TRL.",
        formatter_class=functools.partial(argparse.ArgumentDefaultsHelpFormatter, max_help_position=26),
    )
    add_options(parser)
    args = parser.parse_args(argv)
    import torch  # slow to import, and not needed for --help and errors

    if args.device is None:
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.dtype is None:
        args.dtype = default_dtype(args.device)
    args.dtype = getattr(torch, args.dtype)
    if args.prompts * args.num_generations % args.micro_batch:
        parser.error(f"--micro_batch {args.micro_batch} must divide --prompts {args.prompts} x --num_generations.")
    if args.lengths and max(args.lengths) > args.longest:
        parser.error(f"--lengths {max(args.lengths)} must not exceed --longest {args.longest}.")
    if min(args.scale) <= 0:
        parser.error(f"--scale {min(args.scale):g} must be positive.")
    if max(args.iterations) == 1 and any(name.startswith("B") for name in args.arms or []):
        parser.error("--iterations 1 gives B no penalty; set 2, or leave B out of --arms.")
    if args.out.exists() and not args.out.is_dir():
        parser.error(f"--out {args.out} is a file; give a folder.")
    return args


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an option: a whole number from `least` on."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} must be at least {least}")
        return int(text)

    return number


def default_dtype(device: str) -> str:
    """Return the dtype of matrix products: bf16 on a GPU, but fp16 before Ampere, which only emulates bf16."""
    import torch

    if device == "cpu":
        return "float32"
    emulates = torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False)
    return "float16" if emulates else "bfloat16"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what is compared, its size, and the machine."""
    parser.add_argument(
        "--mode", choices=["arms", "memory"], default="arms", help="measure time, or the memory of each variant alone"
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[*ARMS, FLOOR],
        metavar="VARIANT",
        help=f"compare only these variants with {BASELINE}",
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="small", help="use a model of this shape")
    parser.add_argument(
        "--task", choices=["gsm8k", "instructions"], default="gsm8k", help="take the lengths of this task"
    )
    parser.add_argument(
        "--rank", type=at_least(0), metavar="N", default=16, help="set the LoRA rank; 0 is full fine-tuning"
    )
    parser.add_argument(
        "--iterations", type=at_least(1), nargs="+", default=[2], metavar="μ", help="set num_iterations; B needs 2"
    )
    parser.add_argument(
        "--scale", type=float, nargs="+", default=[1.0], metavar="X", help="multiply the length of completions"
    )
    parser.add_argument(
        "--lengths", type=at_least(2), nargs="+", metavar="N", help="give every completion this length instead"
    )
    parser.add_argument(
        "--longest", type=at_least(2), metavar="N", default=2048, help="truncate completions at this length"
    )
    parser.add_argument("--checkpointing", choices=["off", "on"], default="off", help="set gradient checkpointing")
    parser.add_argument(
        "--num_generations", type=at_least(2), metavar="G", default=8, help="set completions per prompt"
    )
    parser.add_argument("--prompts", type=at_least(1), metavar="N", default=4, help="set prompts per optimizer step")
    parser.add_argument("--micro_batch", type=at_least(1), metavar="N", default=8, help="set completions per forward")
    parser.add_argument(
        "--template",
        type=at_least(0),
        metavar="N",
        default=30,
        help="add this many template tokens per prompt of gsm8k",
    )
    parser.add_argument(
        "--rounds", type=at_least(1), metavar="N", default=5, help="run this many rounds after warm-up"
    )
    # CUDA_VISIBLE_DEVICES selects one of several GPUs.
    parser.add_argument("--device", choices=["cuda", "cpu"], help="choose the device; cuda if available")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="measure wall time, or cpu time on a busy machine"
    )
    parser.add_argument(
        "--threads", type=at_least(1), metavar="N", default=1, help="set CPU threads; with several, waiting counts too"
    )
    dtypes = ["float32", "bfloat16", "float16"]
    parser.add_argument("--dtype", choices=dtypes, help="set the dtype of matrix products; fp16 has weights in fp32")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/step_cost"), metavar="DIR", help="write arms.json and the chart here"
    )
