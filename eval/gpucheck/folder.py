"""The folder of results, which a later call goes on from: a file a part."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from trl_prorl.eval.gpucheck.result import Result
from trl_prorl.files import replaced


ROOT = Path(__file__).parent.parent.parent  # of our packages


def code() -> str:
    """A hash of our Python files: a result says nothing about other code."""
    files = [path for name in ("trl_prorl", "eval") for path in sorted((ROOT / name).rglob("*.py"))]
    found = hashlib.sha256()
    for path in files:
        found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


def write(folder: Path, name: str, result: Result, made_with: dict[str, str]) -> None:
    """Write a part's result, whole or not at all."""
    with replaced(folder / f"{name}.json") as aside:
        aside.write_text(json.dumps({"made_with": made_with, **result.to_dict()}, indent=1) + "\n")


def read(folder: Path, name: str) -> Result | None:
    """A part's result, or `None`."""
    path = folder / f"{name}.json"
    return Result.of(json.loads(path.read_text())) if path.is_file() else None


def is_finished(folder: Path, name: str, made_with: dict[str, str]) -> bool:
    """Whether a part has passed already, with this code, these libraries and this device."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return False
    written = json.loads(path.read_text())
    return written["made_with"] == made_with and not Result.of(written).failed


def forget_others(folder: Path, names: Iterable[str], made_with: dict[str, str]) -> None:
    """Remove results of other code, other libraries or another device, which belong to no table with these."""
    for name in names:
        path = folder / f"{name}.json"
        if path.is_file() and json.loads(path.read_text())["made_with"] != made_with:
            path.unlink()
