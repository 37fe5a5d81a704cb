"""
pass@k of a run, base against trained, on the same held-out prompts of its task.

    python -m eval.passk --run runs/demo/A --run runs/demo/B --prompts 128 --n 16 --k 1 4 8

Writes `passk.json` into each run folder. Base is the policy as the run began; it is evaluated once for runs that share
model, task and settings.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from rich.console import Console
from rich.table import Table
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

import tasks
from eval.runs import InputError, load_config
from eval.statistics import bootstrap_interval, paired_bootstrap_difference, pass_at_k_per_prompt


# TRL's own defaults, for the keys a recipe leaves out.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_MAX_COMPLETION_LENGTH = 512


def stop_token_ids(model, tokenizer) -> list[int]:
    """Every token that ends a completion: the tokenizer's and those the model declares, as in TRL's rollouts."""
    declared = model.generation_config.eos_token_id
    declared = declared if isinstance(declared, list) else [declared]
    return [token for token in dict.fromkeys([tokenizer.eos_token_id, *declared]) if token is not None]


@torch.no_grad()
def sample_correct(
    model,
    tokenizer,
    task,
    rows,
    n: int,
    *,
    temperature: float = DEFAULT_TEMPERATURE,
    max_new_tokens: int = DEFAULT_MAX_COMPLETION_LENGTH,
    batch_size: int = 512,
    chat_template_kwargs: dict | None = None,
    description: str = "sampling",
) -> list[list[bool]]:
    """
    Sample `n` completions for each prompt and verify them.

    The full softmax at `temperature` is sampled: the top-k, top-p and repetition penalty that a model's own
    generation config may ask for are switched off. Samples depend on torch's global seed and on the batch size.

    Args:
        model (`PreTrainedModel` or `PeftModel`): A causal language model.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer, with a chat template and a padding token.
        task ([`~tasks.Task`]): Its `verify_many(completions, rows)` judges the samples of a prompt.
        rows (`datasets.Dataset`): P rows with a `prompt` column of chat messages, and what `task.verify` needs.
        n (`int`): Samples per prompt.
        temperature (`float`, *optional*, defaults to `1.0`): Sampling temperature; 0 decodes greedily.
        max_new_tokens (`int`, *optional*, defaults to `512`): Tokens after which a completion is cut.
        batch_size (`int`, *optional*, defaults to `512`): Sequences per `generate` call, rounded down to whole prompts
            (at least one prompt, that is `n` sequences).
        chat_template_kwargs (`dict`, *optional*): Further arguments of the chat template.
        description (`str`, *optional*): Label of the progress bar.

    Returns:
        `list[list[bool]]`: Shape (P, n): is the sample correct?
    """
    model.eval()
    device = next(model.parameters()).device
    sampling = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    prompts_per_call = max(1, batch_size // n)
    correct = []
    with tqdm(total=len(rows), desc=description, unit="prompt", disable=None) as progress:
        for start in range(0, len(rows), prompts_per_call):
            batch = [rows[i] for i in range(start, min(start + prompts_per_call, len(rows)))]
            texts = [
                tokenizer.apply_chat_template(
                    row["prompt"], tokenize=False, add_generation_prompt=True, **(chat_template_kwargs or {})
                )
                for row in batch
            ]
            inputs = tokenizer(
                texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
            ).to(device)
            sequences = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                num_return_sequences=n,
                max_new_tokens=max_new_tokens,
                repetition_penalty=1.0,
                eos_token_id=stop_token_ids(model, tokenizer),
                pad_token_id=tokenizer.pad_token_id,
                **sampling,
            )
            completions = tokenizer.batch_decode(
                sequences[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
            )
            for position, row in enumerate(batch):
                samples = completions[position * n : (position + 1) * n]
                correct.append(list(map(bool, task.verify_many(samples, [row] * len(samples)))))
            progress.update(len(batch))
    return correct


def summarise(correct: list[list[bool]], ks: list[int]) -> dict:
    """
    pass@k with its 95 % bootstrap interval over prompts, and the counts behind it.

    Args:
        correct (`list[list[bool]]`): Shape (P, n), P >= 2.
        ks (`list[int]`): Sizes of the draw, each from 1 to n.

    Returns:
        `dict`: `{"pass@<k>": mean, "interval@<k>": [low, high], ..., "correct": correct samples per prompt}`.
    """
    counts = [sum(samples) for samples in correct]
    summary = {}
    for k in ks:
        per_prompt = pass_at_k_per_prompt(counts, n=len(correct[0]), k=k)
        summary[f"pass@{k}"] = float(np.mean(per_prompt))
        summary[f"interval@{k}"] = list(bootstrap_interval(per_prompt))
    return {**summary, "correct": counts}


def find_trained_model(run_dir: Path) -> str:
    """
    What the run left behind: `"adapter"` (PEFT) or `"full"`.

    Raises:
        InputError: If the folder holds neither.
    """
    if (run_dir / "adapter_config.json").is_file():
        return "adapter"
    if (run_dir / "config.json").is_file():
        return "full"
    raise InputError(
        f"run folder '{run_dir}' has no trained model (no adapter_config.json, no config.json); "
        "let the run finish, or copy a checkpoint's files there"
    )


def load_model(path, revision: str | None = None):
    """A causal language model, on the GPU in bfloat16 if there is one, else on the CPU in float32."""
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    return AutoModelForCausalLM.from_pretrained(path, revision=revision or "main", dtype=dtype).to(device)


def load_base_model(config: dict):
    """The model a run started from."""
    return load_model(config["model_name_or_path"], config.get("model_revision"))


def load_trained_model(run_dir: Path, config: dict):
    """The model at the top level of a run folder: a PEFT adapter on the base model, or a full model."""
    if find_trained_model(run_dir) == "adapter":
        return PeftModel.from_pretrained(load_base_model(config), run_dir)
    return load_model(run_dir)


def load_tokenizer(run_dir: Path):
    """The run's tokenizer; where it has no padding token, the end-of-sequence token pads."""
    tokenizer = AutoTokenizer.from_pretrained(run_dir)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_task(config: dict):
    """
    The task a run was trained on.

    Raises:
        InputError: If there is no such task, or it does not take the level or the options.
    """
    keys = {"level": "task_level", "options": "task_options", "path": "dataset_name"}
    given = {name: config.get(key) for name, key in keys.items()}
    try:
        return tasks.task_of_recipe(config["task"], **given)
    except (KeyError, TypeError, ValueError) as error:
        message = " ".join(str(error).split())
        raise InputError(f"task '{config['task']}' with {given}: {message}; correct config.yaml") from error


