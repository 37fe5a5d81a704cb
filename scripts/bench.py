"""
Time a training step against TRL's: seconds of generation, scoring and update, peak memory, operators.

    python scripts/bench.py                                                  # a model of 5.5M parameters
    python scripts/bench.py --shape qwen2.5-1.5b --checkpointing --micro_batch 16 --longest 256 --json step.json
    python scripts/bench.py --count                       # what a GPU would have to launch, counted without one

All variants train one model with random weights on the same batches, in turns: TRL with a fixed reference and without
a KL, and with `fast: true` no KL, A and B (a different objective). `floor` is the bare model on the tokens that are
left if nothing is computed twice. Completions have the lengths of GSM8K's reference answers, times `--scale`; each
variant samples in its own way, and every completion ends at the length that was drawn for it. Quote the ratios.
`--variants "TRL, no KL" "TRL, no KL, packed"` is TRL without and with `pack(trainer)`.

On a CPU TRL's head scores every position, on a GPU the completions' alone; `--gpu_head` does so on a CPU, too.

`--count` times nothing. Without a GPU it trains on the pretended device of `tests/device`, on which the code takes the
ways of a GPU.
"""

import argparse
import contextlib
import io
import itertools
import json
import logging
import math
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, LogitsProcessorList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import utils

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.cli.prompts import find_distinct, pad_left
from trl_prorl.embedded.shipped import byte_tokenizer
from trl_prorl.fast import pack
from trl_prorl.fast.batch_cache import Room, repeat_rows
from trl_prorl.fast.head import add_frozen_head
from trl_prorl.fast.packing import packed_logps
from trl_prorl.fast.prefix import accept_prefixes


SHAPES = {  # model type, hidden, layers, attention heads, key-value heads, intermediate, vocabulary
    "small": ("qwen2", 256, 4, 4, 4, 768, 8192),
    "small-qwen3.5": (
        "qwen3_5_text",
        256,
        4,
        4,
        4,
        768,
        8192,
    ),  # three layers of Gated DeltaNet, then one of attention
    "small-gemma3": (
        "gemma3_text",
        256,
        6,
        4,
        1,
        768,
        8192,
    ),  # five layers with a window of 512 tokens, then one without
    "deep": ("qwen2", 64, 28, 4, 2, 192, 8192),  # as many layers as the 1.5B has, to be counted
    "qwen2.5-0.5b": ("qwen2", 896, 24, 14, 2, 4864, 151936),
    "qwen2.5-1.5b": ("qwen2", 1536, 28, 12, 2, 8960, 151936),
}
BASELINE = "TRL, fixed reference"
FLOOR = "floor"
VARIANTS = {
    BASELINE: {"beta": 0.02},
    "TRL, packed": {"beta": 0.02},
    "TRL, no KL": {"beta": 0.0},
    "TRL, no KL, packed": {"beta": 0.0},
    "no KL": {"fast": True},
    "A": {"fast": True, "beta": 0.02, "ref_reset_every": 200},
    "B": {"fast": True, "beta_old": 0.02},
    FLOOR: {},
}
STAGES = ("generation", "scoring", "update", "whole")
LENGTHS = json.loads(Path(__file__).with_name("gsm8k_lengths.json").read_text())
TEMPLATE = 30  # tokens of a chat template
FIRST = 8  # first token id that identifies a completion; lower ids are special tokens
TOKENS = 16  # whose forwards the floor times


def new_model(args: argparse.Namespace):
    """Create the model of a shape, always with the same weights."""
    kind, hidden, layers, heads, key_values, intermediate, vocabulary = SHAPES[args.shape]
    size = hidden // heads
    linear = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    tokenizer = byte_tokenizer()
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
        head_dim=size,
        **dict(zip(linear, (heads, heads, size, size), strict=True)),  # of Gated DeltaNet
    )
    torch.manual_seed(0)
    with torch.device(args.device):  # on a CPU, drawing a billion random numbers takes minutes
        return AutoModelForCausalLM.from_config(config).to(getattr(torch, args.dtype))


