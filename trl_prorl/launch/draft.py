"""
A run as far as its recipe and its command line tell it: what they alone make wrong is refused before torch,
transformers and TRL are imported. The checks are those that the configurations make; a draft gives them values.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..descriptor import check_used, check_values
from ..environment import started_processes, torch_finds_no_gpu
from ..keys import BARE_WORDS, KEYS, TASK_KEYS, read_bare_word, switched_on_by_fast
from ..record.folders import RunFolders
from ..refusals import check_batch, check_precision
from ..tasks.registry import check_name
from ..upstream_values import MODEL_VALUES, TRAINING_VALUES, complete_batch, describe_key, resume_word
from .recipe_check import AUTO
from .recipe_keys import Declared
from .value_types import read_as


OWN_KEYS = KEYS | TASK_KEYS
UPSTREAM_VALUES = TRAINING_VALUES | MODEL_VALUES


class Draft:
    """
    The values of a run's keys: those that are given, and else the defaults, completed as the configurations do it. A
    key whose default is made by code is no attribute.

    Args:
        given (`Mapping[str, Any]`): The keys of the recipe and the command line, whose types are right.
        declared (`Mapping[str, Declared]`): All keys.
    """

    def __init__(self, given: Mapping[str, Any], declared: Mapping[str, Declared]):
        self.declared = declared
        self.given = {}
        for key, value in given.items():
            if key in declared:
                is_word = value == AUTO  # `bf16: auto`, and keys of text
                self.given[key] = value if is_word else read_as(value, declared[key].hint)
        for key, one in declared.items():
            if one.default is not dataclasses.MISSING:
                setattr(self, key, one.default)
        vars(self).update(self.given)
        for key in BARE_WORDS:
            setattr(self, key, read_bare_word(getattr(self, key)))
        if self.fast:
            vars(self).update(switched_on_by_fast(self.given, vars(self)))

    def check(self) -> None:
        """
        Refuse what is wrong, whatever this machine has installed.

        Raises:
            `ValueError`: The line names a key, its value and the cure.
        """
        check_values(self, {key: OWN_KEYS[key] for key in self.given if key in OWN_KEYS})
        upstream = {}
        for key in self.given:
            if key in UPSTREAM_VALUES:
                upstream[key] = describe_key(key, UPSTREAM_VALUES[key], self.declared[key].hint)
        check_values(self, upstream)
        check_name(self.task)
        check_batch(self)  # numbers below 1, before they are multiplied
        vars(self).update(complete_batch(vars(self), started_processes()))
        check_batch(self)
        self._check_precision()
        check_used(self, OWN_KEYS)
        self._check_folders()

    def _check_precision(self) -> None:
        """Refuse bfloat16 where there can be no GPU. Where there may be one, the configuration refuses it."""
        by_default = self.bf16 is None
        if by_default:
            self.bf16 = not self.fp16  # as in TRL
        if self.bf16 != AUTO and torch_finds_no_gpu():
            check_precision(self, by_default, finds_gpu=lambda: False)

    def _check_folders(self) -> None:
        """Refuse folders that the run may not have. Of several processes the main one does so, once all are there."""
        if self.output_dir is not None and started_processes() == 1:
            resumes = resume_word(self.resume_from_checkpoint) is not None
            RunFolders.of(self).check_available(resumes)
