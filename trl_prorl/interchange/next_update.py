"""
What an export takes of a trainer's next whole update, each at the moment at which it is what the schema says:

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
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import TrainerCallback

from ..anchors import OldPolicyAnchor, ReferenceAnchor
from ..errors import InputError
from ..kl import completion_mask
from ..optimizer import inner_of
from ..parts import MicroBatch, Part
from .adam_state import groups_of, named_parameters, state_of
from .files import write
from .schemas import Rollout, UpdateInputs, grows


EXPORT = "export"  # its name among the parts


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
            with writing(self.folder) as aside:
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
                raise InputError(f"tensor gradients/{name} belongs to no parameter of the optimizer.")
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
def writing(folder: Path) -> Iterator[Path]:
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
            f"{folder} could not be written, and nothing of it is left ({error}): give a new folder with enough "
            "space and write permission."
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
    Join the group numbers of micro-batches; those of a later generation continue from those of the generation before.
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
