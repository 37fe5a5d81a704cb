"""
Elastic Reset (Noukhovitch et al. 2023, arXiv 2312.07551): policy ← its moving average, average ← the initial policy.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ..parts import Part, fired


ELASTIC_FILE = "elastic.safetensors"


class ElasticAverage:
    """
    The exponential moving average of a policy's trained parameters, with decay η in average ← η · average + (1 − η) ·
    policy at every optimizer step, and their initial values: two copies, on their device.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], decay: float):
        self.parameters, self.decay = dict(parameters), decay
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
        """policy ← average, average ← initial, in place."""
        for name, param in self.parameters.items():
            param.copy_(self.average[name])
            self.average[name].copy_(self.initial[name])

    def save(self, folder: Path) -> None:
        """Write both copies into a checkpoint."""
        tensors = {f"average.{name}": tensor for name, tensor in self.average.items()}
        save_file(
            tensors | {f"initial.{name}": tensor for name, tensor in self.initial.items()}, folder / ELASTIC_FILE
        )

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Read both copies of a checkpoint. Raises `ValueError`: the checkpoint has none."""
        path = folder / ELASTIC_FILE
        if not path.exists():
            raise ValueError(f"{folder} has no {ELASTIC_FILE}: the average of this run cannot be restored.")
        for name, tensor in load_file(path).items():
            kind, name = name.split(".", 1)
            (self.average if kind == "average" else self.initial)[name].copy_(tensor)


class ElasticResets(Part):
    """
    Elastic Reset of an average: requested every `every` optimizer steps, applied at the next generation boundary.
    `timer` counts its seconds, `processes` is for the event.
    """

    def __init__(self, average: ElasticAverage, every: int, timer, processes: int):
        self.average, self.every, self.timer, self.processes = average, every, timer, processes
        self._requested: int | None = None

    def begin(self) -> None:
        self._requested = None

    def update(self, step: int, model) -> None:
        """Take the update into the average, and see whether a reset is due."""
        self.average.update()
        if step % self.every == 0:
            self._requested = step

    def boundary(self, step: int) -> dict[str, Any] | None:
        """Policy ← average, average ← initial policy, if that is due."""
        requested, self._requested = self._requested, None
        if requested is None:
            return None
        with self.timer.span("reset") as copy:
            self.average.reset()
        event = fired("elastic_reset", requested, step, "periodic", requested, self.every)
        return event | {"seconds_copy": copy.seconds, "world_size": self.processes}

    def state_dict(self) -> dict[str, Any]:
        return {"requested": self._requested}

    def load_state_dict(self, state: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self._requested = state["requested"]

    def save(self, folder: Path) -> None:
        self.average.save(folder)

    def load(self, folder: Path, changed: Mapping[str, Any]) -> None:
        self.average.load(folder)
