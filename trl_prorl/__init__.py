"""Prolonged GRPO on one GPU, on top of Hugging Face TRL."""

from .callbacks import ReferenceResetCallback
from .config import ProRLConfig
from .trainer import ProRLTrainer
from .triggers import KLSpike, Periodic, Reason, Stall, Trigger


__version__ = "0.1.0"

__all__ = [
    "KLSpike",
    "Periodic",
    "ProRLConfig",
    "ProRLTrainer",
    "Reason",
    "ReferenceResetCallback",
    "Stall",
    "Trigger",
]
