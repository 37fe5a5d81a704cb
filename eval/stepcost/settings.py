"""What is compared: model shapes, batches with a task's lengths, the variants, and the command line."""

import argparse
import functools
import itertools
import json
import random
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
GRPOTrainer = "trl:GRPOTrainer"  # by name, because importing takes seconds
ProRLTrainer = "trl_prorl:ProRLTrainer"
BASELINE = "TRL β>0"
DEFAULT = "TRL β=0"  # TRL's default
ACCELERATED = {"reuse_old_logps": True}
PACKED = {"reuse_old_logps": True, "pack_groups": "on", "compact_generation": "on"}
ARMS = {
    BASELINE: (GRPOTrainer, {"beta": 0.02}),
    DEFAULT: (GRPOTrainer, {"beta": 0.0}),
    "A0": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "ref_compute": "naive_epoch", **ACCELERATED}),
    "A": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, **ACCELERATED}),
    "B": (ProRLTrainer, {"beta_old": 0.02, **ACCELERATED}),
    "C": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "optimizer_reset": "hard", **ACCELERATED}),
    "plain packed": (ProRLTrainer, {"beta": 0.0, **PACKED}),
    "A packed": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, **PACKED}),
    "B packed": (ProRLTrainer, {"beta_old": 0.02, **PACKED}),
    "C packed": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "optimizer_reset": "hard", **PACKED}),
}
MORE_ARMS = {  # run only if named. fp32: frozen weights in fp32; the computation stays in bf16
    **{f"{name}, fp32": (GRPOTrainer, ARMS[name][1] | {"dtype": "float32"}) for name in (BASELINE, DEFAULT)},
    "ours, all off": (ProRLTrainer, {"beta": 0.02}),
}
FLOOR = "floor"  # no trainer: the bare model on the tokens that are left
GROWTH_ARMS = (BASELINE, "A packed", "B packed")


def new_model(args: argparse.Namespace, tokenizer, dtype=None):
    """
    Create a model of `args.shape` in `dtype`, always with the same weights. The default is `args.dtype`, or fp32 if
    that is fp16, which is then used for matrix products only.
    """
    import torch  # slow to import, and not needed for the names above
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    if dtype is None:
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
    """Prompts and completions of random tokens, the same for every variant, with lengths drawn from a histogram."""

    def __init__(self, args: argparse.Namespace, scale: float, fixed: int | None = None):
        self.args = args
        self.scale = scale
        self.fixed = fixed
        self.histogram = lengths(args.task)

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
                count = self.fixed or max(1, round(self.scale * self._length(source, "answer")))
                completions.append([source.randrange(3, 250) for _ in range(min(count, args.longest))])
        return prompts, completions

    def _length(self, source: random.Random, what: str) -> int:
        counts = self.histogram[what]
        return source.choices(range(len(counts)), weights=counts)[0]


def lengths(task: str) -> dict[str, list[int]]:
    """Read the histograms of a task's prompt lengths (`question`) and completion lengths (`answer`)."""
    return json.loads((FOLDER / f"{task}_lengths.json").read_text())


def mean_answer(task: str) -> float:
    """Return the mean number of tokens of a completion."""
    counts = lengths(task)["answer"]
    return sum(number * count for number, count in enumerate(counts)) / sum(counts)


def settings(args: argparse.Namespace):
    """
    Yield title, variants, batches, inner passes, gradient checkpointing and whether to generate, for every setting of
    the command line. A setting of `--mode growth` changes the group size in `args` when its turn comes.
    """
    checkpointing = {"off": [False], "on": [True], "both": [False, True]}[args.checkpointing]
    names = args.arms or [*ARMS, FLOOR]
    arms = {name: arm for name, arm in (ARMS | MORE_ARMS).items() if name == BASELINE or name in names}
    if FLOOR in names and args.mode == "arms":
        arms[FLOOR] = ("trl_prorl.eval.stepcost.trainers:Floor", {})
    if args.mode == "growth":
        yield from growth_settings(args, arms, checkpointing[0])
        return
    texts = {"gsm8k": "GSM8K's reference answers", "instructions": "SmolLM2's texts"}[args.task]
    for iterations, scale, checkpoint in itertools.product(args.iterations, args.scale, checkpointing):
        # With one inner pass B's penalty has no effect, and raises an error.
        chosen = {name: arm for name, arm in arms.items() if iterations > 1 or not name.startswith("B")}
        title = f"num_iterations={iterations}, {scale:g}× the length of {texts}"
        if checkpoint:
            title += ", gradient checkpointing"
        yield title, chosen, Batches(args, scale), iterations, checkpoint, not args.no_generation


