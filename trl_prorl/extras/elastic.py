"""Elastic Reset (Noukhovitch et al. 2023, arXiv 2312.07551)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..parts import Event, Part, make_event
from ..run.log_files import ELASTIC
from ..upstream.weights import copy_tensors


class ElasticResets(Part):
    """
    Every `elastic_reset_every` optimizer steps, at a generation boundary: policy ← average, average ← initial policy.

        average ← η · average + (1 − η) · policy     at every optimizer step, with the decay η

    `average` and `initial`: values of the trained parameters, by name.
    """

    remembers = ("requested",)

    def __init__(self, args, policy: torch.nn.Module, timer, processes: int):
        self.every = args.elastic_reset_every
        self.decay = args.elastic_ema
        self.parameters = {name: param for name, param in policy.named_parameters() if param.requires_grad}
        self.timer = timer
        self.processes = processes
        self.initial = {name: param.detach().clone() for name, param in self.parameters.items()}
        # fp32: bf16 loses steps of 1 − η.
        self.average = {name: param.detach().float().clone() for name, param in self.parameters.items()}
        self.requested: int | None = None

    @torch.no_grad()
    def on_step_end(self, step: int, parameters) -> None:
        for name, param in self.parameters.items():
            self.average[name].lerp_(param.detach().float(), 1.0 - self.decay)
        if step % self.every == 0:
            self.requested = step

    @torch.no_grad()
    def on_generation(self, step: int) -> Event | None:
        requested = self.requested
        if requested is None:
            return None
        self.requested = None
        with self.timer.stage("reset") as copy:
            for name, param in self.parameters.items():
                param.copy_(self.average[name])
                self.average[name].copy_(self.initial[name])
        event = make_event(ELASTIC, requested, step, "periodic", requested, self.every)
        return {**event, "seconds_copy": copy.seconds, "world_size": self.processes}

    def save(self, folder: Path) -> None:
        save_file(self._tensors(), folder / "elastic.safetensors")

    def load(self, folder: Path, changed: Mapping[str, Any]) -> None:
        copy_tensors(folder / "elastic.safetensors", self._tensors())

    def _tensors(self) -> dict[str, torch.Tensor]:
        tensors = {f"average.{name}": tensor for name, tensor in self.average.items()}
        return tensors | {f"initial.{name}": tensor for name, tensor in self.initial.items()}
