"""Verifiable tasks: questions with content-disjoint splits and one verifier for training and evaluation."""

import sys

from trl_prorl.tasks import base, registry
from trl_prorl.tasks.base import Task
from trl_prorl.tasks.registry import get_task, task_names, task_of_recipe


__all__ = ["Task", "get_task", "task_names", "task_of_recipe"]

# A user's file may import `tasks` from a checkout; it must get the same registry and the same base class.
sys.modules |= {f"{__name__}.base": base, f"{__name__}.registry": registry}
