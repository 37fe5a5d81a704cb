"""
A live trainer and a folder: the inputs of its next update out, the outputs of an engine in.

`export_update` announces an export. The inputs are then taken while the trainer makes its next whole update, each at
the moment at which it is what the schema says:

| moment | taken |
|---|---|
| a step begins | nothing yet; from here on everything counts |
| a generation is about to begin, so weights may change | parameters and Adam's state, before growth and reset |
| growth, a reset | what they do |
| a micro-batch has its loss | its rows, and of which generation they are |
| the gradients are complete, and not clipped yet | gradients |
| their norm is known | the norm before clipping |
| the optimizer is about to step | learning rates; parameters and state, if no generation was in this step; files |
"""

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import TrainerCallback

from ..errors import InputError
from ..objective.anchors import OldPolicyAnchor, ReferenceAnchor
from ..objective.masks import completion_mask
from ..parts import MicroBatch, Part
from ..resets.optimizer_state import inner_of
from ..resets.treatments import factors
from .files import read, read_sidecar, write
from .schemas import STATE, Rollout, UpdateInputs, UpdateOutputs, grows


EXPORT = "export"  # its name among the parts
MOMENTS = ("exp_avg", "exp_avg_sq")


class NextUpdate(Part, TrainerCallback):
    """
    Takes the rollout and the inputs of the next update, and writes them when they are complete.

    Args:
        trainer ([`ProRLTrainer`]): This object is one of its parts until the update is written.
        folder (`Path`): Made under its name when everything is written.

    Attributes:
        done (`bool`): Whether the folder is there.
    """

    def __init__(self, trainer, folder: Path):
        self.trainer = trainer
        self.folder = folder
        self.done = False
        self._forget()

    def _forget(self) -> None:
        self.begun = False
        self._before: dict[str, dict[str, torch.Tensor]] | None = None
        self._rows: list[dict[str, torch.Tensor]] = []
        self._generations: list[int] = []  # of the rows; those of 0 were sampled before this step
        self._boundaries = 0
        self._gradients: dict[str, torch.Tensor] = {}
        self._norm = math.nan
        self._events: dict[str, dict] = {}

    def _model(self) -> torch.nn.Module:
        return self.trainer.accelerator.unwrap_model(self.trainer.model)

    # The moments of an update, in order.

    def on_step_begin(self, args, state, control, **kwargs):
        self._forget()
        named_parameters(self.trainer.optimizer, self._model())  # refuses an optimizer that is not understood
        self.begun = True

    def boundary(self, step: int) -> None:
        """
        Take weights and state, which may change now, and are still those of the last update: this part is called
        first.
        """
        if not self.begun:
            return
        self._boundaries += 1
        if self._before is None:
            optimizer = self.trainer.optimizer
            self._before = state_of(optimizer, named_parameters(optimizer, self._model()), copy=True)

    def event(self, event: dict[str, Any]) -> None:
        name = event["event"]
        if self.begun and name in ("growth", "reset"):
            if name in self._events:
                raise InputError(f"A second {name} in one update cannot be exported: let a step have one generation.")
            self._events[name] = dict(event)

    def micro_batch(self, micro_batch: MicroBatch) -> None:
        if self.begun:
            rows = {key: value for key, value in micro_batch.batch.items() if isinstance(value, torch.Tensor)}
            self._rows.append(rows)
            self._generations.append(self._boundaries)

    def gradients(self, model) -> None:
        if not self.begun:
            return
        scaler = self.trainer.accelerator.scaler
        self._gradients = {}
        for name, param in self._model().named_parameters():
            if param.grad is not None:
                gradient = param.grad.detach().to("cpu", copy=True)
                if scaler is not None:
                    gradient.mul_(1.0 / scaler.get_scale())
                self._gradients[name] = gradient

    def before_update(self, step: int, norm: float, rate: float) -> None:
        self._norm = float(norm)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if not self.begun:
            return
        params = [param for group in inner_of(self.trainer.optimizer).param_groups for param in group["params"]]
        if all(param.grad is None for param in params) or not math.isfinite(self._norm):
            self._forget()  # an update that is left out (`nonfinite: skip`, the AMP scaler): the next one is exported
            return
        try:
            rollout = self._rollout()
            inputs = self._inputs()
            with _writing(self.folder) as aside:
                write(rollout, aside)
                write(inputs, aside)
                os.rename(aside, self.folder)
            self.done = True
        finally:
            self._leave()

    def _leave(self) -> None:
        """Let another export be announced: nothing waits any more."""
        self._forget()
        del self.trainer.parts[EXPORT]
        handler = self.trainer.callback_handler  # a new list, because the old one is being walked
        handler.callbacks = [callback for callback in handler.callbacks if callback is not self]

    # The schemas.

    def _rollout(self) -> Rollout:
        column = {key: [rows[key] for rows in self._rows if key in rows] for key in self._rows[0]}
        old = column.get(OldPolicyAnchor.column)
        ref = column.get(ReferenceAnchor.column)
        return Rollout(
            prompt_ids=_stacked(column["prompt_ids"], left=True),
            prompt_mask=_stacked(column["prompt_mask"], left=True),
            completion_ids=_stacked(column["completion_ids"]),
            completion_mask=_stacked([completion_mask(rows) for rows in self._rows]),
            advantages=torch.cat(column["advantages"]),
            rewards=torch.cat(column["rewards"]),
            group=_numbered(column["group"], self._generations),
            update=self.trainer.state.global_step + 1,
            reward_functions=list(self.trainer.reward_func_names),
            logp_old=_stacked(old) if old is not None else None,
            logp_ref=_stacked(ref) if ref is not None else None,
        )

    def _inputs(self) -> UpdateInputs:
        trainer = self.trainer
        model = self._model()
        optimizer = trainer.optimizer
        rate = trainer.resets.rate_factor
        parameters = named_parameters(optimizer, model)
        for name in self._gradients:
            if name not in parameters:
                raise InputError(f"tensor gradients/{name} is of no parameter of the optimizer.")
        before = self._before if self._before is not None else state_of(optimizer, parameters)
        growth = self._events.get("growth")
        reset = self._events.get("reset")
        schedule = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
        scaler = trainer.accelerator.scaler
        return UpdateInputs(
            **before,
            gradients=self._gradients,
            new_rows=_new_rows(before["parameters"], parameters) if growth is not None else {},
            names=list(parameters),
            groups=[{**group, "lr": group["lr"] * rate} for group in groups_of(optimizer, model)],
            clip_norm=float(trainer.args.max_grad_norm or 0.0),
            grad_norm=self._norm,
            update=trainer.state.global_step + 1,
            growth={"old_rank": growth["rank_before"], "new_rank": growth["rank"]} if growth is not None else None,
            reset=_reset(trainer.args, reset["optimizer_reset"]) if reset is not None else None,
            schedule={**_plain(schedule.state_dict()), "rate_factor": rate},
            scaler=_plain(scaler.state_dict()) if scaler is not None else None,
        )


@contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    """
    Make a folder in which an export is written in this context before it gets its name.

    Raises:
        `InputError`: It cannot be written.
    """
    aside = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{folder} could not be written, and nothing of it is left ({error}): give a new folder, where there is "
            "room and permission to write."
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _reset(args, mode: str) -> dict[str, Any]:
    return {
        "mode": mode,
        "alpha": float(args.optimizer_reset_alpha),
        "restarts_schedule": bool(args.restarts_schedule),
        "rewarmup_steps": int(args.optimizer_reset_rewarmup_steps),
    }


def _stacked(parts: list[torch.Tensor], left: bool = False) -> torch.Tensor:
    """Stack rows of micro-batches; shorter ones get zeros, on the left or on the right."""
    width = max(part.shape[1] for part in parts)
    padded = []
    for part in parts:
        missing = width - part.shape[1]
        sides = (missing, 0) if left else (0, missing)
        padded.append(torch.nn.functional.pad(part, sides))
    return torch.cat(padded)


def _numbered(groups: list[torch.Tensor], generations: list[int]) -> torch.Tensor:
    """
    Join the group numbers of micro-batches; those of a later generation go on from those of the generation before.
    """
    found = []
    start = 0
    for place, (group, generation) in enumerate(zip(groups, generations, strict=True)):
        if place and generation != generations[place - 1]:
            start = 1 + max(int(earlier.max()) for earlier in found)
        found.append(group + start)
    return torch.cat(found)


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Select the part of a state that JSON can hold."""

    def is_plain(held: Any) -> bool:
        if isinstance(held, list | tuple):
            return all(map(is_plain, held))
        if isinstance(held, float):
            return math.isfinite(held)  # a schedule that waits for a plateau begins with infinity as its best
        return held is None or isinstance(held, bool | int | str)

    return {key: held for key, held in state.items() if is_plain(held)}


def _new_rows(old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Select the rows that a growth has appended to each A."""
    rows = {}
    for name, param in new.items():
        if grows(name) == 0:
            first = len(old[name])
            if len(param) > first:
                rows[name] = param.detach()[first:].to("cpu", copy=True)
    return rows


# ------------------------------------------------------ an Adam optimizer by the names of its parameters


