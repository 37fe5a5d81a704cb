"""The policy of a run with an adapter, as it was before the first step: the base of its evaluation."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from peft import PeftModel

from ..scoring.references import trained_outside_adapters


class AdapterAsBegun:
    """
    Holds, on the host, what training changes of a policy and its base needs.

    Args:
        policy ([`~peft.PeftModel`]): Before the first step.
        is_trained (`bool`): Whether the run begins from the adapter as it is. A new one is switched off for the base,
            and what is trained outside it (`bias`) is kept.

    Attributes:
        values (`dict[str, torch.Tensor]`): The parameters of then, by name.
    """

    def __init__(self, policy: PeftModel, is_trained: bool):
        self.policy = policy
        self.is_trained = is_trained
        held = trained_outside_adapters(policy)
        if is_trained:
            held = {name: param for name, param in policy.named_parameters() if param.requires_grad}
        self.values = {name: param.detach().to("cpu", copy=True) for name, param in held.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Make the policy the one of that time while this lasts."""
        trained = dict(self.policy.named_parameters())
        now = {name: trained[name].data for name in self.values}
        self._set(trained, {name: value.to(now[name].device) for name, value in self.values.items()})
        try:
            with ExitStack() as stack:
                if not self.is_trained:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # PEFT says that a trained bias stays: it was set back
                        stack.enter_context(self.policy.disable_adapter())
                yield
        finally:
            self._set(trained, now)

    def _set(self, parameters: Mapping[str, torch.nn.Parameter], values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            parameters[name].data = value

    def save(self, folder: Path) -> None:
        """
        Write the adapter that the run started from into a folder; PEFT loads it on top of the base model. An adapter
        of another name than `default`, or one of several, is not written: no evaluation reads such a run from its
        files.
        """
        if not self.is_trained or self.policy.active_adapters != ["default"]:
            return
        with self.in_place():
            self.policy.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)
