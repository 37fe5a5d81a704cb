"""JSON that knows no NaN: null in the file, NaN in the numbers."""

import json
import math
from pathlib import Path

from trl_prorl.files import replaced


def write_json(path: Path, content: dict) -> None:
    """Write a JSON file, whole or not at all; NaN, which JSON does not know, as null."""
    with replaced(path) as aside:
        aside.write_text(json.dumps(_without_nan(content)) + "\n")


def _without_nan(value):
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def with_nan(value):
    """An end of an interval that was not given is null in JSON and NaN here."""
    if isinstance(value, dict):
        return {key: with_nan(one) for key, one in value.items()}
    return [math.nan if one is None else with_nan(one) for one in value] if isinstance(value, list) else value
