"""From a recipe to a trained model: parse, check, build, train, save. What every `recipes/grpo_*.py` runs."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoTokenizer, trainer_utils
from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config, get_quantization_config

from tasks import get_task

from .config import ProRLConfig
from .embedded import EMBEDDED, embedded_model
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
            self.task_options = json.loads(self.task_options)

    def make_task(self):
        """The task; `dataset_name` is its `path`."""
        options = dict(self.task_options or {})
        if self.task_level is not None:
            options["level"] = self.task_level
        if self.dataset_name is not None:
            options["path"] = self.dataset_name
        return get_task(self.task, **options)


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
    if model_args.model_name_or_path is None:
        raise ValueError(f"model_name_or_path is missing: a Hub name, a local folder, or {EMBEDDED!r}.")
    if model_args.model_name_or_path == EMBEDDED:
        model_args.model_name_or_path = embedded_model()
    args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "dtype": model_args.dtype,
        **({"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}),
        **(args.model_init_kwargs or {}),
    }
    tokenizer = AutoTokenizer.from_pretrained(
        model_args.model_name_or_path, revision=model_args.model_revision, padding_side="left", truncation_side="left"
    )
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
        parser = TrlParser((TaskArguments, ProRLConfig, ModelConfig))
        trainer = train(*parser.parse_args_and_config(argv))
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    trainer.accelerator.end_training()  # several processes part in good order
