"""Prolonged GRPO on one GPU, on top of Hugging Face TRL."""

from importlib import import_module
from typing import TYPE_CHECKING

from .cli.quiet import drop_kernel_hint, ignore_old_names


if TYPE_CHECKING:
    from .cli.recipe import task_reward
    from .config import ProRLConfig
    from .embedded.shipped import embedded_model
    from .eval.drift import drift
    from .eval.passk import evaluate
    from .eval.preflight import preflight
    from .resets import ReferenceResetCallback
    from .run.recorder import RunRecorder
    from .trainer import ProRLTrainer
    from .upstream.weights import load_model
    from .watch import KLSpike, Periodic, Reason, Stall, Trigger


__version__ = "0.2.0"

__all__ = [
    "KLSpike",
    "Periodic",
    "ProRLConfig",
    "ProRLTrainer",
    "Reason",
    "ReferenceResetCallback",
    "RunRecorder",
    "Stall",
    "Trigger",
    "drift",
    "embedded_model",
    "evaluate",
    "load_model",
    "preflight",
    "task_reward",
]

drop_kernel_hint()
ignore_old_names()

# Imported when they are asked for: torch and TRL take seconds, which a misspelt option or `--help` need not.
_MODULES = {
    "ProRLConfig": "config",
    "ProRLTrainer": "trainer",
    "ReferenceResetCallback": "resets",
    "RunRecorder": "run.recorder",
    "drift": "eval.drift",
    "embedded_model": "embedded.shipped",
    "evaluate": "eval.passk",
    "load_model": "upstream.weights",
    "preflight": "eval.preflight",
    "task_reward": "cli.recipe",
}


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES.get(name, 'watch')}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
