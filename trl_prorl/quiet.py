"""
Messages of libraries that are not true of this project, or that nobody can act on, kept off stderr. All other messages
are shown.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


# Logged when PEFT imports bitsandbytes on a CPU with AVX512-BF16: an optional kernel for packed 4-bit weights, which a
# model in training never has (`extras/vllm.py`).
KERNEL_LOGGER = "bitsandbytes.backends.cpu.ops"
KERNEL_HINT = "Failed to load CPU gemm_4bit_forward from kernels-community"

# Old names: PEFT and TRL ask transformers by one of them, and recipes write the other, the only one that every version
# of transformers we admit knows.
OLD_NAMES = r"`(is_)?gradient_checkpointing(_enable|_disable)?` is deprecated"


def _leaves_out(part: str) -> Callable[[logging.LogRecord], bool]:
    return lambda record: part not in str(record.msg)


def drop_kernel_hint() -> None:
    """Leave the hint out. Must be called before PEFT is imported."""
    logging.getLogger(KERNEL_LOGGER).addFilter(_leaves_out(KERNEL_HINT))


def hold_old_names() -> None:
    """Leave out the warnings about old names that cannot be avoided here, in scripts too."""
    warnings.filterwarnings("ignore", OLD_NAMES, FutureWarning)


@contextmanager
def without_warning(logger: str, part: str) -> Iterator[None]:
    """Leave out the messages of a logger that contain `part`."""
    target = logging.getLogger(logger)
    keep = _leaves_out(part)
    target.addFilter(keep)
    try:
        yield
    finally:
        target.removeFilter(keep)
