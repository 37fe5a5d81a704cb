"""Which run a model belongs to: the id of a run is in its log files and next to all weights that it saves."""

import json
import os
from pathlib import Path

from ..files import replaced


RUN_ID_FILE = "prorl_run.json"
RUN_ID = "run_id"  # its key there, in `env.json`, and in what an evaluation leaves in the run folder


def write_run_id(folder: str | os.PathLike, run_id: str | None) -> None:
    """Return which run the weights in a folder belong to; `None`: to no run, whatever was there before."""
    path = Path(folder) / RUN_ID_FILE
    if run_id is None:
        path.unlink(missing_ok=True)
    else:
        with replaced(path) as aside:
            aside.write_text(json.dumps({RUN_ID: run_id}) + "\n")


def saved_run_id(folder: str | os.PathLike) -> str | None:
    """Return the id of the run that saved the weights in a folder; `None` if nothing there says so."""
    return run_id_in(Path(folder) / RUN_ID_FILE)


def recorded_run_id(run_dir: str | os.PathLike) -> str | None:
    """Return the id of the run whose record a folder holds; `None` if there is none."""
    return run_id_in(Path(run_dir) / "env.json")


def is_of_other_run(content: dict, run_id: str | None) -> bool:
    """Return whether an evaluation says of itself that it is of another run than this one."""
    return None not in (content.get(RUN_ID), run_id) and content[RUN_ID] != run_id


def run_id_in(path: Path) -> str | None:
    """Return the `run_id` of a JSON file; `None` if there is none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    found = content.get(RUN_ID) if isinstance(content, dict) else None
    return found if isinstance(found, str) else None
