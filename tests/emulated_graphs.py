"""
CUDA graphs, emulated on a CPU: a replay runs the operators of a recording again, on the memory that they had.

So a replay sees neither new Python numbers nor tensors that have taken another's place, as on a GPU. A recording fails
if it waits for the device or draws random numbers, and a replay if memory from outside of it has been freed.
"""

from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "is_nonzero", "rand", "uniform_")


class Outside(NamedTuple):
    """A tensor of memory that a recording does not own."""

    storage: StorageWeakRef
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        assert not self.storage.expired(), f"memory of {self.size} was freed"
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


class EmulatedRecording(TorchDispatchMode):
    """In place of `Recording`. `made` has all that were made."""

    made: list["EmulatedRecording"] = []

    def __init__(self, compute, undo, device, pool):
        super().__init__()
        compute()  # once before the recording
        undo()
        self.pool = pool or object()
        self._calls = []
        self._own = set()  # storages that it has made, which live as long as their tensors in the calls
        with self:
            compute()
        undo()  # on a GPU, what is recorded is not run
        EmulatedRecording.made.append(self)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in FORBIDDEN, f"{name} cannot be recorded"
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        is_new = all(one.alias_info is None for one in function._schema.returns)
        is_written = any(one.alias_info and one.alias_info.is_write for one in function._schema.arguments)
        if is_new or is_written:
            given = tree_map(self._keep, (args, kwargs))
            self._calls.append((function, *given, result if is_new else None))
        if is_new:
            made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
            self._own |= {one.untyped_storage()._cdata for one in made}
        return result

    def _keep(self, value):
        if not isinstance(value, torch.Tensor) or value.untyped_storage()._cdata in self._own:
            return value
        storage = StorageWeakRef(value.untyped_storage())
        return Outside(storage, value.dtype, value.storage_offset(), value.size(), value.stride())

    def replay(self) -> None:
        for function, args, kwargs, result in self._calls:
            args, kwargs = tree_map(
                lambda value: value.tensor() if isinstance(value, Outside) else value,
                (args, kwargs),
                is_leaf=lambda value: isinstance(value, Outside),
            )
            again = function(*args, **kwargs)
            if result is not None:
                for tensor, value in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(tensor, torch.Tensor):
                        tensor.copy_(value)


def emulate(monkeypatch) -> list[EmulatedRecording]:
    """Emulate graphs for a test. Returns the recordings that are made."""
    monkeypatch.setattr("trl_prorl.fast.recording.Recording", EmulatedRecording)
    monkeypatch.setattr(EmulatedRecording, "made", [])
    return EmulatedRecording.made
