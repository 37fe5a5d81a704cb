"""
Measure time and peak memory of a batch of rollouts: `python -m trl_prorl.eval.gpucheck.rollouts`.

The batch is sampled by TRL's trainer, by ours (compact generation), or by vLLM, each with the same random weights. A
completion ends early only if the model samples the end token, which is rare with random weights and many tokens.
"""

import argparse
import gc
import json
import sys
import tempfile
import time

import torch
from trl import GRPOTrainer

from trl_prorl.embedded.shipped import byte_tokenizer
from trl_prorl.eval.stepcost.settings import DEFAULT, Batches, new_model, parse
from trl_prorl.eval.stepcost.trainers import make_trainer, sample_batch, silence_training


TRL = "TRL"
PLAIN = "plain"
VLLM = "vLLM"
TRAINERS = {TRL: DEFAULT, PLAIN: "plain packed"}  # variants of `step-cost`; a reference has no effect on rollouts


def sample_tokens(trainer: GRPOTrainer, prompts: list[list[int]], tokens: int) -> float:
    """Sample a completion of at most `tokens` tokens per prompt. Return the seconds."""
    trainer.generation_config.max_new_tokens = tokens
    return sample_batch(trainer, prompts)[0]


def measure_trainer(name: str, args: argparse.Namespace) -> dict[str, float]:
    """Measure sampling with TRL's trainer or with ours."""
    batches = Batches(args, length=args.longest)
    with tempfile.TemporaryDirectory() as folder, silence_training():
        trainer = make_trainer(TRAINERS[name], args, batches, 2, folder)
        prompts, _ = batches.draw(0)
        sample_tokens(trainer, prompts, args.longest)  # TRL's attention plans once for each length
        trainer.watch.begin()
        seconds = sample_tokens(trainer, prompts, args.longest)
        peak = trainer.watch.peak()
    del trainer
    gc.collect()  # free the trainer (a reference cycle), so that its memory does not count for the next one
    return found_numbers(name, seconds, args.longest, peak)


def found_numbers(name: str, seconds: float, tokens: int, peak: float | None) -> dict[str, float]:
    """Return the measurements of a sampler by name."""
    numbers = {f"{name}: a token of all rows, ms": 1000 * seconds / tokens}
    numbers[f"{name}: a generation batch, s"] = seconds
    if peak is not None:
        numbers[f"{name}: memory of a generation, GiB"] = peak
    return numbers


def measure_vllm(args: argparse.Namespace) -> dict[str, float]:
    """Measure vLLM with its default settings and 90 % of the memory, which it fills with its cache."""
    from vllm import LLM, SamplingParams

    batches = Batches(args, length=args.longest)
    prompts = [{"prompt_token_ids": ids} for ids in batches.draw(0)[0]]
    tokenizer = byte_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        new_model(args, tokenizer).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        engine = LLM(
            model=folder,
            dtype="bfloat16" if args.dtype is torch.bfloat16 else "float16",
            max_model_len=args.longest + max(len(prompt["prompt_token_ids"]) for prompt in prompts),
            gpu_memory_utilization=0.9,
            skip_tokenizer_init=True,
            seed=0,
        )

        def sample(length: int) -> float:
            settings = SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False)
            began = time.perf_counter()
            engine.generate(prompts, settings, use_tqdm=False)
            return time.perf_counter() - began

        sample(args.longest)
        return found_numbers(VLLM, sample(args.longest), args.longest, None)


def main(argv: list[str] | None = None) -> None:
    """Entry point. Accepts the size options of `step-cost`; `--longest` is the length of every completion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samplers", nargs="+", choices=[*TRAINERS, VLLM], default=list(TRAINERS))
    options, others = parser.parse_known_args(argv)
    args = parse(others)
    numbers = {}
    for name in options.samplers:
        if name == VLLM:
            numbers |= measure_vllm(args)
        else:
            numbers |= measure_trainer(name, args)
        print(json.dumps(numbers))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "measured.json").write_text(json.dumps({"numbers": numbers}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