def write_json(path: Path, content: dict) -> None:
    """Write aside, then replace: a reader never sees half a file."""
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(json.dumps(content) + "\n")
    os.replace(aside, path)


def result_table(run_dir: Path, result: dict) -> Table:
    """Base against trained, a row per k, with 95 % bootstrap intervals over prompts."""
    counts = [result[side]["correct"] for side in ("trained", "base")]
    table = Table(
        title=f"pass@k of {run_dir}: {result['task']}, {result['split']} split, {result['prompts']} prompts, "
        f"n = {result['n']}, temperature {result['temperature']:g}"
    )
    for column in ("k", "base", "trained", "gain"):
        table.add_column(column, justify="right")
    for k in result["k"]:
        cells = [str(k)]
        for side in ("base", "trained"):
            low, high = result[side][f"interval@{k}"]
            cells.append(f"{result[side][f'pass@{k}']:.3f} [{low:.3f}, {high:.3f}]")
        gain = paired_bootstrap_difference(*(pass_at_k_per_prompt(count, result["n"], k) for count in counts))
        table.add_row(*cells, f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]")
    return table


def check_settings(args) -> None:
    """
    Refuse settings that cannot be measured, before anything is loaded.

    Raises:
        InputError: Naming the option, its value and the cure.
    """
    if args.n < 1:
        raise InputError(f"--n {args.n}: at least 1 sample per prompt is needed")
    if args.greedy and args.n > 1:
        raise InputError(f"--n {args.n} with --greedy: all samples of a prompt would be the same; leave out --n")
    if args.prompts < 2:
        raise InputError(f"--prompts {args.prompts}: an interval needs at least 2 prompts")
    for k in args.k:
        if not 1 <= k <= args.n:
            raise InputError(f"--k {k} must lie between 1 and --n {args.n}; draw more samples or lower k")
    if args.temperature is not None and args.temperature <= 0:
        raise InputError(f"--temperature {args.temperature:g} must be above 0; use --greedy for greedy decoding")
    if args.batch_size < 1:
        raise InputError(f"--batch-size {args.batch_size} must be at least 1")


