"""A trainer that is tried, and afterwards as it was: weights, optimizer, random states, counters, logs."""

import copy
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from peft import PeftModel
from torch.optim.lr_scheduler import LRScheduler

from trl_prorl.cli.dropout import own_random_state
from trl_prorl.run.identity import base_parameters


# Modules of the classes whose objects are put back, with their subclasses; others stay as the trial leaves them.
OWNERS = (
    "trl.",
    "trl_prorl.",
    "transformers.trainer",
    "transformers.training_args",
    "accelerate.accelerator",
    "accelerate.optimizer",
    "accelerate.scheduler",
)


@contextmanager
def put_back(trainer) -> Iterator[None]:
    """
    Put back a trainer's state at the end of the context: trained weights, buffers, optimizer, schedule, counters,
    logs, keys and callbacks. Python's, NumPy's and torch's random states are put back, too.

    The host's memory holds a copy of the trained weights. Objects of a user's own classes, such as a reward function
    that counts its calls, and frozen weights below an adapter, are not copied.
    """
    state = State(trainer)
    try:
        with own_random_state():
            yield
    finally:
        state.restore()


def _is_owned(value) -> bool:
    kinds = type(value).__mro__
    return isinstance(value, torch.nn.Module) or any(kind.__module__.startswith(OWNERS) for kind in kinds)


class State:
    """
    The state of all objects that a trainer refers to, directly or through others.

    Args:
        trainer (`GRPOTrainer`): The trainer. Its reward functions are left out.
    """

    def __init__(self, trainer):
        self._undo: list[Callable[[], None]] = []
        policy = trainer.accelerator.unwrap_model(trainer.model)
        frozen = []
        if isinstance(policy, PeftModel):
            frozen = [param for _, param in base_parameters(policy) if not param.requires_grad]
        self._seen = {id(value) for value in (trainer.reward_funcs, *trainer.reward_funcs, *frozen)}
        waiting = [trainer]
        while waiting:
            value = waiting.pop()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                waiting += self._note(value)

    def _note(self, value) -> list:
        """Note how to put a value back, and return the values in it."""
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                saved = value.detach().to("cpu", copy=True)
                self._undo.append(partial(_fill, value, saved, value.requires_grad, value.grad))
        elif isinstance(value, dict):
            self._undo.append(partial(_refill, value, value.update, dict(value)))
            return list(value.values())
        elif isinstance(value, list | deque):
            self._undo.append(partial(_refill, value, value.extend, list(value)))
            return list(value)
        elif isinstance(value, set):
            self._undo.append(partial(_refill, value, value.update, set(value)))
        elif isinstance(value, np.ndarray):
            self._undo.append(partial(np.copyto, value, value.copy()))
        elif isinstance(value, array):
            self._undo.append(partial(value.__setitem__, slice(None), value[:]))
        elif isinstance(value, tuple):
            return list(value)
        elif isinstance(value, random.Random):
            self._undo.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, torch.Generator):
            self._undo.append(partial(value.set_state, value.get_state()))
        elif _is_owned(value):
            return [vars(value)] if hasattr(value, "__dict__") else []
        elif isinstance(value, torch.optim.Optimizer | LRScheduler | torch.amp.GradScaler):
            self._undo.append(partial(value.load_state_dict, copy.deepcopy(value.state_dict())))
            if isinstance(value, torch.optim.Optimizer):
                return [value._optimizer_step_pre_hooks, value._optimizer_step_post_hooks]
        return []

    def restore(self) -> None:
        """Put everything back."""
        for undo in self._undo:
            undo()


def _refill(container, fill: Callable, content) -> None:
    container.clear()
    fill(content)


@torch.no_grad()
def _fill(tensor: torch.Tensor, saved: torch.Tensor, trained: bool, grad: torch.Tensor | None) -> None:
    if tensor.shape != saved.shape:
        tensor.data = saved.to(tensor.device)
    elif not torch.equal(tensor, saved.to(tensor.device)):
        tensor.copy_(saved)
    if tensor.is_leaf and tensor.requires_grad != trained:
        tensor.requires_grad_(trained)
    if tensor.is_leaf:
        tensor.grad = grad
