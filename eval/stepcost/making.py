"""A trainer of an arm, fed with batches that were drawn beforehand."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import torch
from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from trl_prorl import ProRLConfig, ProRLTrainer
from trl_prorl.embedded.making import byte_tokenizer
from trl_prorl.eval.stepcost.batches import Batches
from trl_prorl.eval.stepcost.shapes import new_model
from trl_prorl.eval.stepcost.stopwatch import Stopwatch


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Without what a run says of itself: a benchmark trains in one folder again and again, too briefly for a reset."""
    logger = logging.getLogger("trl_prorl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def make_trainer(
    name: str, arm, args, batches: Batches, iterations: int, checkpointing: bool, folder: str
) -> GRPOTrainer:
    """
    A trainer of an arm, whose rollouts are those of `batches` and whose rewards differ within every group. The arm's
    keys win over those that all arms share.
    """
    place, keys = arm
    cls = resolve_name(place) if isinstance(place, str) else place
    dtype = getattr(torch, keys["dtype"]) if "dtype" in keys else None
    keys = {key: value for key, value in keys.items() if key != "dtype"}
    count = {"generations": 0}

    def rollout(prompts, trainer):
        ids, completions = batches.draw(count["generations"])
        count["generations"] += 1
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
        "bf16": args.dtype is torch.bfloat16,
        "use_cpu": args.device == "cpu",
        "gradient_checkpointing": checkpointing,
        "save_strategy": "no",
        "logging_steps": 10_000,
        "report_to": "none",
        "disable_tqdm": True,
    }
    config = (ProRLConfig if issubclass(cls, ProRLTrainer) else GRPOConfig)(**(shared | keys))
    # A full model is its own reference's source, so it needs a path; LoRA's reference is the base.
    lora = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear") if args.rank else None
    rows = Dataset.from_dict({"prompt": ["x"] * args.prompts})
    tokenizer = byte_tokenizer()
    with tempfile.TemporaryDirectory() as model_folder:
        model = new_model(args, tokenizer, dtype)
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
