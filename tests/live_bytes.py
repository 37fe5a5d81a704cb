"""The bytes of tensors that are alive at once: what an allocator would have to hold, on any device."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """
    Counts the storages that operators make while it is entered; what was there before is not counted.

    Attributes:
        now (`int`), peak (`int`): Bytes alive now, and the most at once.
    """

    def __init__(self, *known: torch.Tensor):
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    @property
    def now(self) -> int:
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        return sum(size for _, size in self._alive.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        before = {leaf.untyped_storage().data_ptr() for leaf in tree_iter((args, kwargs)) if is_plain(leaf)}
        for leaf in tree_iter(result):
            if not is_plain(leaf):
                continue
            storage = leaf.untyped_storage()
            address = storage.data_ptr()
            if address not in before and address not in self._known:
                reference = StorageWeakRef(storage)
                self._alive[reference.cdata] = (reference, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result


def is_plain(leaf) -> bool:
    """Whether it is a tensor with a storage of its own kind."""
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
