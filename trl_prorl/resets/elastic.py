"""Elastic Reset (Noukhovitch et al. 2023, arXiv 2312.07551): policy ← its moving average, average ← the initial policy."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


ELASTIC_FILE = "elastic.safetensors"


class ElasticAverage:
    """
    The exponential moving average of a policy's trained parameters, and their initial values.

    Args:
        parameters (`Mapping[str, torch.nn.Parameter]`):
            The trained parameters by name, as the run begins. Two copies are kept on their device.
        decay (`float`):
            η in average ← η · average + (1 − η) · policy, at every optimizer step.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], decay: float):
        self.parameters, self.decay = dict(parameters), decay
        self.initial = {name: param.detach().clone() for name, param in self.parameters.items()}
        # In fp32, because steps of 1 − η are lost in bf16.
        self.average = {name: param.detach().float().clone() for name, param in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """One optimizer step was made."""
        for name, param in self.parameters.items():
            self.average[name].lerp_(param.detach().float(), 1.0 - self.decay)

    @torch.no_grad()
    def reset(self) -> None:
        """policy ← average, average ← initial, in place."""
        for name, param in self.parameters.items():
            param.copy_(self.average[name])
            self.average[name].copy_(self.initial[name])

    def save(self, folder: Path) -> None:
        """Write both copies beside a checkpoint."""
        tensors = {f"average.{name}": tensor for name, tensor in self.average.items()}
        save_file(
            tensors | {f"initial.{name}": tensor for name, tensor in self.initial.items()}, folder / ELASTIC_FILE
        )

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """
        Read both copies of a checkpoint.

        Raises:
            `ValueError`: the checkpoint has none.
        """
        path = folder / ELASTIC_FILE
        if not path.exists():
            raise ValueError(f"{folder} has no {ELASTIC_FILE}: the average of this run cannot be restored.")
        for name, tensor in load_file(path).items():
            kind, name = name.split(".", 1)
            (self.average if kind == "average" else self.initial)[name].copy_(tensor)
