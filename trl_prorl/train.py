"""
From a recipe to a trained model: parse, check, build, train, save. What every `recipes/grpo_*.py` runs, and

    python -m trl_prorl.train --config RECIPE.yaml [--KEY VALUE ...]
"""

if __name__ == "__main__":  # first, so that help and complaints come before what takes seconds to import
    from trl_prorl.launch.command_line import main

    raise SystemExit(main())

import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer
from transformers.utils.logging import disable_progress_bar
from trl import ModelConfig, get_peft_config, get_quantization_config

from .checkpoint.files import find_checkpoint, find_newest_checkpoint
from .checkpoint.identity import IDENTITY_FILE, changing_keys, check_change, check_same_run
from .config import ProRLConfig
from .embedded.shipped import DEFAULT, EMBEDDED, full_name, shipped
from .ending import describe_saved_state, end_interrupted, interrupt_as_usual, is_refusal_of_library
from .errors import InputError, RunError
from .launch.checks import check_prompts_fit, check_rows, prompt_lengths
from .launch.command_line import main  # noqa: F401  which scripts import from here
from .launch.model_name import find_model
from .launch.recipe import TaskArguments, parse_recipe, task_reward  # noqa: F401  as above
from .record.folder_lock import LOCK_FILE
from .record.folders import RunFolders
from .record.processes import by_main_process
from .record.run_files import METRICS_FILE, WEIGHTS, check_record, read_json
from .record.run_id import recorded_run_id, saved_run_id
from .rollout.turns import make_environment, prepare_tokenizer
from .tasks.base import check_dataset
from .text import shell_quote
from .trainer import ProRLTrainer


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
        trainer_class (`Callable`, *optional*): What makes the trainer: [`ProRLTrainer`], or a subclass of one's own.

    Returns:
        The trainer, and the checkpoint that it resumes from, as `Trainer.train` takes it.

    Raises:
        `ValueError`: Something in the recipe cannot be done. No model has been loaded.
    """
    if args.disable_tqdm:
        disable_progress_bar()  # the one for loading weights, too
    task = task_args.make_task()
    environment = None
    if task.turns > 1:
        check_turns(task, {**vars(task_args), "max_tool_calling_iterations": args.max_tool_calling_iterations})
        environment = make_environment(task, args.max_completion_length)
    check_base(model_args.model_name_or_path, task_args.task)
    train_dataset = rows_of(task, "train", "train_rows", task_args)
    eval_dataset = None
    if args.eval_strategy != "no":
        eval_dataset = rows_of(task, "validation", "eval_rows", task_args)
    check_rows(train_dataset, args.generation_batch_size, args.num_generations, cure="Raise train_rows")
    init = {"revision": model_args.model_revision, "dtype": model_args.dtype}
    if model_args.attn_implementation:
        init["attn_implementation"] = model_args.attn_implementation
    args.model_init_kwargs = init | (args.model_init_kwargs or {})
    rollout = task_args.make_rollout(args)
    resume = check_folder(args, (task_args, model_args))
    model = find_model(model_args.model_name_or_path, init=args.model_init_kwargs)
    tokenizer = AutoTokenizer.from_pretrained(
        model, revision=model_args.model_revision, padding_side="left", truncation_side="left"
    )
    task_args.check_thinking(tokenizer, args.max_completion_length)
    if environment is not None:
        tokenizer = prepare_tokenizer(tokenizer)

    def tokenize(prompts):
        texts = [tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True) for each in prompts]
        return tokenizer(texts, add_special_tokens=False).input_ids

    check_context(prompt_lengths(train_dataset, tokenize), model, model_args.model_revision, args)
    if args.pack_max_tokens is not None and args.pack_groups == "on":  # with auto, the trainer knows whether it packs
        check_prompts_fit(train_dataset, eval_dataset, tokenize, args)
    trainer = trainer_class(
        model=model,
        reward_funcs=task_args.make_rewards(task, args.max_completion_length),
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
        rollout_func=rollout,
        environment_factory=environment,
    )
    trainer.recipe = (task_args, model_args)
    return trainer, args.resume_from_checkpoint if resume else None


def check_turns(task, given: dict) -> None:
    """Refuse, of the keys given, those that know of one turn."""
    for key in ("thinking_budget", "length_reward", "max_tool_calling_iterations"):
        if given[key] is not None:
            raise ValueError(
                f"{key}={given[key]!r} is for completions of one turn, and task={task.name!r} has up to {task.turns}. "
                "Leave it out."
            )


def rows_of(task, split: str, key: str, task_args: TaskArguments):
    """Make the rows of a split, as many as a key says; a complaint about their number names the key."""
    try:
        return check_dataset(task, task.rows(split, getattr(task_args, key), seed=task_args.task_seed))
    except ValueError as error:
        raise ValueError(re.sub("^n=", f"{key}=", str(error))) from error


def train(trainer: ProRLTrainer, resume: str | bool | None) -> None:
    """Run the trainer that [`build`] has made, and leave the run folder behind."""
    with trainer.hold_folders():
        trainer.train(resume_from_checkpoint=resume)
        if trainer.args.push_to_hub:
            trainer.push_to_hub()  # saves, too
        else:
            trainer.save_model()
    if trainer.terminal.is_watched:
        print(f"next: trl-prorl passk --run {shell_quote(str(trainer.run_dir))}")


def check_folder(args: ProRLConfig, recipe: tuple) -> bool:
    """
    Refuse an output folder that a new run may not have, and a resume that would not continue the same run. A run that
    was cut short before its first checkpoint begins again; one that came to its end is not trained a second time.

    The main process looks, for all processes: by the time another one looked, the run might have begun.

    Args:
        args (`ProRLConfig`): The configuration.
        recipe (`tuple`): The recipe's other dataclasses.

    Returns:
        `bool`: Whether there is a checkpoint to resume from.

    Raises:
        `ValueError`: The line names the folder or the checkpoint, what is wrong with it, and what to do.
    """
    return by_main_process(args.process_index == 0, lambda: _look_at_folder(args, recipe))


def _look_at_folder(args: ProRLConfig, recipe: tuple) -> bool:
    folders = RunFolders.of(args)
    run_dir = folders.run_dir
    folders.check_available(resumes=bool(args.resume_from_checkpoint))
    if not args.resume_from_checkpoint:
        return False
    try:
        checkpoint, _ = find_checkpoint(args.resume_from_checkpoint, args.output_dir, content=False)
    except ValueError:
        if not _begins_again(args, folders):
            raise
        return False
    if not folders.has_checkpoint(checkpoint):
        folders.check_new()
    else:
        base = next((part.model_name_or_path for part in recipe if hasattr(part, "model_name_or_path")), None)
        folders.check_record_stays(checkpoint)
        folders.check_model_stays(base)
    check_record(run_dir)
    then = read_json(checkpoint / IDENTITY_FILE)
    now = changing_keys(args, *recipe)
    check_change(check_same_run(then, now, args.allow_config_change), now, checkpoint)
    return True


def _begins_again(args: ProRLConfig, folders: RunFolders) -> bool:
    """
    Return whether a resume for which there is no checkpoint begins the run at step 0; a line on stderr says so.

    Raises:
        `ValueError`: The run came to its end.
    """
    if args.resume_from_checkpoint.lower() != "true":
        return False  # it names a checkpoint
    model = finished_model(args.output_dir, folders.run_dir)
    if model is not None:
        raise ValueError(
            f"output_dir={args.output_dir!r} holds a finished run without a complete checkpoint ({model} is its "
            "model): there is nothing to resume. Choose another output_dir, with save_strategy: steps if the run "
            "is to go on later."
        ) from None
    newest, unusable = find_newest_checkpoint(args.output_dir, content=False)
    if newest is not None:
        return False
    # A run that was killed before its first row has left one of these.
    begun = (folders.run_dir / METRICS_FILE).exists() or (folders.run_dir / LOCK_FILE).exists()
    if unusable and not begun:
        return False
    folders.check_nothing_foreign()
    if begun:
        print(f"no checkpoint in {args.output_dir} is complete: the run begins again at step 0", file=sys.stderr)
    else:  # it was killed before it wrote anything, or was never started
        print(f"there is no run in {args.output_dir} yet: the run begins at step 0", file=sys.stderr)
    return True


def finished_model(output_dir: str | Path, run_dir: str | Path) -> Path | None:
    """Return a file of the model that a run left as it came to its end; `None` if it did not come to its end."""
    if recorded_run_id(run_dir) is not None and saved_run_id(output_dir) is None:
        return None  # the id is written last
    for pattern in WEIGHTS:
        for path in sorted(Path(output_dir).glob(pattern)):
            if path.name != "training_args.bin":
                return path
    return None


def check_base(model: str | None, task: str) -> None:
    """Refuse the demo's base for a task that has a base of its own."""
    own = f"{EMBEDDED}:{task}"
    if model == EMBEDDED and full_name(own) != DEFAULT and full_name(own) in shipped():
        raise ValueError(
            f"model_name_or_path={model!r} is the demo's base, warmed up for another task than task={task!r}. Set "
            f"model_name_or_path: {own}, or {DEFAULT.rpartition(':')[0]} if you mean that base."
        )


