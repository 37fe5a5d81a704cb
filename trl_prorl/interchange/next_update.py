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

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback

from ..anchors import OldPolicyAnchor, ReferenceAnchor
from ..errors import InputError
from ..kl import completion_mask
from ..parts import MicroBatch, Part
from ..run_files import GROWTH, RESET
from .adam_state import Parameters, State, describe_groups, named_parameters, state_on_cpu
from .schemas import Rollout, UpdateInputs
from .update_folder import write


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
        self._before: State | None = None
        self._rows: list[dict[str, torch.Tensor]] = []
        self._generations: list[int] = []  # of the rows; those of 0 were sampled before this step
        self._boundaries = 0
        self._gradients: dict[str, torch.Tensor] = {}
        self._norm = math.nan
        self._events: dict[str, dict] = {}

    def _parameters(self) -> Parameters:
        return named_parameters(self.trainer.optimizer, self.trainer.accelerator.unwrap_model(self.trainer.model))

    # The moments of an update, in order.

    def on_step_begin(self, args, state, control, **kwargs):
        self._forget()
        self._parameters()  # refuses an optimizer that is not understood
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
            self._before = state_on_cpu(self.trainer.optimizer, self._parameters(), copy=True)

    def event(self, event: dict[str, Any]) -> None:
        name = event["event"]
        if self.begun and name in (GROWTH, RESET):
            if name in self._events:
                raise InputError(f"A second {name} in one update cannot be exported: let a step have one generation.")
            self._events[name] = event

    def micro_batch(self, micro_batch: MicroBatch) -> None:
        if self.begun:
            self._rows.append(dict(micro_batch.batch))
            self._generations.append(self._boundaries)

    def gradients(self, model) -> None:
        if not self.begun:
            return
        scaler = self.trainer.accelerator.scaler
        self._gradients = {}
        for name, param in self._parameters().items():
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
        parameters = self._parameters()
        if all(param.grad is None for param in parameters.values()) or not math.isfinite(self._norm):
            self._forget()  # an update that is left out (`nonfinite: skip`, the AMP scaler): the next one is exported
            return
        try:
            rollout = self._rollout()
            inputs = self._inputs(parameters)
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
        common = set.intersection(*map(set, self._rows))
        columns = {key: [rows[key] for rows in self._rows] for key in common}
        optional = {"logp_old": OldPolicyAnchor.column, "logp_ref": ReferenceAnchor.column}
        return Rollout(
            prompt_ids=_stack(columns["prompt_ids"], side="left"),
            prompt_mask=_stack(columns["prompt_mask"], side="left"),
            completion_ids=_stack(columns["completion_ids"]),
            completion_mask=_stack([completion_mask(rows) for rows in self._rows]),
            advantages=torch.cat(columns["advantages"]),
            rewards=torch.cat(columns["rewards"]),
            group=_number_groups(columns["group"], self._generations),
            update=self.trainer.state.global_step + 1,
            reward_functions=list(self.trainer.reward_func_names),
            **{name: _stack(columns[key]) for name, key in optional.items() if key in columns},
        )

    def _inputs(self, parameters: Parameters) -> UpdateInputs:
        trainer = self.trainer
        args = trainer.args
        limit = args.max_grad_norm
        optimizer = trainer.optimizer
        rate_factor = trainer.resets.rate_factor
        before = self._before or state_on_cpu(optimizer, parameters, copy=False)
        growth = None
        new_rows = {}
        if GROWTH in self._events:
            growth = {"old_rank": self._events[GROWTH]["rank_before"], "new_rank": self._events[GROWTH]["rank"]}
            for name, param in parameters.items():
                if "lora_A" in name.split("."):
                    new_rows[name] = param.detach()[growth["old_rank"] :]
        reset = None
        if RESET in self._events:
            reset = {
                "mode": self._events[RESET]["optimizer_reset"],
                "alpha": float(args.optimizer_reset_alpha),
                "restarts_schedule": bool(args.restarts_schedule),
                "rewarmup_steps": int(args.optimizer_reset_rewarmup_steps),
            }
        schedule = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
        scaler = trainer.accelerator.scaler
        return UpdateInputs(
            **before,
            gradients=self._gradients,
            new_rows=new_rows,
            names=list(parameters),
            groups=describe_groups(optimizer, parameters, rate_factor),
            clip_norm=float(limit) if 0.0 < limit < math.inf else 0.0,
            grad_norm=self._norm,
            update=trainer.state.global_step + 1,
            growth=growth,
            reset=reset,
            schedule={**_plain(schedule.state_dict()), "rate_factor": rate_factor},
            scaler=None if scaler is None else _plain(scaler.state_dict()),
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


def _stack(parts: list[torch.Tensor], side: str = "right") -> torch.Tensor:
    """Stack rows of micro-batches; shorter ones get zeros on that side."""
    rows = [row for part in parts for row in part]
    return pad_sequence(rows, batch_first=True, padding_side=side)


def _number_groups(groups: list[torch.Tensor], generations: list[int]) -> torch.Tensor:
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
    plain = {}
    for key, held in state.items():
        try:
            json.dumps(held, allow_nan=False)
        except (
            TypeError,
            ValueError,
        ):  # such as infinity, the first best value of a schedule that waits for a plateau
            continue
        plain[key] = held
    return plain