def named_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """
    Map the optimizer's parameters by their names in the model, in the order of its groups.

    Raises:
        [`~trl_prorl.errors.InputError`]: The optimizer is not torch's Adam or AdamW, or has a parameter that is not
            the model's.
    """
    inner = inner_of(optimizer)
    if type(inner) not in (torch.optim.Adam, torch.optim.AdamW):
        raise InputError(
            f"optimizer {type(inner).__module__}.{type(inner).__name__}: only the state of torch's Adam and AdamW is "
            "exchanged. Set optim: adamw_torch or adamw_torch_fused."
        )
    for key in ("amsgrad", "maximize"):
        if any(group.get(key) for group in inner.param_groups):
            raise InputError(f"optimizer {type(inner).__name__} with {key}=True is not exchanged: leave it out.")
    names = {id(param): name for name, param in model.named_parameters()}
    found = {}
    for group in inner.param_groups:
        for param in group["params"]:
            if id(param) not in names:
                raise InputError("The optimizer holds a parameter that is not the model's (sharded, or replaced).")
            found[names[id(param)]] = param
    return found


def groups_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[dict[str, Any]]:
    """Describe the optimizer's groups as [`~trl_prorl.interchange.schemas.UpdateInputs`] has them."""
    inner = inner_of(optimizer)
    found = []
    names = {id(param): name for name, param in model.named_parameters()}
    for group in inner.param_groups:
        beta1, beta2 = group["betas"]
        described = {
            "lr": float(group["lr"]),
            "eps": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "decoupled": isinstance(inner, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay")),
            "parameters": [names[id(param)] for param in group["params"]],
        }
        found.append(described)
    return found


def live_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, dict[str, torch.Tensor]]:
    """
    Return the live tensors by name: `parameters`, `exp_avg`, `exp_avg_sq`, `steps` of shape `(1,)`.

    The state of a parameter without an update is zeros.

    Args:
        optimizer (`torch.optim.Optimizer`): torch's Adam or AdamW, or Accelerate's wrapper of one.
        parameters (`Mapping[str, torch.nn.Parameter]`): From `named_parameters`.
    """
    inner = inner_of(optimizer)
    found: dict[str, dict[str, torch.Tensor]] = {"parameters": {}, "exp_avg": {}, "exp_avg_sq": {}, "steps": {}}
    for name, param in parameters.items():
        state = inner.state.get(param, {})
        found["parameters"][name] = param.detach()
        for key in MOMENTS:
            zeros = param.detach().new_zeros(()).expand(param.shape)
            found[key][name] = state.get(key, zeros)
        found["steps"][name] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32).reshape(1)
    return found


def state_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter], copy: bool = False
) -> dict[str, dict[str, torch.Tensor]]:
    """Copy `live_state` to the CPU; `copy` if the tensors must outlive the next update."""
    live = live_state(optimizer, parameters)
    found = {}
    for kind, tensors in live.items():
        found[kind] = {name: tensor.to("cpu", copy=copy) for name, tensor in tensors.items()}
    return found


@torch.no_grad()
def set_state(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    state: Mapping[str, Mapping[str, torch.Tensor]],
) -> None:
    """
    Set parameters, in place, and m, v and t.

    Args:
        optimizer (`torch.optim.Optimizer`): As in `live_state`.
        parameters (`Mapping[str, torch.nn.Parameter]`): As in `live_state`.
        state (`Mapping[str, Mapping[str, torch.Tensor]]`): As `state_of` returns it, in the shapes of the parameters.
    """
    inner = inner_of(optimizer)
    entries = {}
    for place, name in enumerate(parameters):
        entries[place] = {
            "step": state["steps"][name].clone().reshape(()),
            "exp_avg": state["exp_avg"][name].clone(),
            "exp_avg_sq": state["exp_avg_sq"][name].clone(),
        }
    inner.load_state_dict({**inner.state_dict(), "state": entries})
    for name, param in parameters.items():
        param.copy_(state["parameters"][name])


# -------------------------------------------------------------------------------------------------------- for users


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
        raise InputError(f"{folder} exists, and an export replaces nothing: give a folder that does not exist.")
    waiting = trainer.parts.get(EXPORT)
    if waiting is not None:
        raise InputError(f"{waiting.folder} still waits for its update: export one update at a time.")
    if trainer.accelerator.num_processes > 1 or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise InputError("export_update needs the whole state in one process: train with one process, unsharded.")
    try:
        factors(trainer.args.optimizer_reset, trainer.args.optimizer_reset_alpha)
    except ValueError as error:
        raise InputError(str(error)) from None
    if trainer.args.elastic_reset_every:
        raise InputError("elastic_reset_every changes weights between updates, which no schema holds: leave it out.")
    with _writing(folder):  # now, and not after the minutes of a rollout
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
            raise InputError(f"{folder}: the outputs are of other inputs than those beside them. Compute them again.")
    if trainer.optimizer is None:
        raise InputError("The trainer has no optimizer yet: import in a callback, once `train` has begun.")
    done = trainer.state.global_step
    if trainer.is_in_train and done > 0 and outputs.update not in (done, done + 1):
        raise InputError(
            f"{folder}: the outputs are of update {outputs.update}, and the trainer has made {done}: import those of "
            f"{done} or {done + 1}. A run that has made no update takes any."
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
