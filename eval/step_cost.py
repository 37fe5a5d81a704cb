"""
What a step costs, side by side with TRL: `python -m eval.step_cost`.

Every arm trains the same model on the same batches in one process, in turns: TRL with and without a reference, and A,
B and C, padded and packed; the packed arms also sample compactly. The completions have lengths of GSM8K's distribution
(`eval/gsm8k_lengths.json`, counted in the pieces of Qwen2's pre-tokenizer) times `--scale`, because models write more
than the gold answers; their tokens are random. Each arm generates in its own way, with its own model, and every
completion is made to end at the length that was drawn for it. Ratios to TRL are what to quote.
"""

import argparse
import contextlib
import functools
import io
import itertools
import json
import math
import multiprocessing
import random
import re
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from datasets import Dataset
from matplotlib.figure import Figure
from peft import LoraConfig, PeftModel
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from eval.command import command, program
from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.embedded.making import byte_tokenizer
from trl_prorl.launch.interrupt import NOTHING_CHANGED
from trl_prorl.own_packages import claim
from trl_prorl.variants import VARIANTS


LENGTHS = Path(__file__).with_name("gsm8k_lengths.json")
SHAPES = {  # hidden, layers, attention heads, key-value heads, intermediate, vocabulary
    "small": (256, 4, 4, 4, 768, 8192),
    "qwen2.5-0.5b": (896, 24, 14, 2, 4864, 151936),
    "qwen2.5-1.5b": (1536, 28, 12, 2, 8960, 151936),
}
BASELINE = "TRL β>0"
ACCELERATED = {"reuse_old_logps": True}
PACKED = {"reuse_old_logps": True, "pack_groups": "on", "compact_generation": "on"}
ARMS = {
    BASELINE: (GRPOTrainer, {"beta": 0.02}),
    "TRL β=0": (GRPOTrainer, {"beta": 0.0}),
    "A": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, **ACCELERATED}),
    "B": (ProRLTrainer, {"beta_old": 0.02, **ACCELERATED}),
    "C": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "optimizer_reset": "hard", **ACCELERATED}),
    "A packed": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, **PACKED}),
    "B packed": (ProRLTrainer, {"beta_old": 0.02, **PACKED}),
    "C packed": (ProRLTrainer, {"beta": 0.02, "ref_reset_every": 200, "optimizer_reset": "hard", **PACKED}),
}
OVERHEAD_ARMS = {BASELINE: ARMS[BASELINE], "ours, all off": (ProRLTrainer, {"beta": 0.02})}
GROWTH_STYLES = {
    BASELINE: {"color": "#000000", "marker": "o"},
    "A packed": {"color": VARIANTS["A"].colour, "marker": "s"},
    "B packed": {"color": VARIANTS["B"].colour, "marker": "^"},
}
FIRST = 8  # of the token ids that say which completion is which; special tokens are below
ROUNDS = {"generation": "generated", "update phase": "phase", "whole step": "whole"}  # heading and key of every round
COLOURS = {"generation": "#BBBBBB", "scoring": "#CC79A7", "update": "#56B4E9"}


class Batches:
    """Prompts and completions of random tokens, the same for every arm; the lengths are drawn from a histogram."""

    def __init__(self, args: argparse.Namespace, scale: float, fixed: int | None = None):
        self.args, self.scale, self.fixed = args, scale, fixed
        self.histogram = json.loads(LENGTHS.read_text())

    def draw(self, number: int) -> tuple[list[list[int]], list[list[int]]]:
        """Prompt ids and completion ids of the generation batch of this number, a row per completion."""
        source, args = random.Random(number), self.args
        prompts, completions = [], []
        for _ in range(args.prompts):
            length = args.template + self._length(source, "question")
            prompt = [source.randrange(3, 250) for _ in range(length)]
            for _ in range(args.num_generations):
                prompts.append(prompt)
                count = self.fixed or max(1, round(self.scale * self._length(source, "answer")))
                completions.append([source.randrange(3, 250) for _ in range(min(count, args.longest))])
        return prompts, completions

    def _length(self, source: random.Random, what: str) -> int:
        counts = self.histogram[what]
        return source.choices(range(len(counts)), weights=counts)[0]