def draw_batch(args: argparse.Namespace, number: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return prompt ids and completion ids of a generation batch of random tokens, one row per completion."""
    source = random.Random(number)

    def length(of: str) -> int:
        return source.choices(range(len(LENGTHS[of])), weights=LENGTHS[of])[0]

    def tokens(count: int) -> list[int]:
        return [source.randrange(FIRST, 250) for _ in range(count)]

    prompts = []
    completions = []
    for _ in range(args.prompts):
        prompts += [tokens(TEMPLATE + length("question"))] * args.num_generations
        for _ in range(args.num_generations):
            wanted = round(args.scale * length("answer"))
            completions.append(tokens(min(max(2, wanted), args.longest)))
    return prompts, completions


COUNTED = ("operators", "launches", "bytes", "waits")
# Operators without a kernel that are not views by their schema, and those after which the host waits for a number.
WITHOUT_KERNEL = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "set_")
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "is_nonzero")


@cache
def has_kernel(function) -> bool:
    """Return whether an operator computes: not a view, and not memory alone."""
    is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in function._schema.returns)
    return not is_view and function.overloadpacket.__name__ not in WITHOUT_KERNEL


class Operators(TorchDispatchMode):
    """
    Count, while it is entered, PyTorch's operators; those with a kernel on the device; the bytes of the tensors that
    these read and write; and those after which the host waits for values of the device.
    """

    def __init__(self, device: str):
        super().__init__()
        self.device = device
        self.counts = np.zeros(len(COUNTED))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.note(function, args, kwargs, result)
        return result

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count in this context."""
        if self.device != "pretend":
            with self:
                yield
            return
        import pretend  # no mode sees a device that is written in Python

        pretend.watches.append(self.note)
        yield
        pretend.watches.remove(self.note)

    def note(self, function, args, kwargs, result) -> None:
        """Count a call of an operator."""
        read = {name: value for name, value in (kwargs or {}).items() if name != "out"}  # which is the result
        given = [one for one in tree_leaves((args, read)) if isinstance(one, torch.Tensor)]
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        here = [one for one in given + made if one.device.type == self.device]
        is_launch = bool(here) and has_kernel(function)
        size = sum(one.numel() * one.element_size() for one in here) if is_launch else 0
        is_read = self.device != "cpu" and len(here) < len(given + made) and made and made[0].device.type == "cpu"
        waits = bool(here) and (function.overloadpacket.__name__ in WAITING or bool(is_read))
        self.counts += (1, is_launch, size, waits)


def batches_trained(args: argparse.Namespace) -> int:
    """Return how many batches a training has, of which the last is measured: two updates of ours are checked first."""
    return 3 if args.count else 1


class Watch(TrainerCallback):
    """
    Seconds and [`Operators`], an array, of the steps of a training and of calls in it; peak GPU memory in bytes.
    """

    def __init__(self, args: argparse.Namespace):
        self.clock = time.process_time if args.clock == "cpu" else time.perf_counter
        self.gpu = args.device == "cuda"
        self.operators = Operators(args.device)
        self.spent = defaultdict(lambda: np.zeros(1 + len(COUNTED)))
        self.first = args.iterations * (batches_trained(args) - 1)  # of the steps that count
        self.peak = 0

    def read(self) -> np.ndarray:
        if self.gpu:
            torch.cuda.synchronize()
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())
        return np.array([self.clock(), *self.operators.counts])

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.first:
            self.spent.clear()
        self.began = self.read()

    def on_step_end(self, args, state, control, **kwargs):
        self.spent["step"] += self.read() - self.began

    def wrap(self, name: str, function):
        """Wrap a function, so that its calls are added to `spent`."""

        def wrapped(*args, **kwargs):
            began = self.read()
            result = function(*args, **kwargs)
            self.spent[name] += self.read() - began
            return result

        return wrapped


def forced_ends(lengths: list[int], width: int, end: int, device: str):
    """
    Return a processor of logits that ends every completion at its length. It forces the first token as well, which
    identifies the completion, because finished rows are dropped on the way.
    """
    wanted = torch.tensor(lengths, device=device)

    def process(input_ids, scores):
        done = input_ids.shape[1] - width
        forced = torch.full_like(scores, -math.inf)
        if done == 0:
            rows = torch.arange(len(input_ids), device=device)
            forced[rows, FIRST + rows] = 0.0
            return forced
        forced[:, end] = 0.0
        last = wanted[input_ids[:, width] - FIRST] <= done + 1  # and rows that have ended
        scores[:, end] = -math.inf
        return torch.where(last[:, None], forced, scores)

    return process


