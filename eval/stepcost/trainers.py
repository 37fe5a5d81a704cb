"""What is timed: a TRL or trl-prorl trainer on prepared batches, its generation, and the floor of a step."""

import contextlib
import io
import itertools
import logging
import math
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import LogitsProcessor, LogitsProcessorList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.embedded.shipped import byte_tokenizer
from trl_prorl.eval.stepcost.settings import ARMS, BASELINE, DEFAULT, FLOOR, Batches, new_model
from trl_prorl.fast.compact import cache_among, repeat_rows
from trl_prorl.fast.head import add_frozen_head
from trl_prorl.fast.packing import packed_logps
from trl_prorl.fast.prefix import accept_prefixes
from trl_prorl.launch.prompts import find_distinct, pad_left


FIRST = 8  # first token id that identifies a completion; lower ids are special tokens
TOKENS = 16  # whose forwards the floor times


class Stopwatch(TrainerCallback):
    """
    Measure the seconds of a trainer's steps, of its work around generation (which this benchmark's rollouts skip), and
    the peak GPU memory.
    """

    def __init__(self, device: torch.device, clock: str):
        self.device = device
        self.seconds = defaultdict(float)
        self.began = None
        self.clock = time.process_time if clock == "cpu" else time.perf_counter
        self.held = 0.0
        self._peak = 0

    def begin(self) -> None:
        """Reset all measurements; `held` becomes the GPU memory that is already allocated, in GiB."""
        self.seconds.clear()
        self._peak = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.held = torch.cuda.memory_allocated(self.device) / 2**30

    def peak(self) -> float | None:
        """Return the peak memory in GiB since [`~Stopwatch.begin`]; `None` without a GPU."""
        if self.device.type != "cuda":
            return None
        self._peak = max(self._peak, torch.cuda.max_memory_allocated(self.device))
        return self._peak / 2**30

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()

    def on_step_begin(self, args, state, control, **kwargs):
        self.began = self.now()

    def time_end_of_step(self, function):
        """Wrap a function whose return ends a step. A call at the end of an epoch belongs to no step."""

        def timed(*args, **kwargs):
            self.peak()  # note it before our trainer logs it and resets the device's counter
            result = function(*args, **kwargs)
            if self.began is not None:
                self.seconds["step"] += self.now() - self.began
                self.began = None
            return result

        return timed

    def time_call(self, name: str, function):
        def timed(*args, **kwargs):
            began = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += self.now() - began

        return timed


