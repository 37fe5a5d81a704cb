"""Errors of a run that has begun and cannot go on. What cannot be started at all is a `ValueError`."""

from .text import cut


class InputError(ValueError):
    """Bad input: a line of at most 500 characters that names the key or the file, the value and the cure."""

    def __init__(self, message: str = ""):
        super().__init__(cut(message, 500))


class RunError(RuntimeError):
    """The run stopped; its last complete checkpoint is kept."""


class CheckpointError(RunError):
    """A checkpoint, or the trained model, could not be written whole."""


class NonFiniteError(RunError):
    """NaN or infinity where a number has to be."""


class EvaluationError(RunError, ValueError):
    """An evaluation does not measure what a reset waits for."""


class RewardError(RunError, ValueError):
    """A reward function raised, took too long, or returned what is not one finite number for every completion."""


class NonFiniteRewardError(RewardError, NonFiniteError):
    """A reward function returned NaN or infinity."""


class PushError(RunError):
    """An upload to the Hub failed; what was to be uploaded is whole on disk."""
