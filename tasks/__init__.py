"""Verifiable tasks: questions with content-disjoint splits and one verifier for training and evaluation."""

from .base import Task
from .registry import get_task, task_names, task_of_recipe


__all__ = ["Task", "get_task", "task_names", "task_of_recipe"]
