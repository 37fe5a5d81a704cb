"""
The study's bases: models of 0.7 million parameters, each in a folder `study/bases/TASK-SEED`. Two more, of seed 0,
come with the package, because the demo trains them. At commits before the study had a folder of its own, all of them
do.
"""

from pathlib import Path

from trl_prorl.embedded.shipped import WEIGHTS, weights_sha256


FOLDER = Path("study", "bases")  # below the checkout
OF_THE_PACKAGE = Path("trl_prorl", "embedded", "models")


def is_base(model: str) -> bool:
    """Tell a base of the study, `study/bases/TASK-SEED`, from any other `model_name_or_path`."""
    return Path(model).parent == FOLDER


def base_folder(code: Path, model: str) -> Path | None:
    """Find the folder of a base of the study in a checkout; `None` if it is not there."""
    name = Path(model).name
    for place in (FOLDER, OF_THE_PACKAGE):
        folder = code / place / name
        if (folder / WEIGHTS).is_file():
            return folder
    return None


def model_of(code: Path, model: str) -> str:
    """
    Return the `model_name_or_path` by which the code of a checkout loads a model of the matrix: of a base of the study
    its folder, or its name `embedded:TASK:SEED` where it comes with the package; any other model as it is.
    """
    if not is_base(model):
        return model
    folder = base_folder(code, model)
    if folder is not None and folder.parent == code / OF_THE_PACKAGE:
        task, _, seed = folder.name.rpartition("-")
        return f"embedded:{task}:{seed}"
    return str(code / model)


def base_hash(code: Path, model: str) -> str | None:
    """SHA-256 of the weights of a model of the matrix; `None` if it is not there."""
    if not is_base(model):
        return weights_sha256(model)
    folder = base_folder(code, model)
    return None if folder is None else weights_sha256(str(folder))