@contextlib.contextmanager
def silence_training() -> Iterator[None]:
    """Hide output and warnings: a benchmark trains repeatedly in one folder, and too briefly for a reset."""
    logger = logging.getLogger("trl_prorl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def mixed_precision(dtype: torch.dtype) -> dict[str, bool]:
    """Return the trainer keys for matrix products in a dtype."""
    return {"bf16": dtype is torch.bfloat16, "fp16": dtype is torch.float16}


def make_trainer(name: str, args, batches: Batches, iterations: int, folder: str) -> "GRPOTrainer | Floor":
    """
    Create the trainer of a variant, with rollouts from `batches` and rewards that differ within every group. Keys of
    the variant override the shared ones. The floor is not a trainer; it trains and generates in its own way.
    """
    if name == FLOOR:
        return Floor(args, batches, iterations)
    trainer_class = GRPOTrainer if name in (BASELINE, DEFAULT) else ProRLTrainer
    config_class = GRPOConfig if name in (BASELINE, DEFAULT) else ProRLConfig
    numbers = itertools.count()  # of generation batches

    def rollout(prompts, trainer):
        ids, completions = batches.draw(next(numbers))
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": [[0.0] * len(c) for c in completions]}

    def reward(completion_ids, **columns):
        return [float(sum(ids) % 7) + row % 2 for row, ids in enumerate(completion_ids)]

    shared = {
        "output_dir": str(Path(folder, name.replace(" ", "_"))),
        "per_device_train_batch_size": args.micro_batch,
        "gradient_accumulation_steps": args.prompts * args.num_generations // args.micro_batch,
        "num_generations": args.num_generations,
        "num_iterations": iterations,
        "max_steps": iterations,
        "max_completion_length": args.longest,
        "learning_rate": 1e-6,
        **mixed_precision(args.dtype),
        "use_cpu": args.device == "cpu",
        "gradient_checkpointing": args.checkpointing == "on",
        "save_strategy": "no",
        "logging_steps": 10_000,
        "report_to": "none",
        "disable_tqdm": True,
    }
    # In full fine-tuning TRL loads the reference from the model's path. With LoRA the reference is the base model.
    lora = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear") if args.rank else None
    rows = Dataset.from_dict({"prompt": ["x"] * args.prompts})
    tokenizer = byte_tokenizer()
    with tempfile.TemporaryDirectory() as model_folder:
        model = new_model(args, tokenizer)
        if lora is None:
            model.save_pretrained(model_folder)
            model.config._name_or_path = model_folder
        trainer = trainer_class(
            model=model,
            reward_funcs=reward,
            args=config_class(**(shared | ARMS[name])),
            train_dataset=rows,
            processing_class=tokenizer,
            peft_config=lora,
            rollout_func=rollout,
        )
    watch = Stopwatch(trainer.accelerator.device, args.clock)
    trainer.add_callback(watch)
    trainer.watch = watch
    trainer.generation_seconds = partial(generation_seconds, trainer)
    # Called after on_step_end; it writes the row of the log file.
    trainer._maybe_log_save_evaluate = watch.time_end_of_step(trainer._maybe_log_save_evaluate)
    trainer._generate_and_score_completions = watch.time_call("scoring", trainer._generate_and_score_completions)
    return trainer


class ForcedEnds(LogitsProcessor):
    """
    End every completion at its given length. The first token is forced too, and identifies the completion, because
    finished rows are dropped on the way.
    """

    def __init__(self, lengths: list[int], width: int, end: int, device: torch.device):
        self.lengths = torch.tensor(lengths, device=device)
        self.width = width
        self.end = end

    def __call__(self, input_ids, scores):
        done = input_ids.shape[1] - self.width
        rows = torch.arange(len(input_ids), device=scores.device)
        if done == 0:
            scores = torch.full_like(scores, -math.inf)
            scores[rows, FIRST + rows] = 0.0
            return scores
        # transformers keeps computing finished rows; these get the end token again.
        last = self.lengths[input_ids[:, self.width] - FIRST] <= done + 1
        scores[:, self.end] = -math.inf
        scores[last] = -math.inf
        scores[last, self.end] = 0.0
        return scores


def sample_batch(trainer: GRPOTrainer, prompts: list[list[int]]) -> tuple[float, list[list[int]]]:
    """Sample a completion per prompt with the trainer's own method. Return the seconds and the completions."""
    began = trainer.watch.now()
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        made, _ = trainer._generate_single_turn(prompts, None, {}, trainer.num_generations)
    seconds = trainer.watch.now() - began
    if getattr(trainer, "compact", None) is not None:
        trainer.compact.measures = False  # other batches are trained on, so the copy's error cannot be measured
    return seconds, made


def generation_seconds(trainer: GRPOTrainer, batches: Batches, number: int) -> float:
    """
    Time the generation of one batch with the trainer's own method, at the completion lengths of the batch.

    Raises:
        `RuntimeError`: if the completions have other lengths.
    """
    prompts, completions = batches.draw(number)
    lengths = [max(2, len(ids)) for ids in completions]
    policy = trainer.accelerator.unwrap_model(trainer.model)
    models = [policy.get_base_model() if isinstance(policy, PeftModel) else policy]
    compact = getattr(trainer, "compact", None)
    if compact is not None and compact.copy is not None:
        models.append(compact.copy.model)
    end = trainer.processing_class.eos_token_id
    ends = ForcedEnds(lengths, max(map(len, prompts)), end, trainer.accelerator.device)
    for model in models:
        model.generate = partial(type(model).generate, model, logits_processor=LogitsProcessorList([ends]))
    try:
        seconds, made = sample_batch(trainer, prompts)
    finally:
        for model in models:
            del model.generate
    if [len(ids) for ids in made] != lengths:
        raise RuntimeError("the completions do not have the lengths of the batch")
    return seconds


class Floor:
    """
    A lower bound without a trainer: the bare model, without adapters, in the dtype of the frozen weights. Its update
    is a forward and a backward pass over the packed tokens. Its generation is a forward pass over each prompt, and one
    over the unfinished rows for each token; the latter is timed for one row and for all rows, and interpolated.
    """

    def __init__(self, args, batches: Batches, iterations: int):
        self.args = args
        self.batches = batches
        self.iterations = iterations
        self.generations = 0
        self.model = new_model(args, byte_tokenizer()).requires_grad_(False)
        add_fused_lm_head(self.model, outputs=("log_probs", "entropy"))
        add_frozen_head(self.model, 1.0)
        accept_prefixes(self.model)
        self.model.get_input_embeddings().register_forward_hook(lambda module, given, states: states.requires_grad_())
        self.watch = Stopwatch(torch.device(args.device), args.clock)

    def generation_seconds(self, batches: Batches, number: int) -> float:
        """Return a lower bound on the seconds for generating one batch."""
        prompts, completions = batches.draw(number)
        distinct, copies = find_distinct(prompts)
        of_prompts, of_all = self._forward_seconds(distinct, copies)
        _, of_one = self._forward_seconds(distinct[:1], copies[:1])
        of_another = (of_all - of_one) / (len(prompts) - 1)
        lengths = [len(ids) for ids in completions]
        unfinished = [sum(length > token for length in lengths) for token in range(1, max(lengths))]
        return of_prompts + sum(of_one + of_another * (rows - 1) for rows in unfinished)

    @torch.no_grad()
    def _forward_seconds(self, prompts: list[list[int]], copies: list[int]) -> tuple[float, float]:
        """Time the forward of prompts, and the forward of one more token of each of their copies."""
        device = self.args.device
        ids, mask = pad_left(prompts, 0)
        began = self.watch.now()
        outputs = self.model(ids.to(device), attention_mask=mask.to(device), use_cache=True)
        of_prompts = self.watch.now() - began
        cache = cache_among(outputs)
        name = "cache" if "cache" in outputs else "past_key_values"
        repeat_rows(cache, torch.tensor(copies, device=device), ids.shape[1] + TOKENS)
        token = torch.full((len(copies), 1), FIRST, device=device)
        seconds = []
        for _ in range(TOKENS):
            began = self.watch.now()
            self.model(token, use_cache=True, **{name: cache})
            seconds.append(self.watch.now() - began)
        return of_prompts, statistics.median(seconds)

    def train(self) -> None:
        """Run the updates of one generation batch."""
        args = self.args
        prompts, completions = self.batches.draw(self.generations)
        self.generations += 1
        began = self.watch.now()
        for _ in range(self.iterations):
            for first in range(0, len(prompts), args.micro_batch):
                rows = slice(first, first + args.micro_batch)
                prompt_ids, prompt_mask = pad_left(prompts[rows], 0)
                # Reversed, padded on the left, and reversed again: padded on the right.
                reversed_ids, reversed_mask = pad_left([ids[::-1] for ids in completions[rows]], 0)
                ids = torch.cat([prompt_ids, reversed_ids.flip(1)], dim=1).to(args.device)
                mask = torch.cat([prompt_mask, reversed_mask.flip(1)], dim=1).to(args.device)
                logps = packed_logps(self.model, ids, mask, reversed_ids.shape[1])[0]
                logps.sum().backward()
        self.watch.seconds["step"] = self.watch.now() - began
