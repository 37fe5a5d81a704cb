"""
Elastic Reset (Noukhovitch et al. 2023, arXiv 2312.07551): policy ← its moving average, average ← the initial policy.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..parts import Part, make_event
from ..run_files import ELASTIC
from ..weights import copy_tensors


ELASTIC_FILE = "elastic.safetensors"


class ElasticAverage:
    """
    Holds the exponential moving average of a policy's trained parameters, and their initial values.

        average ← η · average + (1 − η) · policy     at every optimizer step, with the decay η

    These are two copies, on the parameters' device.

    Args:
        parameters (`Mapping[str, torch.nn.Parameter]`): The trained parameters by name.
        decay (`float`): η.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], decay: float):
        self.parameters = dict(parameters)
        self.decay = decay
        self.initial = {name: param.detach().clone() for name, param in self.parameters.items()}
        # In fp32, because steps of 1 − η are lost in bf16.
        self.average = {name: param.detach().float().clone() for name, param in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in one optimizer step."""
        for name, param in self.parameters.items():
            self.average[name].lerp_(param.detach().float(), 1.0 - self.decay)

    @torch.no_grad()
    def reset(self) -> None:
        """Reset in place: policy ← average, average ← initial."""
        for name, param in self.parameters.items():
            param.copy_(self.average[name])
            self.average[name].copy_(self.initial[name])

    def save(self, folder: Path) -> None:
        """Write both copies into a checkpoint."""
        save_file(self._tensors(), folder / ELASTIC_FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """
        Read both copies of a checkpoint.

        Raises:
            `ValueError`: The checkpoint has none.
        """
        path = folder / ELASTIC_FILE
        if not path.exists():
            raise ValueError(f"{folder} has no {ELASTIC_FILE}: the average of this run cannot be restored.")
        copy_tensors(path, self._tensors())

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return both copies by the names that they have in a checkpoint."""
        tensors = {f"average.{name}": tensor for name, tensor in self.average.items()}
        return tensors | {f"initial.{name}": tensor for name, tensor in self.initial.items()}


class ElasticResets(Part):
    """
    Requests an Elastic Reset every so many optimizer steps, and applies it at the next generation boundary.

    Args:
        average ([`ElasticAverage`]): The average.
        every (`int`): Optimizer steps.
        timer ([`~trl_prorl.meter.StageTimer`]): Counts the seconds.
        processes (`int`): Their number, for the event.
    """

    def __init__(self, average: ElasticAverage, every: int, timer, processes: int):
        self.average = average
        self.every = every
        self.timer = timer
        self.processes = processes
        self._requested: int | None = None

    def begin(self) -> None:
        self._requested = None

    def update(self, step: int, model) -> None:
        """Take the update into the average, and see whether a reset is due."""
        self.average.update()
        if step % self.every == 0:
            self._requested = step

    def boundary(self, step: int) -> dict[str, Any] | None:
        """Reset, if that is due: policy ← average, average ← initial policy."""
        requested = self._requested
        self._requested = None
        if requested is None:
            return None
        with self.timer.stage("reset") as copy:
            self.average.reset()
        event = make_event(ELASTIC, requested, step, "periodic", requested, self.every)
        return {**event, "seconds_copy": copy.seconds, "world_size": self.processes}

    def state_dict(self) -> dict[str, Any]:
        return {"requested": self._requested}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self._requested = state["requested"]

    def save(self, folder: Path) -> None:
        self.average.save(folder)

    def load(self, folder: Path, changed: Mapping[str, Any]) -> None:
        self.average.load(folder)