def watch_scoring(trainer: ProRLTrainer, watch: Watch) -> None:
    """
    Add a trainer's scoring to `watch.spent`, by way of its class: a method set on the trainer itself counts as a
    script's own, for which `fast` leaves the rows in their order.
    """
    score = ProRLTrainer._generate_and_score_completions
    watched = watch.wrap("scoring", score)

    def scored(self, inputs):
        return (watched if self is trainer else score)(self, inputs)

    ProRLTrainer._generate_and_score_completions = scored


class Trained:
    """A variant: a trainer of TRL's or ours, whose rollouts are the drawn batches."""

    def __init__(self, name: str, args: argparse.Namespace, folder: str):
        self.args = args
        self.folder = f"{folder}/{name}"
        self.watch = Watch(args)
        is_trl = name.startswith("TRL")
        numbers = itertools.count()

        def rollout(prompts, trainer):
            ids, completions = draw_batch(args, next(numbers))
            return {
                "prompt_ids": ids,
                "completion_ids": completions,
                "logprobs": [[0.0] * len(c) for c in completions],
            }

        def reward(completion_ids, **columns):  # differs within every group but the first `--solved`
            solved = args.solved * args.num_generations
            return [float(sum(ids) % 7) + row % 2 if row >= solved else 1.0 for row, ids in enumerate(completion_ids)]

        keys = {
            "output_dir": self.folder,
            "per_device_train_batch_size": args.micro_batch,
            "gradient_accumulation_steps": args.prompts * args.num_generations // args.micro_batch,
            "num_generations": args.num_generations,
            "num_iterations": args.iterations,
            "max_steps": args.iterations * batches_trained(args),
            "max_completion_length": args.longest,
            "bf16": args.dtype == "bfloat16",
            "use_cpu": args.device == "cpu",
            "gradient_checkpointing": args.checkpointing,
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        self.trainer = (GRPOTrainer if is_trl else ProRLTrainer)(
            model=new_model(args),
            reward_funcs=reward,
            args=(GRPOConfig if is_trl else ProRLConfig)(**(keys | VARIANTS[name])),
            train_dataset=Dataset.from_dict({"prompt": ["x"] * args.prompts}),
            processing_class=byte_tokenizer(),
            peft_config=LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear"),
            rollout_func=rollout,
            callbacks=[self.watch],
        )
        if is_trl and name.endswith("packed"):
            pack(self.trainer)
        if is_trl:
            self.trainer._generate_and_score_completions = self.watch.wrap(
                "scoring", self.trainer._generate_and_score_completions
            )
        else:
            watch_scoring(self.trainer, self.watch)
        # It ends a step: it writes the row of our log.
        self.trainer._maybe_log_save_evaluate = self.watch.wrap("step", self.trainer._maybe_log_save_evaluate)

    def generate(self, number: int) -> np.ndarray:
        """Return seconds and operators of sampling a batch, with the trainer's own method, at the batch's lengths."""
        prompts, completions = draw_batch(self.args, number)
        lengths = [len(ids) for ids in completions]
        policy = self.trainer.accelerator.unwrap_model(self.trainer.model)
        models = [policy.get_base_model()]
        compact = getattr(self.trainer, "compact", None)
        if compact is not None:
            compact.measures = False  # other batches are trained on
            models += [compact.copy.model] if compact.copy is not None else []
        end = self.trainer.processing_class.eos_token_id
        ends = LogitsProcessorList([forced_ends(lengths, max(map(len, prompts)), end, self.args.device)])
        for model in models:
            model.generate = partial(type(model).generate, model, logits_processor=ends)
        began = self.watch.read()
        with torch.no_grad():
            made, _ = self.trainer._generate_single_turn(prompts, None, {}, self.args.num_generations)
        spent = self.watch.read() - began
        for model in models:
            del model.generate
        if [len(ids) for ids in made] != lengths:
            raise RuntimeError("the completions do not have the lengths of the batch")
        return spent

    def train(self, number: int) -> None:
        """Train on the next batch, as a run of its own."""
        self.trainer.args.output_dir = f"{self.folder}-{number}"
        self.trainer.has_trained = False
        self.trainer.train()


class Floor:
    """
    A lower bound: the bare model without adapters, in the dtype of the frozen weights. Its update is a forward and a
    backward pass over the packed tokens. Its generation is a forward pass over each prompt, and one over the
    unfinished rows for each token, which is measured at their mean number.
    """

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.watch = Watch(args)
        self.model = new_model(args).requires_grad_(False)
        utils.add_fused_lm_head(self.model, outputs=("log_probs", "entropy"))
        add_frozen_head(self.model, 1.0)
        accept_prefixes(self.model)
        self.model.get_input_embeddings().register_forward_hook(lambda module, given, states: states.requires_grad_())

    @torch.no_grad()
    def generate(self, number: int) -> np.ndarray:
        """Return the least seconds and operators of sampling a batch."""
        device = self.args.device
        prompts, completions = draw_batch(self.args, number)
        steps = max(map(len, completions)) - 1
        unfinished = round((sum(map(len, completions)) - len(completions)) / steps)  # rows, the mean over tokens
        distinct, copies = find_distinct(prompts)
        ids, mask = pad_left(distinct, 0)
        began = self.watch.read()
        outputs = self.model(ids.to(device), attention_mask=mask.to(device), use_cache=True)
        of_prompts = self.watch.read() - began
        name = "cache" if "cache" in outputs else "past_key_values"  # of a model with a state
        cache = outputs[name]
        room = Room(unfinished, ids.shape[1] + TOKENS, device)
        repeat_rows(cache, torch.tensor(copies[:unfinished], device=device), room.take, makes_rings=False)
        token = torch.full((unfinished, 1), FIRST, device=device)
        spent = []
        for _ in range(TOKENS):
            began = self.watch.read()
            self.model(token, use_cache=True, **{name: cache})
            spent.append(self.watch.read() - began)
        return of_prompts + steps * np.median(spent, axis=0)

    def train(self, number: int) -> None:
        """Run the updates of a batch."""
        prompts, completions = draw_batch(self.args, number)
        began = self.watch.read()
        for _ in range(self.args.iterations):
            for first in range(0, len(prompts), self.args.micro_batch):
                rows = slice(first, first + self.args.micro_batch)
                prompt_ids, _ = pad_left(prompts[rows], 0)
                # Reversed, padded on the left, and reversed again: padded on the right.
                reversed_ids, _ = pad_left([ids[::-1] for ids in completions[rows]], 0)
                ids = torch.cat([prompt_ids, reversed_ids.flip(1)], dim=1).to(self.args.device)
                logps, *_ = packed_logps(self.model, ids, (ids > 0).long(), reversed_ids.shape[1])
                logps.sum().backward()
        self.watch.spent["step"] = self.watch.read() - began


def run_round(variant: Trained | Floor, number: int, counted: bool) -> dict[str, np.ndarray]:
    """Sample and train a batch; return seconds and operators of an optimizer step by stage, and `peak` in GiB."""
    watch = variant.watch
    watch.spent.clear()
    held = 0
    with watch.operators.counting() if counted else contextlib.nullcontext():
        if watch.gpu:
            held = torch.cuda.memory_allocated()  # by the models of all variants; generation may keep more
        generation = variant.generate(number)
        if watch.gpu:
            torch.cuda.reset_peak_memory_stats()
        watch.peak = held
        variant.train(number)
    step, scoring = watch.spent["step"], watch.spent["scoring"]
    stages = zip(STAGES, (generation, scoring, step - scoring, generation + step), strict=True)
    found = {stage: spent / variant.args.iterations for stage, spent in stages}
    return found | {"peak": (watch.peak - held) / 2**30}


def measure(args: argparse.Namespace) -> dict[str, dict]:
    """Return seconds of every round by variant and stage, counts by stage, and the peak memory of an update."""
    logging.getLogger("trl_prorl").setLevel(logging.ERROR)  # a folder is used again
    rounds = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        variants = {name: Floor(args) if name == FLOOR else Trained(name, args, folder) for name in args.variants}
        for number in range(args.rounds + 2):  # the first warms up, the last counts
            turn = number % len(variants)
            for name in args.variants[turn:] + args.variants[:turn]:
                rounds[name].append(run_round(variants[name], number, counted=number > args.rounds))
    found = {}
    for name in args.variants:
        _, *timed, last = rounds[name]
        found[name] = {stage: [float(one[stage][0]) for one in timed] for stage in STAGES}
        for place, counted in enumerate(COUNTED, 1):
            found[name][counted] = [round(last[stage][place]) for stage in STAGES[:3]]
        found[name]["peak"] = max((one["peak"] for one in timed), default=0.0)
    return found


def ratio(theirs: list[float], ours: list[float]) -> str:
    """Return median and range of the ratios of paired rounds."""
    ratios = [one / other for one, other in zip(theirs, ours, strict=True)]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def show(found: dict[str, dict], title: str) -> Table:
    """Return the table: medians of seconds, ratios of whole steps, operators of each stage, peak memory on a GPU."""
    baseline = next(iter(found))
    columns = ["variant", *(f"{stage}, s" for stage in STAGES), f"× {baseline}", "operators", "peak, GiB"]
    table = Table(*columns, title=title)
    for name, values in found.items():
        seconds = [f"{statistics.median(values[stage]):.3f}" for stage in STAGES]
        operators = ", ".join(f"{count:,}" for count in values["operators"])
        speedup = ratio(found[baseline]["whole"], values["whole"])
        table.add_row(name, *seconds, speedup, operators, f"{values['peak']:.2f}")
    return table


def show_counts(found: dict[str, dict], title: str) -> Table:
    """Return the table of an optimizer step's counts, and × the first variant's."""
    baseline = next(iter(found.values()))
    table = Table("stage", "variant", "operators", "×", "launches", "×", "MB", "waits", title=title)
    for place, stage in enumerate(STAGES[:3]):
        for name, values in found.items():
            operators, launches, size, waits = (values[counted][place] for counted in COUNTED)
            shares = [values[counted][place] / max(1, baseline[counted][place]) for counted in COUNTED]
            cells = [f"{operators:,}", f"{shares[0]:.2f}", f"{launches:,}", f"{shares[1]:.2f}", f"{size / 1e6:,.0f}"]
            table.add_row(stage if values is baseline else "", name, *cells, f"{waits:,}")
    return table


def pretend_a_gpu() -> None:
    """Register the device of `tests/device`, for the rest of this process."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "device"))
    from trainings import stand_in_for_gpu

    stand_in_for_gpu()


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [name for name in VARIANTS if not name.endswith("packed")]
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=usual, metavar="NAME")
    gpu = torch.cuda.is_available()
    choices = {"shape": list(SHAPES), "device": ["cpu", "cuda", "pretend"], "dtype": ["float32", "bfloat16"]}
    choices["clock"] = ["wall", "cpu"]  # cpu on a busy machine
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[gpu and name in ("device", "dtype")])
    numbers = {"prompts": 4, "num_generations": 8, "micro_batch": 8, "longest": 2048, "iterations": 2, "rank": 16}
    numbers["solved"] = 0  # prompts of a batch whose completions all have the same reward
    for name, value in (numbers | {"scale": 1.0, "rounds": 5, "threads": 1}).items():
        parser.add_argument(f"--{name}", type=type(value), default=value, metavar="N")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--gpu_head", action="store_true", help="score the completions' positions alone, as on a GPU")
    parser.add_argument("--count", action="store_true", help="count operators, launches, bytes and waits; no times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings and rounds")
    args = parser.parse_args(argv)
    if args.prompts * args.num_generations % args.micro_batch:
        parser.error(f"--micro_batch {args.micro_batch} must divide --prompts {args.prompts} × --num_generations.")
    if args.count:
        args.rounds = 0
        args.device = "cuda" if gpu else "pretend"
    if args.iterations == 1:
        args.variants = [name for name in args.variants if name != "B"]  # its penalty needs a second update
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    torch.set_num_threads(args.threads)
    if args.device == "pretend":
        pretend_a_gpu()
    if args.gpu_head:
        utils._use_triton = lambda device: True  # which the head asks; its kernels ask another module
    found = measure(args)
    hardware = {"cuda": torch.cuda.get_device_name, "cpu": lambda: "CPU"}.get(args.device, lambda: "no GPU")()
    made = show_counts if args.count else show
    Console().print(made(found, f"an optimizer step, {args.shape}, {args.dtype}, {hardware}"))
    if args.json:
        content = {"settings": vars(args), "hardware": hardware, "results": found}
        args.json.write_text(json.dumps(content, default=str) + "\n")


if __name__ == "__main__":
    main()
