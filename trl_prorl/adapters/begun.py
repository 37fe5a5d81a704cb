"""The adapter of a run that began from a trained one, as it was before the first step: the base of its evaluation."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel


class AdapterAsBegun:
    """
    Holds the adapter of a policy as the run began, on the host.

    Args:
        policy ([`~peft.PeftModel`]): Before the first step.

    Attributes:
        values (`dict[str, torch.Tensor]`): Its trained parameters of then, by name.
    """

    def __init__(self, policy: PeftModel):
        self.policy = policy
        trained = {name: param for name, param in policy.named_parameters() if param.requires_grad}
        self.values = {name: param.detach().to("cpu", copy=True) for name, param in trained.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the policy the values of that time while this lasts."""
        trained = dict(self.policy.named_parameters())
        now = {name: trained[name].data for name in self.values}
        self._set(trained, {name: value.to(now[name].device) for name, value in self.values.items()})
        try:
            yield
        finally:
            self._set(trained, now)

    def _set(self, parameters: Mapping[str, torch.nn.Parameter], values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            parameters[name].data = value

    def save(self, folder: Path) -> None:
        """
        Write it into a folder, as an adapter that PEFT loads upon the model below. An adapter of another name than
        `default`, or one of several, is not written: no evaluation reads such a run from its files.
        """
        if self.policy.active_adapters != ["default"]:
            return
        with self.in_place():
            self.policy.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)
