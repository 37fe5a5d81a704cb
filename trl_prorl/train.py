"""From a recipe to a trained model: parse, check, build, train, save. What every `recipes/grpo_*.py` runs."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, trainer_utils
from trl import ModelConfig, ScriptArguments, get_peft_config, get_quantization_config

from tasks import task_of_recipe

from .config import ProRLConfig
from .embedded import EMBEDDED, embedded_model
from .recipe import RecipeParser
from .trainer import ProRLTrainer


@dataclass
class TaskArguments(ScriptArguments):
    """
    The task of a recipe, beside TRL's [`~trl.ScriptArguments`].

    Args:
        task (`str`, *optional*, defaults to `"reverse_digits"`):
            Name of a task, see `python -m tasks list`.
        task_level (`int`, *optional*):
            Its difficulty; `None` is the task's own default.
        task_options (`dict` or `str`, *optional*):
            Further options of the task, on the command line as JSON.
        task_seed (`int`, *optional*, defaults to `0`):
            Which rows are drawn.
        train_rows (`int`, *optional*):
            Training prompts; `None` is all that a dataset has.
        eval_rows (`int`, *optional*, defaults to `64`):
            Validation prompts, used if `eval_strategy` asks for evaluation.
    """

    task: str = field(default="reverse_digits", metadata={"help": "Name of a task, see `python -m tasks list`."})
    task_level: int | None = field(default=None, metadata={"help": "Difficulty. None: the task's own default."})
    task_options: dict | str | None = field(
        default=None, metadata={"help": "Further options of the task, on the command line as JSON."}
    )
    task_seed: int = field(default=0, metadata={"help": "Which rows are drawn."})
    train_rows: int | None = field(default=None, metadata={"help": "Training prompts. None: all of a dataset."})
    eval_rows: int = field(default=64, metadata={"help": "Validation prompts."})

    def __post_init__(self):
        if isinstance(self.task_options, str):
            try:
                self.task_options = json.loads(self.task_options)
            except json.JSONDecodeError as error:
                raise ValueError(f"task_options={self.task_options!r} is not JSON: {error}.") from error

    def make_task(self):
        """The task; `dataset_name` is its `path`."""
        return task_of_recipe(self.task, self.task_level, self.task_options, self.dataset_name)


def task_reward(task) -> Callable[..., list[float]]:
    """
    A TRL reward function from a task.

    Args:
        task ([`~tasks.Task`]):
            Its `reward(completion, row)` sees the plain text of the last message and the row's columns.
    """

    def reward(completions, **columns):
        columns = {name: column for name, column in columns.items() if isinstance(column, list)}
        return [
            task.reward(completion[-1]["content"], {name: column[i] for name, column in columns.items()})
            for i, completion in enumerate(completions)
        ]

    reward.__name__ = task.name
    return reward


def train(task_args: TaskArguments, args: ProRLConfig, model_args: ModelConfig) -> ProRLTrainer:
    """
    Train as a recipe says and leave the run folder behind.

    Args:
        task_args ([`TaskArguments`]), args ([`ProRLConfig`]), model_args ([`~trl.ModelConfig`]):
            The parsed recipe.

    Raises:
        `ValueError`: something that was asked cannot be done; raised before a model is loaded.
    """
    task = task_args.make_task()
    train_dataset = task.rows("train", task_args.train_rows, seed=task_args.task_seed)
    eval_dataset = None
    if args.eval_strategy != "no":
        eval_dataset = task.rows("validation", task_args.eval_rows, seed=task_args.task_seed)
    check_rows(train_dataset, args)
    metrics = Path(args.run_dir or args.output_dir) / "metrics.jsonl"
    if metrics.exists() and metrics.stat().st_size and not args.resume_from_checkpoint:
        raise ValueError(
            f"output_dir={args.output_dir!r} already holds a run ({metrics}): choose another output_dir, remove it, or "
            "continue it with --resume_from_checkpoint True."
        )
    checkpoint = args.resume_from_checkpoint
    if isinstance(checkpoint, str) and checkpoint.lower() == "true":
        checkpoint = trainer_utils.get_last_checkpoint(args.output_dir) if Path(args.output_dir).is_dir() else None
        if checkpoint is None:
            raise ValueError(f"resume_from_checkpoint=True, but output_dir={args.output_dir!r} holds no checkpoint.")
    elif checkpoint and not Path(checkpoint, "trainer_state.json").exists():
        raise ValueError(f"resume_from_checkpoint={checkpoint!r} is not a checkpoint: it has no trainer_state.json.")
    model_args.model_name_or_path = find_model(model_args.model_name_or_path)
    args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "dtype": model_args.dtype,
        **({"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}),
        **(args.model_init_kwargs or {}),
    }
    tokenizer = AutoTokenizer.from_pretrained(
        model_args.model_name_or_path, revision=model_args.model_revision, padding_side="left", truncation_side="left"
    )
    check_context(train_dataset, tokenizer, model_args, args)
    trainer = ProRLTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=task_reward(task),
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
        quantization_config=get_quantization_config(model_args),
    )
    trainer.recipe = (task_args, model_args)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    if args.push_to_hub:
        trainer.push_to_hub()
    return trainer


def find_model(name: str | None) -> str:
    """
    The model to load: a local folder, a Hub name, or the embedded model, which is made if need be.

    Raises:
        `ValueError`: it can be none of them.
    """
    if name is None:
        raise ValueError(f"model_name_or_path is missing: a Hub name, a local folder, or {EMBEDDED!r}.")
    if name == EMBEDDED:
        return embedded_model()
    if Path(name).is_dir():
        if not Path(name, "config.json").exists():
            raise ValueError(f"model_name_or_path={name!r} is a folder without config.json: it holds no model.")
    elif not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(
            f"model_name_or_path={name!r} is neither a local folder nor a Hub name like Qwen/Qwen2.5-0.5B-Instruct."
        )
    return name


def check_rows(rows, args: ProRLConfig) -> None:
    """Refuse a training set that does not fill one generation batch: TRL would train 0 steps."""
    needed = args.generation_batch_size // args.num_generations
    if len(rows) < needed:
        raise ValueError(
            f"the training set has {len(rows)} prompts, and one generation takes {needed} "
            f"(generation_batch_size={args.generation_batch_size} / num_generations={args.num_generations}). Raise "
            "train_rows, or lower per_device_train_batch_size or gradient_accumulation_steps."
        )


def check_context(rows, tokenizer, model_args: ModelConfig, args: ProRLConfig) -> None:
    """Refuse prompts that leave no room for a completion in the model's context."""
    config = AutoConfig.from_pretrained(model_args.model_name_or_path, revision=model_args.model_revision)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return
    texts = [
        tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) for prompt in rows["prompt"]
    ]
    lengths = [len(ids) for ids in tokenizer(texts, add_special_tokens=False).input_ids]
    longest = max(lengths)
    if longest + args.max_completion_length > context:
        raise ValueError(
            f"training prompt {lengths.index(longest)} has {longest} tokens; with max_completion_length="
            f"{args.max_completion_length} that exceeds the model's context of {context}. Lower max_completion_length "
            "or drop long prompts."
        )


def main(default_recipe: str | Path, argv: list[str] | None = None) -> None:
    """
    Command line of a recipe script. Without `--config` the default recipe is run; further arguments override it. What
    cannot be done is one line on stderr and exit code 2.

    Args:
        default_recipe (`str` or `Path`):
            YAML file that is run if no `--config` is given.
        argv (`list[str]`, *optional*):
            Defaults to the process's own.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if "--config" not in argv:
        argv = ["--config", str(default_recipe), *argv]
    try:
        parser = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
        trainer = train(*parser.parse_args_and_config(argv))
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    trainer.accelerator.end_training()  # several processes part in good order