def growth_settings(args: argparse.Namespace, arms: dict, checkpointing: bool):
    """Yield the settings of `--mode growth`: several completion lengths at G=8, and several G at 256 tokens."""
    arms = {name: arm for name, arm in arms.items() if name in GROWTH_ARMS}
    sizes = [(length, 8) for length in args.lengths]
    sizes += [(256, group) for group in args.groups if group != 8]
    for length, group in sizes:
        args.num_generations = group
        args.micro_batch = group
        if args.spread:
            title = f"{length} tokens on average, G={group}"
            batches = Batches(args, length / mean_answer(args.task))
        else:
            title = f"every completion of {length} tokens, G={group}"
            batches = Batches(args, 1.0, fixed=length)
        yield title, arms, batches, 2, checkpointing, not args.no_generation


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line of `make step-cost`."""
    prog = program_name("step_cost")
    parser = Parser(
        prog=prog,
        usage=f"{prog} [--OPTION VALUE ...]",
        description="Time a training step and compare it with TRL.",
        formatter_class=functools.partial(argparse.ArgumentDefaultsHelpFormatter, max_help_position=26),
    )
    _add_options_of_arms(parser)
    _add_options_of_size(parser)
    args = parser.parse_args(argv)
    import torch  # slow to import, and not needed for --help and errors

    if args.device is None:
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.dtype is None:
        args.dtype = default_dtype(args.device)
    args.dtype = getattr(torch, args.dtype)
    if args.micro_batch > args.prompts * args.num_generations:
        parser.error(f"--micro_batch {args.micro_batch} must not exceed --prompts {args.prompts} x --num_generations.")
    return args


def default_dtype(device: str) -> str:
    """Return the dtype of matrix products: bf16 on a GPU, but fp16 before Ampere, which only emulates bf16."""
    import torch

    if device == "cpu":
        return "float32"
    emulates = torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False)
    return "float16" if emulates else "bfloat16"


def _add_options_of_arms(parser: argparse.ArgumentParser) -> None:
    """Add options for what is compared: mode, variants, shape, task, and what the settings of `--mode arms` vary."""
    parser.add_argument(
        "--mode",
        choices=["arms", "growth", "memory"],
        default="arms",
        metavar="MODE",
        help="measure variants (arms), sizes (growth) or memory",
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[*(name for name in ARMS | MORE_ARMS if name != BASELINE), FLOOR],
        default=None,
        metavar="VARIANT",
        help=f"compare only these variants with {BASELINE}",
    )
    parser.add_argument(
        "--shape",
        choices=list(SHAPES),
        default="small",
        metavar="SHAPE",
        help=f"use a model of this shape: {', '.join(SHAPES)}",
    )
    parser.add_argument(
        "--task",
        choices=["gsm8k", "instructions"],
        default="gsm8k",
        metavar="TASK",
        help="take the lengths of this task: gsm8k or instructions",
    )
    parser.add_argument("--rank", type=int, metavar="N", default=16, help="set the LoRA rank; 0 is full fine-tuning")
    parser.add_argument(
        "--iterations", type=int, nargs="+", default=[2], metavar="μ", help="set num_iterations; B needs 2"
    )
    parser.add_argument(
        "--scale", type=float, nargs="+", default=[1.0], metavar="X", help="multiply the length of completions"
    )
    parser.add_argument(
        "--checkpointing",
        choices=["off", "on", "both"],
        default="off",
        metavar="ON",
        help="set gradient checkpointing: off, on or both",
    )


def _add_options_of_size(parser: argparse.ArgumentParser) -> None:
    """Add options for the size of a step, what `--mode growth` varies, and the machine."""
    parser.add_argument("--num_generations", type=int, metavar="G", default=8, help="set completions per prompt")
    parser.add_argument("--prompts", type=int, metavar="N", default=4, help="set prompts per optimizer step")
    parser.add_argument("--micro_batch", type=int, metavar="N", default=8, help="set completions per forward")
    parser.add_argument(
        "--template", type=int, metavar="N", default=30, help="add this many template tokens per prompt"
    )
    parser.add_argument("--longest", type=int, metavar="N", default=2048, help="truncate completions at this length")
    parser.add_argument("--rounds", type=int, metavar="N", default=5, help="run this many rounds after warm-up")
    parser.add_argument(
        "--no-generation", "--no_generation", action="store_true", help="skip the timing of generation"
    )
    parser.add_argument(
        "--lengths",
        type=int,
        metavar="N",
        nargs="+",
        default=[64, 256, 1024, 2048],
        help="growth: use these completion lengths",
    )
    parser.add_argument(
        "--groups", type=int, metavar="G", nargs="+", default=[4, 8, 16, 32], help="growth: use these group sizes"
    )
    parser.add_argument("--spread", action="store_true", help="growth: spread lengths like GSM8K's answers")
    # CUDA_VISIBLE_DEVICES selects one of several GPUs.
    parser.add_argument("--device", choices=("cuda", "cpu"), help="choose the device; cuda if available")
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        metavar="CLOCK",
        help="measure wall time, or cpu time on a busy machine",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", default=1, help="set CPU threads; with several, waiting counts too"
    )
    parser.add_argument("--dtype", default=None, help="set float32, bfloat16, or float16 (weights in fp32)")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/step_cost"), metavar="DIR", help="write MODE.json and the chart here"
    )
