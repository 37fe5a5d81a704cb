"""
Train a recipe. Every `recipes/grpo_*.py` runs this, and so does

    python -m trl_prorl.train --config RECIPE.yaml [--KEY VALUE ...]
"""

if __name__ == "__main__":  # first, so that help and errors come before the slow imports
    from trl_prorl.cli.command_line import main

    raise SystemExit(main())

import math
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext

from transformers.utils.logging import disable_progress_bar
from trl import ModelConfig, get_peft_config, get_quantization_config

from .cli.command_line import main  # noqa: F401  scripts import it from here
from .cli.ending import INTERRUPTED, Ended, as_bad_input, describe_saved_state, print_interrupted
from .cli.model_name import find_model
from .cli.recipe import TaskArguments, parse_recipe, task_reward  # noqa: F401  likewise
from .config import ProRLConfig
from .errors import InputError, RunError
from .extras.thinking import make_rollout
from .keys import AUTO_RESUME
from .run.folder import FinishedError, RunFolder, on_main_process
from .run.identity import changing_keys, find_start
from .tasks.base import check_dataset
from .text import visible
from .trainer import ProRLTrainer
from .upstream.vocabulary import load_tokenizer


def build(
    task_args: TaskArguments,
    args: ProRLConfig,
    model_args: ModelConfig,
    trainer_class: Callable[..., ProRLTrainer] = ProRLTrainer,
) -> tuple[ProRLTrainer, str | bool | None]:
    """
    Make the trainer of a recipe.

    Args:
        task_args ([`TaskArguments`]), args ([`ProRLConfig`]), model_args ([`~trl.ModelConfig`]): The recipe.
        trainer_class (`Callable`, *optional*): [`ProRLTrainer`], or your subclass of it.

    Returns:
        The trainer, and the checkpoint to resume from, as an argument of `Trainer.train`.

    Raises:
        `ValueError`: The recipe is not supported. No model was loaded.
    """
    if args.disable_tqdm:
        disable_progress_bar()  # of loading weights, too
    task = task_args.make_task()
    train_dataset = rows_of(task, "train", "train_rows", task_args)
    batch_prompts = args.generation_batch_size // args.num_generations
    if task_args.reward and len(train_dataset) < batch_prompts:  # else TRL trains no step
        train_dataset = train_dataset.repeat(math.ceil(batch_prompts / len(train_dataset)))
    eval_dataset = None
    if args.eval_strategy != "no":
        eval_dataset = rows_of(task, "validation", "eval_rows", task_args)
    init = {"revision": model_args.model_revision, "dtype": model_args.dtype}
    if model_args.attn_implementation:
        init["attn_implementation"] = model_args.attn_implementation
    args.model_init_kwargs = init | (args.model_init_kwargs or {})
    on_main_process(args.process_index == 0, lambda: check_start(args, (task_args, model_args)))
    model = find_model(model_args.model_name_or_path, init=args.model_init_kwargs)
    place = {"revision": args.model_init_kwargs["revision"], "trust_remote_code": args.trust_remote_code}
    tokenizer = load_tokenizer(model, padding_side="left", truncation_side="left", **place)

    trainer = trainer_class(
        model=model,
        reward_funcs=task_args.make_rewards(task, args.max_completion_length),
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
        rollout_func=make_rollout(task_args, args, tokenizer),
        verify=task.verifier if task_args.reward else None,
    )
    trainer.recipe = (task_args, model_args)
    return trainer, args.resume_from_checkpoint


def rows_of(task, split: str, key: str, task_args: TaskArguments):
    """Return the rows of a split. Errors about their number name its `key`."""
    try:
        return check_dataset(task, task.rows(split, getattr(task_args, key), seed=task_args.task_seed))
    except ValueError as error:
        raise ValueError(re.sub("^n=", f"{key}=", str(error))) from error


def train(trainer: ProRLTrainer, resume: str | bool | None) -> None:
    """Run the trainer of [`build`], and save the model."""
    with trainer.hold_folder():
        trainer.train(resume_from_checkpoint=resume)
        if trainer.args.push_to_hub:
            trainer.push_to_hub()  # saves, too
        else:
            trainer.save_model()
    trainer.terminal.say_next()


def check_start(args: ProRLConfig, recipe: tuple) -> None:
    """As [`check_folder`], and no other run uses the folder."""
    folder = RunFolder(args.output_dir)
    with folder.held() if folder.path.is_dir() else nullcontext():  # a check makes no folder
        check_folder(args, recipe)


def check_folder(args: ProRLConfig, recipe: tuple) -> None:
    """
    Raise `ValueError` if a new run cannot use the folder, or a resume would not continue the same run. Nothing is
    written, and no weights are read.
    """
    folder = RunFolder(args.output_dir)
    resume_from = args.resume_from_checkpoint
    identity = changing_keys(args, *recipe)
    checkpoint, _ = find_start(folder, resume_from, identity, args.allow_config_change, content=False)
    base = next((part.model_name_or_path for part in recipe if hasattr(part, "model_name_or_path")), None)
    folder.check_room(checkpoint, args.overwrite or resume_from == AUTO_RESUME, base)


def run(
    task_args: TaskArguments,
    args: ProRLConfig,
    model_args: ModelConfig,
    trainer_class: Callable[..., ProRLTrainer] = ProRLTrainer,
) -> None:
    """
    Build, train and save a recipe. Ctrl-C prints one line about the saved state.

    Raises:
        [`InputError`]: No step was started: the recipe, a file or a package is wrong. [`RunError`]: The run had to
        stop. Unexpected errors are raised unchanged.
    """
    trainer = None
    try:
        trainer, resume = build(task_args, args, model_args, trainer_class)
        train(trainer, resume)
    except KeyboardInterrupt:
        same = f"the same command and --resume_from_checkpoint {AUTO_RESUME}"
        has_started = trainer is not None and trainer.has_started
        kept = describe_saved_state(args.output_dir, has_started, same)
        if args.process_index == 0:
            print_interrupted(kept)
        raise Ended(INTERRUPTED) from None
    except FinishedError as error:
        if args.resume_from_checkpoint != AUTO_RESUME:
            raise InputError(str(error)) from error
        if args.process_index == 0:
            print(f"nothing to do: {visible(str(error))}", file=sys.stderr)
        return
    except (RunError, BrokenPipeError):
        raise
    except Exception as error:
        if trainer is None or not trainer.has_started:
            with as_bad_input():
                raise
        if isinstance(error, InputError | OSError):
            raise RunError(str(error)) from error
        raise  # a bug: keep the traceback
    trainer.accelerator.end_training()  # several processes disconnect cleanly
