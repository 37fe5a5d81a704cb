"""
The descriptors of TRL's and transformers' keys, of the values in upstream_values.py and of those that their classes
state, and that no number is NaN. `check_keys` and `check_finite` refuse others in one line.
"""

import math
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from accelerate.utils import DynamoBackend
from trl import GRPOConfig, ModelConfig

from .descriptor import Key, Values, one_of
from .upstream_values import INFINITE, MODEL_VALUES, TRAINING_VALUES, describe_key, options_of


COMPILE_BACKENDS = {"torch_compile_backend": one_of(*(backend.value.lower() for backend in DynamoBackend))}


def _stated_values(field: Any, hint: Any) -> Values | None:
    """Return the words of a field whose class lists them: as its choices, or as an enumeration in its type."""
    if field.metadata.get("choices"):
        return one_of(*field.metadata["choices"])
    for option in options_of(hint):
        if isinstance(option, type) and issubclass(option, Enum):
            return one_of(*(member.value for member in option))
    return None


def descriptors(cls: type, values: Mapping[str, Values]) -> dict[str, Key]:
    """
    Return the descriptors of a dataclass of TRL's, by field: the values given here, else those that the class states.
    A field that this version of TRL does not have is left out.
    """
    hints = typing.get_type_hints(cls)
    keys = {}
    for field in fields(cls):
        hint = hints[field.name]
        of_field = values.get(field.name) or _stated_values(field, hint)
        if of_field is None:
            continue
        keys[field.name] = describe_key(field.name, of_field, hint, field.default)
    return keys


TRAINING_KEYS = descriptors(GRPOConfig, {**TRAINING_VALUES, **COMPILE_BACKENDS})
MODEL_KEYS = descriptors(ModelConfig, MODEL_VALUES)


def check_finite(configuration: Any) -> None:
    """
    Refuse NaN and infinity in every field of a configuration, at any depth of a mapping or a list.

    Raises:
        `ValueError`: The line names the key and its value; a bound may be infinite.
    """
    for field in fields(configuration):
        value = getattr(configuration, field.name, None)
        for single in _numbers_in(value):
            if math.isnan(single) or (math.isinf(single) and field.name not in INFINITE):
                raise ValueError(f"{field.name}={value!r} must be finite: NaN and infinity train nothing. Correct it.")


def _numbers_in(value: Any, depth: int = 0) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, (list, tuple, dict)) and depth < 50:
        inside = value.values() if isinstance(value, dict) else value
        for single in inside:
            yield from _numbers_in(single, depth + 1)
