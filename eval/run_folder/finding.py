"""Run folders as the command line names them: paths and patterns, each run once, each with a name of its own."""

import argparse
import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trl_prorl.errors import InputError
from trl_prorl.eval.run_folder.reading import load_config, load_run


if TYPE_CHECKING:
    from trl_prorl.eval.run_folder.run import Run


def add_run_option(
    parser: argparse.ArgumentParser, help: str = "run folders; may be repeated", type: type = Path
) -> None:
    """
    `--run RUN`, which may be repeated, or `--runs RUN RUN`: either spelling takes one or several, in `args.runs`.
    """
    parser.add_argument(
        "--run", "--runs", dest="runs", metavar="RUN", action="extend", nargs="+", required=True, type=type, help=help
    )


def find_run_folders(patterns: list[str | Path], named: bool = False) -> list[Path]:
    """
    The run folders among paths and glob patterns, each once, in the given order.

    A shell's `runs/demo/*` also names files and other folders, an earlier report for one; they are left out.

    Args:
        patterns (`list[str]` or `list[Path]`): Paths and patterns.
        named (`bool`, *optional*, defaults to `False`): Whether a folder that is named outright has to be a run's.

    Raises:
        InputError: If a path does not exist, a pattern matches nothing, or no run folder remains.
    """
    found = {}
    for pattern in map(str, patterns):
        matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
        if not matches and glob.has_magic(pattern):
            raise InputError(f"--runs '{pattern}' matches nothing; give run folders or a glob of them")
        if not matches or (named and matches == [pattern] and os.path.isdir(pattern)):
            load_config(pattern)
            found.setdefault(Path(pattern).resolve(), Path(pattern))
        for match in matches:
            if (Path(match) / "metrics.jsonl").is_file():
                found.setdefault(Path(match).resolve(), Path(match))
    if not found:
        raise InputError(
            f"--runs {' '.join(patterns)}: no run folder among them; a run folder holds config.yaml, env.json and "
            "metrics.jsonl"
        )
    return list(found.values())


def common_parent(folders: list[Path]) -> Path:
    """The deepest folder that holds all run folders."""
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders]))


def only_parent(folders: list[Path]) -> Path:
    """
    The folder in which all run folders lie.

    Raises:
        InputError: If there are several; what they have in common may be anybody's home, or `/`.
    """
    parents = list(dict.fromkeys(folder.resolve().parent for folder in folders))
    if len(parents) > 1:
        raise InputError(
            f"--out is missing: the runs lie in {len(parents)} folders ('{parents[0]}', '{parents[1]}'"
            f"{', …' if len(parents) > 2 else ''}); give the folder that the report goes to"
        )
    return parents[0]


def load_runs(folders: list[Path]) -> "list[Run]":
    """The runs in the order of the report, each named by its path below the common parent."""
    from trl_prorl.eval.run_folder.run import sort_runs  # pandas

    parent = common_parent(folders)
    return sort_runs([load_run(folder, folder.resolve().relative_to(parent).as_posix()) for folder in folders])
