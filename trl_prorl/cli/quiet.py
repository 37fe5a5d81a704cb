"""Suppresses messages of libraries that are untrue of this project or that nobody can act on."""

import logging
import warnings


# Logged when PEFT imports bitsandbytes on a CPU with AVX512-BF16: an optional kernel for packed 4-bit weights, which a
# model in training never has (`extras/vllm.py`).
KERNEL_LOGGER = "bitsandbytes.backends.cpu.ops"
KERNEL_HINT = "Failed to load CPU gemm_4bit_forward from kernels-community"

# PEFT and TRL call transformers by an old name; recipes use the one that every supported version has.
OLD_NAMES = r"`(is_)?gradient_checkpointing(_enable|_disable)?` is deprecated"


def drop_kernel_hint() -> None:
    """Suppress the hint. Must be called before PEFT is imported."""
    logging.getLogger(KERNEL_LOGGER).addFilter(lambda record: KERNEL_HINT not in str(record.msg))


def ignore_old_names() -> None:
    """Suppress unavoidable warnings about old names."""
    warnings.filterwarnings("ignore", OLD_NAMES, FutureWarning)
