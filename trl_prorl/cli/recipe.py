"""
Parse a recipe into the task, [`~trl_prorl.ProRLConfig`] and TRL's [`~trl.ModelConfig`]. Imports nothing that trains.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trl import ModelConfig, ScriptArguments, TrlParser

from .. import tasks
from ..config import ProRLConfig
from ..errors import InputError
from ..extras.length_rewards import LENGTH_REWARDS, NEEDED_LENGTHS
from ..keys import (
    RENAMED,
    TASK_KEYS,
    TASK_REQUIREMENTS,
    Requirement,
    TaskKeys,
    check_values,
    cure_of,
    drop_unused,
    warn_unused,
)
from ..tasks.own import load_rewards, load_rows
from ..tasks.plugin import OWN
from ..text import last_text, short
from .recipe_yaml import read_recipe
from .shipped_recipes import with_recipe


# TRL's keys of data sets, which a task loads itself, by `dataset_name`.
OF_DATA_SETS = ("dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming")
A_PATH = Requirement(lambda values: False, "a task's own options, task_options")


def is_switched(metric: str) -> bool:
    """Return whether a metric of evaluations contains the length reward that `length_off` switches."""
    name = metric.removeprefix("eval_")
    return name in ("reward", "reward_std") or name.startswith("rewards/cosine_length/")


@dataclass
class TaskArguments(TaskKeys, ScriptArguments):
    """TRL's [`~trl.ScriptArguments`] and [`~trl_prorl.keys.TaskKeys`]."""

    __doc__ = TaskKeys.__doc__  # for `help`

    def __post_init__(self):
        if isinstance(self.reward, str):
            self.reward = [self.reward]
        if self.reward:
            self.task = OWN
            self.task_level = None
            self.task_options = None
        check_values(self, TASK_KEYS)
        warn_unused(drop_unused(self, TASK_REQUIREMENTS | dict.fromkeys(OF_DATA_SETS, A_PATH)))
        needed = self._length_key()
        if needed is not None and getattr(self, needed) is None:
            raise ValueError(f"length_reward={self.length_reward!r} needs {needed}: set it, in tokens.")
        if isinstance(self.task_options, str):
            with suppress(ValueError):
                self.task_options = json.loads(self.task_options)
        if not isinstance(self.task_options, dict | None):
            example = """'{"reward": "share"}'"""
            raise ValueError(f"task_options={short(self.task_options)} must be a JSON object, such as {example}.")

    def _length_key(self) -> str | None:
        return NEEDED_LENGTHS.get(self.length_reward)

    def check_lengths(self, args: ProRLConfig) -> None:
        """
        Raise an error if the length reward needs completions longer than `max_completion_length`, or is switched where
        it cannot be, or beside a watch of the reward.
        """
        if self.length_off:
            self._check_switching(args)
        max_completion_length = args.max_completion_length
        name = self._length_key()
        if name is None or max_completion_length is None:
            return
        length = getattr(self, name)
        if length > max_completion_length:
            raise ValueError(
                f"{name}={length} exceeds max_completion_length={max_completion_length}: no completion can reach it. "
                f"Lower {name}, or raise max_completion_length."
            )

    def _check_switching(self, args: ProRLConfig) -> None:
        steps = args.generate_every // math.gcd(args.generate_every, args.gradient_accumulation_steps)
        for name in ("length_on", "length_off"):
            value = getattr(self, name)
            if value % steps:
                raise ValueError(
                    f"{name}={value} is no multiple of {steps}, the optimizer steps after which a batch is generated "
                    f"({args.schedule}): a batch is either with the length reward or without. Set {name}: "
                    f"{math.ceil(value / steps) * steps}."
                )
        watches = {"guard_gap": "remove guard_gap"}
        if args.watches_metric and is_switched(args.ref_reset_metric):
            watches["ref_reset_metric"] = "set ref_reset_metric: eval_pass@1"
        if args.metric_for_best_model is not None and is_switched(args.metric_for_best_model):
            watches["metric_for_best_model"] = "set metric_for_best_model: eval_pass@1"
        for name, cure in watches.items():
            if getattr(args, name):
                raise ValueError(
                    f"{name}={getattr(args, name)!r} compares rewards of different steps, between which length_off="
                    f"{self.length_off} switches the length reward. Remove length_on and length_off, or {cure}."
                )

    def make_task(self):
        """Return the task; `dataset_name` is its `path`."""
        try:
            if self.reward:
                return load_rows(self.dataset_name, self.verify)
            return tasks.task_of_recipe(self.task, self.task_level, self.task_options, self.dataset_name)
        except ValueError as error:
            message = str(error)
            if not message.startswith(("level=", "path=")):
                raise
            if message.startswith("level="):
                message = f"task_{message}"
            if self.dataset_name is not None:
                message = message.replace("path=", "dataset_name=", 1)
            raise ValueError(message) from error

    def make_rewards(self, task, max_completion_length: int) -> list[Callable[..., list[float]]]:
        rewards = [task_reward(task)] if not self.reward else load_rewards(self.reward, task.rows("train", 1))
        if self.length_reward is not None:
            rewards.append(LENGTH_REWARDS[self.length_reward](self, max_completion_length))
        return rewards


