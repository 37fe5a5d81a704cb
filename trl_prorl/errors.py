"""Errors that stop a run. Input errors before the first step are `ValueError`s."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .text import cut


class InputError(ValueError):
    """Wrong input. One line, of at most 500 characters, names the key or file, the value and the cure."""

    def __init__(self, message: str = ""):
        super().__init__(cut(message, 500))


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    line = lines[0][:160].rstrip(".") if lines else ""
    return f"{type(error).__name__}: {line}"


class RunError(RuntimeError):
    """A run stopped. Its last complete checkpoint is kept."""


class CheckpointError(RunError):
    """A checkpoint or the trained model could not be written completely."""


class NonFiniteError(RunError):
    """NaN or infinity in place of a finite number."""


class EvaluationError(RunError, ValueError):
    """Evaluations do not measure the metric that a reset trigger watches."""


class RewardError(RunError, ValueError):
    """A reward function raised an error, exceeded its time limit, or did not return one number per completion."""


class NonFiniteRewardError(RewardError, NonFiniteError):
    """A reward function returned NaN or infinity."""


class PushError(RunError):
    """An upload to the Hub failed. The files are complete on disk."""


@contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Raise `InputError` with the name of a file or folder in place of the errors that its content leads to."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"'{path}' cannot be read ({first_line(error)})") from error
