"""Verifiable tasks: questions with content-disjoint splits and one verifier for training and evaluation."""

from trl_prorl.launch.interrupt import NOTHING_CHANGED, end_at_once, is_started_as_module


if is_started_as_module(__name__):
    end_at_once(NOTHING_CHANGED)  # until `main` runs

from .base import Task
from .registry import get_task, task_names, task_of_recipe


__all__ = ["Task", "get_task", "task_names", "task_of_recipe"]