def rows_of_columns(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Turn the columns of a reward function into `count` rows. Columns that are no lists are dropped."""
    lists = {name: column for name, column in columns.items() if isinstance(column, list)}
    return [{name: column[place] for name, column in lists.items()} for place in range(count)]


def task_reward(task) -> Callable[..., list[float]]:
    """
    Make a TRL reward function from a task.

    Its attribute `batch_verifier` tells evaluations, `guard_gap` and preflight which completions are correct.

    Args:
        task ([`~trl_prorl.tasks.Task`]): `reward_many` and `verify_many` receive the plain text of the completions and
            one row per completion.

    Returns:
        `Callable`: `reward(completions, **columns) -> list[float]`, like every reward function of TRL.

    Example:

    ```python
    >>> from trl_prorl import task_reward
    >>> from trl_prorl.tasks import get_task

    >>> reward = task_reward(get_task("reverse_digits", level=3))
    >>> completions = [[{"role": "assistant", "content": text}] for text in ("026057", "no idea")]
    >>> reward(completions, answer=["026057", "026057"])
    [1.0, 0.0]
    >>> reward.batch_verifier(completions, answer=["026057", "026057"])
    [True, False]
    ```
    """

    def reward(completions, **columns):
        texts = [last_text(completion) for completion in completions]
        return task.reward_many(texts, rows_of_columns(columns, len(texts)))

    def batch_verifier(completions, **columns):
        texts = [last_text(completion) for completion in completions]
        return task.verify_many(texts, rows_of_columns(columns, len(texts)))

    reward.__name__ = task.name
    batch_verifier.__name__ = batch_verifier.__qualname__ = f"{task.name}.verify"
    reward.batch_verifier = batch_verifier
    return reward


def key_of(word: str) -> str:
    """Return the key in a word of a command line."""
    return word.partition("=")[0].lstrip("-").replace("-", "_")


class GivenKeys(argparse.Namespace):
    """The given keys. HfArgumentParser also deletes keys that were not."""

    def __delattr__(self, key):
        vars(self).pop(key, None)


class RecipeParser(TrlParser):
    """A [`~trl.TrlParser`] that passes only the given keys to the dataclasses, which record them."""

    @property
    def names(self) -> set[str]:
        return {action.dest for action in self._actions}

    def parse_known_args(self, args=None, namespace=None):
        for word in args:
            if word.startswith("--") and key_of(word) in RENAMED:  # else `lr` is an abbreviation of several keys
                raise self.unknown(word)
        parsed, rest = super().parse_known_args(args, namespace or GivenKeys())
        if rest:
            raise self.unknown(rest[0])
        return parsed, rest

    def unknown(self, word: str) -> InputError:
        return InputError(f"unknown argument {short(word)}{cure_of(key_of(word), self.names)}.")

    def error(self, message):
        raise InputError(message)

    def parse_args_and_config(self, args, **kwargs):
        args = with_recipe(args)
        self.set_defaults_with_config(**dict.fromkeys(self.names, argparse.SUPPRESS))
        if "--config" in args:
            place = args.index("--config")
            keys = read_recipe(args[place + 1], self.names)
            args = args[:place] + args[place + 2 :]
            self.set_defaults_with_config(**keys)  # as TrlParser does, without bases
        return super().parse_args_and_config(args, **kwargs)


def parse_recipe(argv: list[str]) -> tuple[TaskArguments, ProRLConfig, ModelConfig]:
    """
    Parse a command line and its recipe into task, training and model. Raises `ValueError`: a key or a value is wrong.
    """
    parser = RecipeParser((TaskArguments, ProRLConfig, ModelConfig))
    task_args, args, model_args = parser.parse_args_and_config(argv)
    task_args.check_lengths(args)
    return task_args, args, model_args