def check_run(run_dir: Path) -> dict:
    """The configuration of a run that can be evaluated, or an [`InputError`]."""
    config = load_config(run_dir)
    for key in ("model_name_or_path", "task"):
        if not config.get(key):
            raise InputError(f"'{run_dir / 'config.yaml'}' has no {key}; add the one the run was trained with")
    find_trained_model(run_dir)
    load_task(config)
    return config


def evaluate_run(run_dir: Path, config: dict, args, base_cache: dict) -> dict:
    """
    The content of `passk.json` for one run.

    Args:
        run_dir (`Path`): The run folder.
        config (`dict`): Its configuration.
        args (`argparse.Namespace`): The settings, as [`parse_args`] gives them.
        base_cache (`dict`): What base models scored so far; filled here.
    """
    tokenizer, task = load_tokenizer(run_dir), load_task(config)
    try:
        rows = task.rows(args.split, args.prompts, seed=config.get("task_seed") or 0)
    except ValueError as error:
        raise InputError(f"--split {args.split} --prompts {args.prompts}: {error}") from error
    temperature = args.temperature or config.get("temperature") or DEFAULT_TEMPERATURE
    settings = {
        "temperature": 0.0 if args.greedy else float(temperature),
        "max_new_tokens": config.get("max_completion_length") or DEFAULT_MAX_COMPLETION_LENGTH,
        "chat_template_kwargs": config.get("chat_template_kwargs"),
    }

    def score(load, description):
        model = load()
        set_seed(args.seed)
        return sample_correct(
            model, tokenizer, task, rows, args.n, batch_size=args.batch_size, description=description, **settings
        )

    # The command line is the same for all runs, so the prompts and these settings decide what base scores.
    model_and_task = ("model_name_or_path", "model_revision", "task", "task_level", "task_options", "dataset_name")
    shared = {key: config.get(key) for key in model_and_task}
    key = json.dumps([shared, settings, tokenizer.chat_template, rows["prompt"][:]], sort_keys=True)
    if key not in base_cache:
        base_cache[key] = score(lambda: load_base_model(config), f"{run_dir.name}: base")
    trained = score(lambda: load_trained_model(run_dir, config), f"{run_dir.name}: trained")
    return {
        "split": args.split,
        "prompts": len(rows),
        "n": args.n,
        "k": args.k,
        "temperature": settings["temperature"],
        "seed": args.seed,
        "task": config["task"],
        "level": config.get("task_level"),
        "base": summarise(base_cache[key], args.k),
        "trained": summarise(trained, args.k),
    }


def parse_args(argv=None) -> argparse.Namespace:
    """The command line, with its defaults filled in."""
    parser = argparse.ArgumentParser(prog="python -m eval.passk", description="pass@k of runs, base against trained.")
    parser.add_argument("--run", action="append", required=True, type=Path, help="run folder; may be repeated")
    parser.add_argument("--split", default="test", help="split of the run's task")
    parser.add_argument("--prompts", type=int, default=128, help="number of prompts")
    parser.add_argument("--n", type=int, help="samples per prompt (default 16, greedy 1)")
    parser.add_argument("--k", type=int, nargs="+", help="sizes of the draw (default those of 1 4 8 up to n)")
    parser.add_argument("--temperature", type=float, help="sampling temperature (default: the run's)")
    parser.add_argument("--batch-size", type=int, default=512, help="sequences per generate call")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    parser.add_argument("--greedy", action="store_true", help="decode greedily, one sample per prompt")
    args = parser.parse_args(argv)
    if args.n is None:
        args.n = 1 if args.greedy else 16
    if args.k is None:
        args.k = [k for k in (1, 4, 8) if k <= args.n]
    return args


def main(argv=None) -> int:
    """Entry point; returns the exit code, 2 for bad input."""
    args = parse_args(argv)
    try:
        check_settings(args)
        configs = [check_run(run_dir) for run_dir in args.run]
        base_cache = {}
        for run_dir, config in zip(args.run, configs, strict=True):
            result = evaluate_run(run_dir, config, args, base_cache)
            write_json(run_dir / "passk.json", result)
            Console().print(result_table(run_dir, result))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
