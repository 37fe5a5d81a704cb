"""What libraries write to stderr and is not true of what was done, or nobody can act on. All else that they say is shown."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


# As bitsandbytes is imported, which PEFT does, on CPUs with AVX512-BF16: an optional kernel for 4-bit weights on a CPU.
KERNEL_LOGGER = "bitsandbytes.backends.cpu.ops"
KERNEL_HINT = "Failed to load CPU gemm_4bit_forward from kernels-community"

# Old names: PEFT and TRL ask transformers by one of them, and recipes write the other, which alone is known to every
# version of transformers that we admit.
OLD_NAMES = r"`(is_)?gradient_checkpointing` is deprecated"


class KernelHint(logging.Filter):
    """Keeps the hint to itself until a model with 4-bit weights is asked for."""

    def __init__(self):
        super().__init__()
        self.record: logging.LogRecord | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(KERNEL_HINT):
            return True
        self.record = record
        return False


hint = KernelHint()


def hold_kernel_hint() -> None:
    """Must come before PEFT is imported."""
    logging.getLogger(KERNEL_LOGGER).addFilter(hint)


def show_kernel_hint() -> None:
    """For who uses 4-bit weights on a CPU, for whom it is true."""
    logger = logging.getLogger(KERNEL_LOGGER)
    logger.removeFilter(hint)
    if hint.record is not None:
        logger.handle(hint.record)
        hint.record = None


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Leave out the warnings about names that are old and here cannot be others."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", OLD_NAMES, FutureWarning)
        yield


@contextmanager
def without_warning(logger: str, part: str) -> Iterator[None]:
    """Without the messages of a logger that contain `part`."""
    theirs = logging.getLogger(logger)

    def keep(record: logging.LogRecord) -> bool:
        return part not in record.getMessage()

    theirs.addFilter(keep)
    try:
        yield
    finally:
        theirs.removeFilter(keep)
