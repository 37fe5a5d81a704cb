"""Every stand-in for what TRL's tests take from the Hub, below one folder: `python stand_ins.py FOLDER`."""

import sys
from pathlib import Path

import stand_in_datasets
import stand_in_models


def hub(folder: Path) -> Path:
    """The Hub cache, where it is looked for if `HF_HOME` is `folder`."""
    return folder / "hub"


def data(folder: Path) -> Path:
    return folder / "stand_in_datasets"


def make_all(folder: Path) -> None:
    stand_in_models.make_all(hub(folder))
    stand_in_datasets.make_all(data(folder))


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
