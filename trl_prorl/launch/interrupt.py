"""What a run that Ctrl-C has ended leaves behind. How a process ends is in `trl_prorl/interrupt.py`."""

import os
from pathlib import Path

from ..checkpoint.files import find_newest_checkpoint
from ..interrupt import NOTHING_BEGUN


BY_COMMAND = "Go on with the same command and --resume_from_checkpoint True"
BY_SCRIPT = "Go on with train(resume_from_checkpoint=True)"


def what_is_kept(output_dir: str | os.PathLike, begun: bool, model: Path | None = None) -> str:
    """
    Describe what an interrupted run of a recipe has left behind, in one line.

    Args:
        output_dir (`str` or `os.PathLike`): Its folder.
        begun (`bool`): Whether this process began a step.
        model (`Path`, *optional*): A file of the model, if the run had come to its end.
    """
    checkpoint, _ = find_newest_checkpoint(output_dir, content=False)
    if checkpoint is not None:
        return f"{checkpoint} and the record up to it are kept. {BY_COMMAND}."
    if model:
        return f"the run had come to its end; its model and its record are in {Path(output_dir)}."
    if begun:
        return (
            f"the record in {Path(output_dir)} is kept, and there is no checkpoint yet. {BY_COMMAND}, which begins "
            "again at step 0."
        )
    return NOTHING_BEGUN


def what_a_script_keeps(output_dir: str | os.PathLike, begun: bool) -> str:
    """Describe what an interrupted script of a user's has left behind; see [`what_is_kept`]."""
    checkpoint, _ = find_newest_checkpoint(output_dir, content=False)
    if checkpoint is not None:
        return f"{checkpoint} and the record up to it are kept. {BY_SCRIPT}."
    if begun:
        return (
            f"the record in {Path(output_dir)} is kept, and there is no checkpoint yet. train() begins again at step "
            "0, and sets it aside."
        )
    return NOTHING_BEGUN
