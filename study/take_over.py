"""
`python -m study take-over SOURCE`: adds the finished runs of another branch, commit or checkout to the tables here.

The source may have its tables in `docs/study`, where they lay before the study had a folder of its own. What is here
stays as it is, so the command can be repeated; a source whose rows contradict those here is refused as a whole.
"""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from study.frozen import git
from study.matrix import RunKey
from study.tables import COLUMNS, CURE, FOLDER, RUNS, Tables, join_rows, read_folder
from trl_prorl.errors import InputError, RunError


EARLIER_FOLDER = Path("docs", "study")
PLACES = (FOLDER, EARLIER_FOLDER)
WANTED = f"{RUNS} in {FOLDER} or {EARLIER_FOLDER}"


def read_source(root: Path, source: str) -> Tables:
    """
    Read the tables of a source.

    Args:
        root (`Path`): The checkout in whose repository commits are looked up.
        source (`str`): A checkout's folder, or the name of a branch or a commit.

    Raises:
        InputError: There is no such source, it has no tables, or they are not of this version.
    """
    folder = _folder_of_tables(Path(source))
    if folder is not None:
        return _read(folder, source)
    try:
        commit = git(root, "rev-parse", "--verify", "--quiet", f"{source}^{{commit}}")
    except RunError:
        raise InputError(
            f"take-over {source}: neither a commit of this repository nor a checkout that has {WANTED}"
        ) from None
    with TemporaryDirectory() as aside:
        for place in PLACES:
            _export(root, commit, place, Path(aside))
        folder = _folder_of_tables(Path(aside))
        if folder is None:
            raise InputError(f"take-over {source}: the commit has no {WANTED}")
        return _read(folder, source)


def _export(root: Path, commit: str, place: Path, target: Path) -> None:
    """Write the tables that a commit has in a place below a folder."""
    for name in COLUMNS:
        file = f"{commit}:{place.as_posix()}/{name}"
        shown = subprocess.run(["git", "-C", str(root), "show", file], capture_output=True, check=False)
        if shown.returncode == 0:
            (target / place).mkdir(parents=True, exist_ok=True)
            (target / place / name).write_bytes(shown.stdout)


def _folder_of_tables(checkout: Path) -> Path | None:
    """Find the tables of a checkout; a folder without any, such as `runs`, may still be the name of a branch."""
    for place in PLACES:
        if (checkout / place / RUNS).is_file():
            return checkout / place
    return None


def _read(folder: Path, source: str) -> Tables:
    try:
        return read_folder(folder)
    except InputError as error:
        told = str(error).replace(f"{folder}/", "").removesuffix(f"; {CURE}")
        raise InputError(f"take-over {source}: {told}") from error


def new_runs(here: Tables, there: Tables) -> list[RunKey]:
    """List the runs of other tables that are not here."""
    return [RunKey(*key) for key in there.runs.index if key not in here.runs.index]


def merge(here: Tables, there: Tables) -> Tables:
    """
    Add to the tables here the runs of others that are missing, and the bases that these need.

    Raises:
        InputError: A run or a base of both has other rows there.
    """
    new = new_runs(here, there)
    wanted = {*new, *(key.base for key in new)}
    merged = {}
    for name, ours in vars(here).items():
        theirs = getattr(there, name)
        _check_shared_rows(name, ours, theirs)
        more = theirs[theirs.index.isin(list(wanted)) & ~theirs.index.isin(ours.index)]
        merged[name] = join_rows(ours, more)
    return Tables(**merged)


def _check_shared_rows(name: str, ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    one = ours[ours.index.isin(theirs.index)].sort_index(kind="stable")
    other = theirs[theirs.index.isin(ours.index)].sort_index(kind="stable")
    if one.equals(other):
        return
    for key in one.index.unique():
        if not one.loc[[key]].equals(other.loc[[key]]):
            raise InputError(
                f"{RunKey(*key)}: its rows of {name} are others there than here, and nothing was taken over. Drop the "
                "run on one side (python -m study drop), or leave out that source"
            )
