"""Two run folders that should be the same run: every tensor, every line of the record, all but times and memory."""

import json
import operator
from pathlib import Path
from typing import Any

import pandas
import torch
import yaml
from run_record import read_rows, without_times
from safetensors.torch import load_file
from torch.utils._pytree import keystr, tree_flatten_with_path

from trl_prorl.run.log_files import RUN_ID_FILE, read_json, recorded_run_id


ABANDONED = "abandoned-"  # begins the names of the checkpoints behind which a run has gone back
# Paths and times stand in these, and nothing that a resume reads.
OF_THIS_PLACE = frozenset(["README.md", "training_args.bin", "manifest.json", "env.json", RUN_ID_FILE])


def is_empty(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple)) and not value


def by_place(value: Any) -> dict[str, Any]:
    """The values in a value of any nesting, by their places; one that is empty has a place too."""
    pairs, _ = tree_flatten_with_path(value, is_leaf=is_empty)
    return {keystr(place): leaf for place, leaf in pairs}


def first_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """Where the values of two files first differ, or `None`."""
    if others := sorted(mine.keys() ^ theirs.keys()):
        return f"{', '.join(others[:5])}: in one of the two only"
    for place, value in mine.items():
        other = theirs[place]
        same = torch.equal if isinstance(value, torch.Tensor) else operator.eq
        if type(value) is not type(other) or not same(value, other):
            return f"{place}: {value!r:.300} instead of {other!r:.300}"
    return None


def content(path: Path) -> Any:
    """What a file says, without what may differ between two places and times."""
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)
    if path.suffix == ".parquet":
        return pandas.read_parquet(path).to_dict("list")
    if path.name == "config.yaml":
        return yaml.safe_load(path.read_text()) | {"output_dir": None, "resume_from_checkpoint": None}
    if path.suffix == ".jsonl":
        return [row for row in without_times(read_rows(path.parent, path.name)) if row.get("event") != "resume"]
    if path.suffix != ".json":
        return path.read_bytes()
    keys = without_times(json.loads(path.read_text()))
    if path.name == "trainer_state.json":
        # A path; of a checkpoint that has been removed since, a resume may know no more than its step.
        best = path.parent.with_name(Path(keys["best_model_checkpoint"] or "none").name)
        keys["best_model_checkpoint"] = best.name if best.is_dir() else None
        # Trainer's own log has the mean loss since its last line; a resume knows only the steps since the checkpoint.
        for line in keys["log_history"]:
            line.pop("loss", None)
    if path.name == "adapter_config.json":  # PEFT writes a set, in the order of the process's hashes
        keys["target_modules"] = sorted(keys["target_modules"])
    return keys


def files(run: Path) -> set[str]:
    """Files of a run, relative to it, without those that it abandoned."""
    found = (str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    return {name for name in found if not name.startswith(ABANDONED)}


def differences(out: Path, control: Path) -> list[str]:
    """How a run folder differs from that of an undisturbed run, one line a file."""
    mine = files(out)
    theirs = files(control)
    lines = [f"{name}: in one of the two only" for name in mine ^ theirs if Path(name).name not in OF_THIS_PLACE]
    run_id = recorded_run_id(out)
    for name in sorted(mine):
        if Path(name).name == RUN_ID_FILE and read_json(out / name)["run_id"] != run_id:
            lines.append(f"{name}: not the id in env.json, {run_id}")
    for name in sorted(mine & theirs):
        if Path(name).name in OF_THIS_PLACE:
            continue
        try:
            found = first_difference(by_place(content(out / name)), by_place(content(control / name)))
        except Exception as error:  # a file that cannot be read is a finding like others
            found = f"{type(error).__name__}: {error}"
        if found:
            lines.append(f"{name}: {found}")
    return lines
