"""Two run folders that should be the same run: every tensor, every line of the record, all but times and memory."""

import json
from pathlib import Path
from typing import Any

import pandas
import torch
import yaml
from run_record import without_times
from safetensors.torch import load_file

from trl_prorl.run_files import RUN_ID_FILE, recorded_run_id, saved_run_id
from trl_prorl.run_folder import ABANDONED


EARLIER = "earlier-"  # begins the name of a folder of what a run that began again has set aside
# Paths and times stand in these, and nothing that a resume reads.
OF_THIS_PLACE = frozenset(["README.md", "training_args.bin", "manifest.json", "env.json", RUN_ID_FILE])


def first_difference(mine: Any, theirs: Any, place: str = "") -> str | None:
    """Where two values of any nesting first differ, and how, or `None`."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        if mine.keys() != theirs.keys():
            return f"{place}: keys {sorted(map(str, mine.keys() ^ theirs.keys()))} are in one of the two only"
        pairs = [(mine[key], theirs[key], f"{place}.{key}") for key in theirs]
    elif isinstance(theirs, (list, tuple)) and isinstance(mine, (list, tuple)):
        if len(mine) != len(theirs):
            return f"{place}: {len(mine)} items instead of {len(theirs)}"
        pairs = [(left, right, f"{place}[{i}]") for i, (left, right) in enumerate(zip(mine, theirs, strict=True))]
    elif isinstance(theirs, torch.Tensor) and isinstance(mine, torch.Tensor):
        if mine.shape == theirs.shape and mine.dtype == theirs.dtype and torch.equal(mine, theirs):
            return None
        alike = mine.shape == theirs.shape
        far = f" by up to {(mine.double() - theirs.double()).abs().max():.2g}" if alike else ""
        return f"{place}: tensors differ{far}"
    elif isinstance(theirs, bytes):
        return None if mine == theirs else f"{place}: bytes differ"
    else:
        return None if mine == theirs and type(mine) is type(theirs) else f"{place}: {mine!r} instead of {theirs!r}"
    return next((found for pair in pairs if (found := first_difference(*pair))), None)


def content(path: Path) -> Any:
    """What a file says, without what may differ between two places and times."""
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)
    if path.name == "trainer_state.json":
        state = without_times(json.loads(path.read_text()))
        best = state["best_model_checkpoint"]
        # Trainer's own log has the mean loss since its last line; a resume knows only the steps since the checkpoint.
        log = [{name: value for name, value in line.items() if name != "loss"} for line in state["log_history"]]
        return state | {"best_model_checkpoint": best and Path(best).name, "log_history": log}
    if path.name == "adapter_config.json":  # PEFT writes a set, in the order of the process's hashes
        keys = json.loads(path.read_text())
        return {key: sorted(value) if isinstance(value, list) else value for key, value in keys.items()}
    if path.suffix == ".json":
        return without_times(json.loads(path.read_text()))
    if path.name == "config.yaml":
        return yaml.safe_load(path.read_text()) | {"output_dir": None, "resume_from_checkpoint": None}
    if path.suffix == ".jsonl":
        rows = [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        return [row for row in rows if row.get("event") != "resume"]
    if path.suffix == ".parquet":
        return pandas.read_parquet(path).to_dict("list")
    return path.read_bytes()


def files(run: Path) -> list[str]:
    """Files of a run, relative to it, without those set aside when it began again or went back to a checkpoint."""
    found = (str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.startswith((ABANDONED, EARLIER)))


def differences(out: Path, control: Path) -> tuple[list[str], int]:
    """How a run folder differs from that of an undisturbed run, one line a file, and how many files were compared."""
    every = files(out)
    mine, theirs = (
        [name for name in names if Path(name).name not in OF_THIS_PLACE] for names in (every, files(control))
    )
    lines = [f"{name} is there, and not after an undisturbed run" for name in mine if name not in theirs]
    lines += [f"{name} is missing" for name in theirs if name not in mine]
    run_id = recorded_run_id(out)
    ids = {name: saved_run_id((out / name).parent) for name in every if Path(name).name == RUN_ID_FILE}
    lines += [f"{name}: {found} instead of {run_id}, of env.json" for name, found in ids.items() if found != run_id]
    shared = [name for name in mine if name in theirs]
    for name in shared:
        try:
            found = first_difference(content(out / name), content(control / name))
        except Exception as error:  # a file that cannot be read is a finding like others
            found = f": {type(error).__name__}: {error}"
        if found:
            lines.append(f"{name}{found}")
    return lines, len(shared)
