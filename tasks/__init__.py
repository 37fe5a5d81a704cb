"""Verifiable tasks: questions with content-disjoint splits and one verifier for training and evaluation."""

from trl_prorl.interrupt import NOTHING_CHANGED, end_at_once, is_started_as_module
from trl_prorl.short_names import be_one_module


if __name__ == "tasks":
    be_one_module(__name__)
elif is_started_as_module("tasks"):
    end_at_once(NOTHING_CHANGED)  # until `main` runs

from .base import Task
from .registry import get_task, task_names, task_of_recipe


__all__ = ["Task", "get_task", "task_names", "task_of_recipe"]
