"""A live trainer and a folder: the inputs of its next update out, the outputs of an engine in."""

import os
from itertools import zip_longest
from pathlib import Path

from ..errors import InputError
from .adam_state import live_state, named_parameters, set_state
from .next_update import EXPORT, NextUpdate, writing
from .schemas import STATE, UpdateInputs, UpdateOutputs
from .update_folder import read, read_sidecar


def export_update(trainer, folder: str | os.PathLike) -> NextUpdate:
    """
    Export the next whole update of a trainer: [`Rollout`] and [`UpdateInputs`].

    Call it before `trainer.train()`, or in a callback: in `on_step_begin`, it is the update of that step, or, if that
    step is left out (`nonfinite: skip`, an overflow in fp16), the next one that is made. The folder appears when the
    trainer makes the update. The training itself does not change.

    Args:
        trainer ([`ProRLTrainer`]): LoRA or full, with torch's Adam or AdamW, in one process.
        folder (`str` or `os.PathLike`): Must not exist.

    Returns:
        [`NextUpdate`]: Its `done` says whether the folder is there.

    Raises:
        [`~trl_prorl.errors.InputError`]: The folder exists or cannot be made, another export waits, or the trainer's
            state is not exchanged.

    Example:

    ```python
    >>> class EveryUpdate(TrainerCallback):
    ...     export = None
    ...     def on_step_begin(self, args, state, control, **kwargs):
    ...         if self.export is None or self.export.done:
    ...             self.export = export_update(trainer, f"exchange/{state.global_step + 1:05d}")
    ```
    """
    folder = Path(folder)
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder} exists, and an export overwrites nothing: give a folder that does not exist.")
    waiting = trainer.parts.get(EXPORT)
    if waiting is not None:
        raise InputError(f"{waiting.folder} is still waiting for its update: export one update at a time.")
    if trainer.accelerator.num_processes > 1 or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise InputError("export_update needs the complete state in one process: train with one process, unsharded.")
    if trainer.args.elastic_reset_every:
        raise InputError("elastic_reset_every changes weights between updates, which no schema describes: remove it.")
    if trainer.args.corrects_sampler:
        raise InputError(
            "vllm_importance_sampling_correction: true with use_vllm multiplies the loss by ratios that no schema "
            "describes: set vllm_importance_sampling_correction: false."
        )
    with writing(folder):  # now, and not after the minutes of a rollout
        pass
    export = NextUpdate(trainer, folder)
    trainer.parts.add_first(EXPORT, export)
    trainer.add_callback(export)
    return export


def import_update(trainer, folder: str | os.PathLike) -> UpdateOutputs:
    """
    Set a trainer's parameters and Adam state to the outputs of an engine: everything, or nothing.

    Call it between two updates. To let an engine make an update in the trainer's place, call it in
    `on_optimizer_step`, after torch's own update, which it overwrites. The learning-rate schedule goes on by itself.

    Args:
        trainer ([`ProRLTrainer`]): It has an optimizer, so `train` has begun.
        folder (`str` or `os.PathLike`): With the outputs. If there are inputs too, they must be those
            of the outputs.

    Returns:
        [`UpdateOutputs`]: As read.

    Raises:
        [`~trl_prorl.errors.InputError`]: The files are not whole, not of this trainer, or, while it trains, of another
            update than its last or its next one; the tensor is named, and nothing has changed.
    """
    folder = Path(folder)
    outputs = read(UpdateOutputs, folder)
    if (folder / f"{UpdateInputs.schema}.json").exists():
        if outputs.inputs != read_sidecar(UpdateInputs, folder)["sha256"]:
            raise InputError(
                f"{folder}: the outputs belong to other inputs than those in this folder. Compute them again."
            )
    if trainer.optimizer is None:
        raise InputError("The trainer has no optimizer yet: import in a callback, after `train` has started.")
    done = trainer.state.global_step
    if trainer.is_in_train and done > 0 and outputs.update not in (done, done + 1):
        raise InputError(
            f"{folder}: the outputs are of update {outputs.update}, and the trainer has made {done}: import those of "
            f"{done} or {done + 1}. A trainer that has made no update accepts any."
        )
    parameters = named_parameters(trainer.optimizer, trainer.accelerator.unwrap_model(trainer.model))
    for theirs, ours in zip_longest(outputs.names, parameters):
        if theirs != ours:
            raise InputError(f"{folder}: tensor parameters/{theirs or ours} is {theirs} there and {ours} here.")
    for kind, held in live_state(trainer.optimizer, parameters).items():
        for name, ours in held.items():
            theirs = getattr(outputs, kind)[name]
            if (theirs.dtype, theirs.shape) != (ours.dtype, ours.shape):
                raise InputError(
                    f"{folder}: tensor {kind}/{name} is {theirs.dtype} {list(theirs.shape)}, and the trainer's is "
                    f"{ours.dtype} {list(ours.shape)}."
                )
    set_state(trainer.optimizer, parameters, {kind: getattr(outputs, kind) for kind in STATE})
    return outputs
