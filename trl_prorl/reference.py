"""The moving reference π_ref: a frozen LoRA adapter named `ref`, or a full snapshot. Copy, save, load."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from trl.trainer.utils import use_adapter


SNAPSHOT_FILE = "reference.safetensors"


def unique_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's parameters and saved buffers by name, each once: tied weights have two names but are one tensor."""
    tensors, seen = {}, set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


class AdapterReference:
    """
    The adapter `ref` of a [`~peft.PeftModel`], beside the trained adapter `default`.

    It shares the base weights with the policy, so a copy moves a few MB, and PEFT saves and loads it with the policy.

    Args:
        model ([`~peft.PeftModel`]):
            The policy, with both adapters.
    """

    def __init__(self, model):
        self.model = model

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(reference, policy) for every parameter of the adapter."""
        policy = {name: param for name, param in self.model.named_parameters() if ".default." in name}
        return [
            (self.model.get_parameter(name.replace(".default.", ".ref.")), param) for name, param in policy.items()
        ]

    @contextmanager
    def active(self, policy) -> Iterator[torch.nn.Module]:
        """A model that scores as the reference, as long as the context lasts. `policy` is the (wrapped) policy."""
        # Without an adapter of its own (TRL given a `peft_config`) the reference is the base model.
        with use_adapter(self.model, adapter_name="ref" if "ref" in self.model.peft_config else None):
            yield policy

    def save(self, folder: Path) -> None:
        """Nothing to do: PEFT saves every adapter with the model."""

    def load(self, folder: Path) -> None:
        """Nothing to do: it comes back with the model."""


class SnapshotReference:
    """
    A second, frozen model of the policy's shape, for full fine-tuning.

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The policy.
        ref_model ([`~transformers.PreTrainedModel`]):
            The reference.
    """

    def __init__(self, model, ref_model):
        self.model, self.ref_model = model, ref_model

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(reference, policy) for every parameter and every saved buffer."""
        reference, policy = unique_tensors(self.ref_model), unique_tensors(self.model)
        return [(reference[name], policy[name]) for name in policy]

    @contextmanager
    def active(self, policy) -> Iterator[torch.nn.Module]:
        """A model that scores as the reference. `policy` is not needed."""
        yield self.ref_model

    def save(self, folder: Path) -> None:
        """Write the snapshot beside a checkpoint: it is in none of TRL's."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in unique_tensors(self.ref_model).items()}
        save_file(tensors, folder / SNAPSHOT_FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """
        Read the snapshot of a checkpoint.

        Raises:
            `ValueError`: the checkpoint has none.
        """
        path = folder / SNAPSHOT_FILE
        if not path.exists():
            raise ValueError(f"{folder} has no {SNAPSHOT_FILE}: the moved reference of this run cannot be restored.")
        mine = unique_tensors(self.ref_model)
        for name, tensor in load_file(path).items():
            mine[name].copy_(tensor)


@torch.no_grad()
def move_reference(reference: AdapterReference | SnapshotReference, mix: float) -> None:
    """
    reference ← mix · policy + (1 − mix) · reference, parameter by parameter, in place.

    Args:
        reference ([`AdapterReference`] or [`SnapshotReference`]):
            The reference to move.
        mix (`float`):
            1 copies; between 0 and 1 is Polyak averaging of the parameters (TR-DPO, arXiv 2404.09656), for LoRA of the
            factors A and B and not of their product; 0 does nothing.
    """
    if mix == 0.0:
        return
    for ref, policy in reference.pairs():
        if mix == 1.0 or not ref.is_floating_point():
            ref.data.copy_(policy.data)
        else:
            ref.data.lerp_(policy.data, mix)
