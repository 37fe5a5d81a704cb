"""What libraries say of themselves is held back, and nothing else that they say."""

import logging
import warnings

from trl_prorl.cli.quiet import KERNEL_HINT, KERNEL_LOGGER, ignore_old_names


HINT = f"{KERNEL_HINT}: %s. Please make sure you already `pip install kernels` and the kernels >= 0.11.1"


def test_other_words_of_bitsandbytes_are_shown(caplog):
    logger = logging.getLogger(KERNEL_LOGGER)
    logger.addHandler(caplog.handler)
    logger.warning(HINT, "No module named 'kernels'")
    logger.warning("Failed to load the CPU library")
    logger.removeHandler(caplog.handler)
    assert set(caplog.messages) == {"Failed to load the CPU library"}


def test_only_the_old_names_are_passed_over():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ignore_old_names()
        warnings.warn("`gradient_checkpointing` is deprecated and will be removed", FutureWarning)
        warnings.warn("`is_gradient_checkpointing` is deprecated and will be removed", FutureWarning)
        warnings.warn("`warmup_ratio` is deprecated and will be removed", FutureWarning)
    assert [str(each.message) for each in caught] == ["`warmup_ratio` is deprecated and will be removed"]