def check_context(lengths: list[int], model: str, revision: str, args: ProRLConfig) -> None:
    """Refuse prompts, of so many tokens, that leave no room for a completion in the model's context."""
    config = AutoConfig.from_pretrained(model, revision=revision)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    longest = max(lengths)
    if context is not None and longest + args.max_completion_length > context:
        raise ValueError(
            f"training prompt {lengths.index(longest)} has {longest} tokens; with max_completion_length="
            f"{args.max_completion_length} that exceeds the model's context of {context}. Lower max_completion_length "
            "or drop long prompts."
        )


def run(
    task_args: TaskArguments,
    args: ProRLConfig,
    model_args: ModelConfig,
    trainer_class: Callable[..., ProRLTrainer] = ProRLTrainer,
) -> None:
    """
    Build, train and save what a recipe says. Ctrl-C ends the process with one line that says what is kept.

    Raises:
        [`InputError`]: No step was begun, and something in the recipe, a file or a package is wrong.
        [`RunError`]: The run has begun and has to stop. An unforeseen error is raised as it is.
    """
    trainer = None
    try:
        interrupt_as_usual()
        trainer, resume = build(task_args, args, model_args, trainer_class)
        train(trainer, resume)
    except KeyboardInterrupt:
        kept = describe_interrupted(args, trainer)
        end_interrupted(kept, tell=args.process_index == 0, processes=args.world_size)
    except (RunError, BrokenPipeError):
        raise
    except (ValueError, OSError, ImportError, re.error, pickle.UnpicklingError) as error:
        if trainer is None or not trainer.has_begun:
            raise InputError(str(error)) from error
        if trainer.state.global_step == 0 and is_refusal_of_library(error):
            raise InputError(str(error)) from error
        if isinstance(error, InputError | OSError):
            raise RunError(str(error)) from error
        raise  # nobody's input is wrong: whoever corrects it needs the traceback
    trainer.accelerator.end_training()  # several processes part in good order


def describe_interrupted(args: ProRLConfig, trainer: ProRLTrainer | None) -> str:
    """Return what Ctrl-C leaves of a recipe's run, and how to go on."""
    begun = trainer is not None and trainer.has_begun
    same = "the same command and --resume_from_checkpoint True"
    checkpoint, _ = find_newest_checkpoint(args.output_dir, content=False)
    if begun and checkpoint is None and finished_model(args.output_dir, trainer.run_dir):
        return f"the run had come to its end; its model and its record are in {Path(args.output_dir)}."
    return describe_saved_state(args.output_dir, begun, same, same)