class Stopwatch(TrainerCallback):
    """
    Seconds of a trainer's steps, and of what it does around generation, which the rollouts of this benchmark skip.
    """

    def __init__(self, device: torch.device, clock: str):
        self.device, self.seconds, self.began = device, defaultdict(float), None
        self.clock = time.process_time if clock == "cpu" else time.perf_counter

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = self.now()

    def ending_a_step(self, function):
        """`function`, with whose end a step ends; the call at the end of an epoch belongs to none."""

        def timed(*args, **kwargs):
            result = function(*args, **kwargs)
            if self.began is not None:
                self.seconds["step"] += self.now() - self.began
                self.began = None
            return result

        return timed

    def around(self, name: str, function):
        def timed(*args, **kwargs):
            began = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += self.now() - began

        return timed


def new_model(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    hidden, layers, heads, key_values, intermediate, vocabulary = SHAPES[args.shape]
    torch.manual_seed(0)
    config = Qwen2Config(
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
    )
    return Qwen2ForCausalLM(config).to(args.dtype)


def make_trainer(
    name: str, arm, args, batches: Batches, iterations: int, checkpointing: bool, folder: str
) -> GRPOTrainer:
    """A trainer of an arm, whose rollouts are those of `batches` and whose rewards differ within every group."""
    cls, keys = arm
    count = {"generations": 0}

    def rollout(prompts, trainer):
        ids, completions = batches.draw(count["generations"])
        count["generations"] += 1
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": [[0.0] * len(c) for c in completions]}

    def reward(completion_ids, **columns):
        return [float(sum(ids) % 7) + row % 2 for row, ids in enumerate(completion_ids)]

    config = (ProRLConfig if cls is ProRLTrainer else GRPOConfig)(
        output_dir=str(Path(folder, name.replace(" ", "_"))),
        per_device_train_batch_size=args.micro_batch,
        gradient_accumulation_steps=args.prompts * args.num_generations // args.micro_batch,
        num_generations=args.num_generations,
        num_iterations=iterations,
        max_steps=iterations,
        max_completion_length=args.longest,
        learning_rate=1e-6,
        bf16=args.dtype is torch.bfloat16,
        use_cpu=args.device == "cpu",
        gradient_checkpointing=checkpointing,
        save_strategy="no",
        logging_steps=10_000,
        report_to="none",
        disable_tqdm=True,
        **keys,
    )
    # A full model is its own reference's source, so it needs a path; LoRA's reference is the base.
    lora = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear") if args.rank else None
    rows = Dataset.from_dict({"prompt": ["x"] * args.prompts})
    tokenizer = byte_tokenizer()
    with tempfile.TemporaryDirectory() as model_folder:
        model = new_model(args, tokenizer)
        if lora is None:
            model.save_pretrained(model_folder)
            model.config._name_or_path = model_folder
        trainer = cls(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=rows,
            processing_class=tokenizer,
            peft_config=lora,
            rollout_func=rollout,
        )
    watch = Stopwatch(trainer.accelerator.device, args.clock)
    trainer.add_callback(watch)
    trainer.watch = watch
    # After on_step_end, and with it the row of the record is written.
    trainer._maybe_log_save_evaluate = watch.ending_a_step(trainer._maybe_log_save_evaluate)
    trainer._generate_and_score_completions = watch.around("scoring", trainer._generate_and_score_completions)
    return trainer


class ForcedEnds(LogitsProcessor):
    """
    Ends every completion at its length. A completion's first token is forced too, and says which one it is, for rows
    are dropped on the way.
    """

    def __init__(self, lengths: list[int], width: int, end: int, device: torch.device):
        self.lengths, self.width, self.end = torch.tensor(lengths, device=device), width, end

    def __call__(self, input_ids, scores):
        done = input_ids.shape[1] - self.width
        rows = torch.arange(len(input_ids), device=scores.device)
        if done == 0:
            scores = torch.full_like(scores, -math.inf)
            scores[rows, FIRST + rows] = 0.0
            return scores
        # A row that has ended and is still computed, as transformers computes it, ends again and again.
        last = self.lengths[input_ids[:, self.width] - FIRST] <= done + 1
        scores[:, self.end] = -math.inf
        scores[last] = -math.inf
        scores[last, self.end] = 0.0
        return scores


def generation_seconds(trainer: GRPOTrainer, batches: Batches, number: int) -> float:
    """
    One generation of a batch by the trainer's own method, its completions as long as they were drawn.

    Raises:
        `RuntimeError`: they are not.
    """
    prompts, completions = batches.draw(number)
    lengths = [max(2, len(ids)) for ids in completions]
    policy = trainer.accelerator.unwrap_model(trainer.model)
    models = [policy.get_base_model() if isinstance(policy, PeftModel) else policy]
    compact = getattr(trainer, "parts", {}).get("generation")
    if compact is not None and compact.copy is not None:
        models.append(compact.copy.model)
    end = trainer.processing_class.eos_token_id
    ends = ForcedEnds(lengths, max(map(len, prompts)), end, trainer.accelerator.device)
    for model in models:
        model.generate = functools.partial(type(model).generate, model, logits_processor=LogitsProcessorList([ends]))
    began = trainer.watch.now()
    try:
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            made, _ = trainer._generate_single_turn(prompts, None, {}, batches.args.num_generations)
    finally:
        for model in models:
            del model.generate
    seconds = trainer.watch.now() - began
    if [len(ids) for ids in made] != lengths:
        raise RuntimeError("the completions are not as long as they were drawn")
    return seconds


def measure(
    arms: dict, args, batches: Batches, iterations: int, checkpointing: bool, generate: bool
) -> dict[str, dict]:
    """
    Run the arms in turns.

    Returns:
        `dict[str, dict]`: by arm the median seconds of an optimizer step's `generation`, `scoring` and `update`, every
        round's seconds of what `ROUNDS` names, and on a GPU the `peak` memory in GiB.
    """
    rounds = {name: defaultdict(list) for name in arms}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainers = {
            name: make_trainer(name, arm, args, batches, iterations, checkpointing, folder)
            for name, arm in arms.items()
        }
        order = list(trainers)
        for number in range(args.rounds + 1):
            # In turns, and not always in the same order.
            for name in order[number % len(order) :] + order[: number % len(order)]:
                trainer = trainers[name]
                generation = generation_seconds(trainer, batches, number) if generate else 0.0
                trainer.watch.seconds.clear()
                if torch.cuda.is_available():
                    torch.cuda.reset_peak_memory_stats()
                with contextlib.redirect_stdout(io.StringIO()):
                    trainer.train()
                if number == 0:
                    continue  # the first round warms up
                seconds = trainer.watch.seconds
                rounds[name]["scoring"].append(seconds["scoring"] / iterations)
                rounds[name]["update"].append((seconds["step"] - seconds["scoring"]) / iterations)
                rounds[name]["phase"].append(seconds["step"] / iterations)
                rounds[name]["generation"].append(generation / iterations)
                rounds[name]["generated"].append(generation / iterations)
                rounds[name]["whole"].append((generation + seconds["step"]) / iterations)
                if torch.cuda.is_available():
                    rounds[name]["peak"].append(torch.cuda.max_memory_allocated() / 2**30)
    result = {}
    for name, values in rounds.items():
        result[name] = {key: statistics.median(values[key]) for key in ("generation", "scoring", "update")}
        result[name] |= {key: values[key] for key in ROUNDS.values()}
        if "peak" in values:
            result[name]["peak"] = max(values["peak"])
    return result


def peak_memory(name: str, args: argparse.Namespace, setting: tuple) -> float:
    """GiB by which one arm's training raises its process's peak of resident memory; for a process of its own."""
    _, batches, iterations, checkpoint, generate = setting
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer(name, ARMS[name], args, batches, iterations, checkpoint, folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if generate:
            generation_seconds(trainer, batches, 0)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def memory(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """By setting and arm the peak memory, each arm in a process of its own."""
    results = {}
    for title, *setting in settings(args):
        results[title] = {}
        for name in track(list(setting[0]), description=title):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=claim) as pool:
                results[title][name] = pool.submit(peak_memory, name, args, ({}, *setting[1:])).result()
    return results


def ratio(
    result: dict[str, dict], name: str, baseline: str = BASELINE, rounds: str = "phase"
) -> tuple[float, float, float]:
    """
    How many times as fast as the baseline an arm is in what `ROUNDS` names: median, least and greatest over paired
    rounds.
    """
    pairs = [theirs / mine for mine, theirs in zip(result[name][rounds], result[baseline][rounds], strict=True)]
    return statistics.median(pairs), min(pairs), max(pairs)


def generates(result: dict[str, dict]) -> bool:
    """Whether generation was timed."""
    return all(values["generation"] > 0 for values in result.values())


def show(console: Console, title: str, result: dict[str, dict]) -> None:
    """Two tables: seconds of a step, and how many times as fast as the baseline an arm is."""
    peaks = any("peak" in values for values in result.values())
    seconds = Table("arm", *(f"{name}, s" for name in ("generation", "scoring", "update", "whole step")), title=title)
    if peaks:
        seconds.add_column("peak GiB")
    timed = {title: rounds for title, rounds in ROUNDS.items() if rounds == "phase" or generates(result)}
    ratios = Table("arm", *(f"{name} ×" for name in timed), title=f"times as fast as {BASELINE}, [least, greatest]")
    for name, values in result.items():
        cells = [*(values[key] for key in ("generation", "scoring", "update")), statistics.median(values["whole"])]
        peak = [f"{values['peak']:.2f}"] if peaks else []
        seconds.add_row(name, *(f"{cell:.3f}" for cell in cells), *peak)
        shown = (ratio(result, name, rounds=rounds) for rounds in timed.values())
        ratios.add_row(name, *(f"{median:.2f} [{least:.2f}, {most:.2f}]" for median, least, most in shown))
    console.print(seconds)
    console.print(ratios)


def draw(results: dict[str, dict[str, dict]], path: Path) -> None:
    """One panel a setting: bars of generation, scoring and update, and the ratio of the whole to TRL's."""
    figure = Figure(figsize=(5.2 * min(3, len(results)), 3.4 * ((len(results) + 2) // 3)), layout="constrained")
    axes = figure.subplots((len(results) + 2) // 3, min(3, len(results)), squeeze=False).flatten()
    for panel, (title, result) in zip(axes, results.items(), strict=False):
        names = list(result)[::-1]
        left = [0.0] * len(names)
        for stage, colour in COLOURS.items():
            widths = [result[name][stage] for name in names]
            panel.barh(names, widths, left=left, color=colour, label=stage)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for place, name in enumerate(names):
            panel.text(left[place], place, f" {ratio(result, name, rounds='whole')[0]:.2f}×", va="center", fontsize=8)
        panel.set_title(title, fontsize=9)
        panel.set_xlim(0, 1.18 * max(left))
        panel.set_xlabel("seconds an optimizer step; ×: against TRL's", fontsize=8)
        panel.tick_params(labelsize=8)
    for panel in axes[len(results) :]:
        panel.set_visible(False)
    axes[0].legend(fontsize=8, loc="lower right")
    figure.supxlabel("B optimises another objective than A.", fontsize=8, style="italic")
    figure.savefig(path, dpi=110)


def draw_growth(results: dict[str, dict[str, dict]], path: Path) -> None:
    """
    A step's seconds over the completions' length at G=8, and over G at 256 tokens, on logarithmic axes; without
    generation if that was not timed.
    """
    sizes = {
        tuple(map(int, re.findall(r"(\d+) tokens.*G=(\d+)", title)[0])): result for title, result in results.items()
    }
    panels = (
        ("tokens of a completion, G=8", {length: size for (length, group), size in sizes.items() if group == 8}),
        ("completions of a prompt, G, of 256 tokens", {group: size for (n, group), size in sizes.items() if n == 256}),
    )
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for panel, (label, by_size) in zip(figure.subplots(1, 2), panels, strict=True):
        for name, style in GROWTH_STYLES.items():
            points = sorted((size, statistics.median(result[name]["whole"])) for size, result in by_size.items())
            if points:
                panel.plot(*zip(*points, strict=True), label=name, **style)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel(label)
        panel.set_ylabel("seconds a step" if all(map(generates, results.values())) else "update phase, seconds a step")
        panel.grid(alpha=0.3)
    panel.legend()
    figure.supxlabel("B optimises another objective than A.", fontsize=8, style="italic")
    figure.savefig(path, dpi=110)


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
        choices=[name for name in ARMS if name != BASELINE],
        default=None,
        metavar="ARM",
        help=f"compared with {BASELINE}: everything, and in growth A and B packed",
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="small", metavar="SHAPE", help=", ".join(SHAPES))
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
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", metavar="CLOCK", help="wall, or cpu on a busy machine"
    )
    parser.add_argument("--threads", type=int, metavar="N", default=1, help="of a CPU; several count their waiting")
    parser.add_argument("--dtype", default=None, help="float32, bfloat16; by default the latter on a GPU")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/step_cost"), metavar="DIR", help="of results.json and the chart"
    )
    args = parser.parse_args(argv)
    args.dtype = getattr(torch, args.dtype or ("bfloat16" if args.device == "cuda" else "float32"))
    if args.micro_batch > args.prompts * args.num_generations:
        parser.error(f"--micro_batch {args.micro_batch} exceeds --prompts {args.prompts} x --num_generations.")
    return args


def settings(args: argparse.Namespace):
    """
    Title, arms, batches, inner passes, gradient checkpointing and whether to generate, of every setting asked for.
    """
    checkpointing = {"off": [False], "on": [True], "both": [False, True]}[args.checkpointing]
    arms = {name: arm for name, arm in ARMS.items() if name == BASELINE or args.arms is None or name in args.arms}
    if args.mode == "growth":
        arms = {name: arm for name, arm in arms.items() if name in GROWTH_STYLES}
        sizes = [(length, 8) for length in args.lengths] + [(256, group) for group in args.groups if group != 8]
        for length, group in sizes:
            args.num_generations = args.micro_batch = group
            if args.spread:
                counts = json.loads(LENGTHS.read_text())["answer"]
                mean = sum(number * count for number, count in enumerate(counts)) / sum(counts)
                title, batches = f"{length} tokens on average, G={group}", Batches(args, length / mean)
            else:
                title, batches = f"every completion of {length} tokens, G={group}", Batches(args, 1.0, fixed=length)
            yield title, arms, batches, 2, checkpointing[0], not args.no_generation
        return
    for iterations, scale, checkpoint in itertools.product(args.iterations, args.scale, checkpointing):
        chosen = OVERHEAD_ARMS if args.mode == "overhead" else arms
        if iterations == 1:  # where B's penalty could do nothing, and is refused
            chosen = {name: arm for name, arm in chosen.items() if not name.startswith("B")}
        title = f"μ={iterations}, {scale:g}× gold answers" + (", gradient checkpointing" if checkpoint else "")
        yield (
            title,
            chosen,
            Batches(args, scale),
            iterations,
            checkpoint,
            not args.no_generation and args.mode != "overhead",
        )


@functools.partial(command, kept=NOTHING_CHANGED)
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    console = Console()
    if args.mode == "memory":
        for title, peaks in memory(args).items():
            table = Table("arm", "peak GiB", "of TRL's", title=title)
            for name, peak in peaks.items():
                table.add_row(name, f"{peak:.2f}", f"{peak / peaks[BASELINE]:.2f}")
            console.print(table)
        return
    results = {}
    for title, *setting in track(
        list(settings(args)) if args.mode != "growth" else settings(args), description=args.mode
    ):
        arms, batches, iterations, checkpoint, generate = setting
        results[title] = measure(arms, args, batches, iterations, checkpoint, generate)
        show(console, title, results[title])
    args.out.mkdir(parents=True, exist_ok=True)
    settings_used = {
        name: str(value) if not isinstance(value, (int, list, str)) else value for name, value in vars(args).items()
    }
    settings_used["hardware"] = (
        torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    )
    (args.out / f"{args.mode}.json").write_text(
        json.dumps({"settings": settings_used, "results": results}, indent=1) + "\n"
    )
    (draw_growth if args.mode == "growth" else draw)(results, args.out / f"{args.mode}.png")
    console.print(f"{args.out / f'{args.mode}.json'} and {args.mode}.png; a ratio above 1 is faster than {BASELINE}.")


if __name__ == "__main__":
    sys.exit(main())
