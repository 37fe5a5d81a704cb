"""
A device named `pretend`, in Python: its values are real and lie in the host's memory, and its copies are counted.

To torch it is not the CPU. A tensor on it does not mix with one on the CPU, and reaching its values from the host is a
transfer. Every kernel that a GPU would launch arrives at [`compute`], which runs the CPU's kernel on the same memory.

torch knows one such device in a process, for good: only a process of its own may import this module.
"""

import contextlib
import ctypes
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


NAME = "pretend"

# -------------------------------------------------------------------------------------------------- its memory


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _Tensor(ctypes.Structure):
    """The head of a `DLTensor`."""

    _fields_ = (("data", ctypes.c_void_p), ("device", _Device))


_CPU = 1  # kDLCPU
_EXTENSION = 12  # kDLExtDev, which torch takes for the device that was registered from outside
_pointer_of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of_capsule.restype = ctypes.c_void_p
_pointer_of_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _relabel(tensor: torch.Tensor, device_type: int) -> torch.Tensor:
    """Make a tensor of the same memory that is said to lie on another device, by way of DLPack."""
    capsule = torch._C._to_dlpack(tensor)
    _Tensor.from_address(_pointer_of_capsule(capsule, b"dltensor")).device.type = device_type
    return torch._C._from_dlpack(capsule)


def to_host_label(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor that shares the memory of one on this device."""
    return _relabel(tensor, _CPU)


def to_device_label(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on this device that shares the memory of a CPU tensor."""
    return _relabel(tensor, _EXTENSION)


def _is_here(value) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


# ---------------------------------------------------------------------------------------------------- its work


copies: list[torch.Size] = []  # shapes of the copies within the device, of which a conversion is one

TAKES_HOST_INDICES = {"aten::index", "aten::_index_put_impl_"}  # and copies them

MIXED = "Expected all tensors to be on the same device, but found at least two devices, pretend:0 and cpu! ({})"
OTHER_GENERATOR = "Expected a 'pretend' device type for generator but found 'cpu' ({})"


class _Signature(NamedTuple):
    """What matters of an operator's schema."""

    name: str
    draws: bool
    number_places: tuple[int, ...]  # of tensors for which torch may hand on a number
    written_places: tuple[int, ...]
    written_names: tuple[str, ...]
    returns: tuple[bool, ...]  # of each result, whether it is what was written


@cache
def _signature(op) -> _Signature:
    schema = op._schema
    positional = [(place, one) for place, one in enumerate(schema.arguments) if not one.kwarg_only]
    named = [one for one in schema.arguments if one.kwarg_only]
    written_places = tuple(place for place, one in positional if _is_written(one))
    written_names = tuple(one.name for one in named if _is_written(one))
    return _Signature(
        name=schema.name,
        draws=any(one.name == "generator" for one in schema.arguments),
        number_places=tuple(place for place, one in positional if str(one.type) == "Tensor"),
        written_places=written_places,
        written_names=written_names,
        returns=tuple(one.alias_info is not None for one in schema.returns),
    )


def _is_written(argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


watches: list[Callable] = []  # called with each operator, its arguments and its result


def _tell(op, args, kwargs, result):
    for watch in watches:
        watch(op, args, kwargs, result)
    return result


def compute(op, *args, **kwargs):
    """Run an operator of this device: torch's fallback for every one that has no kernel of its own."""
    return _tell(op, args, kwargs, _compute(op, *args, **kwargs))


def _convolution_backward(gradient, states, weight, stride, *args):
    """As for a device of outside, without the sizes of a bias."""
    return torch.ops.aten.convolution_backward.default(gradient, states, weight, [len(weight)], stride, *args)


# What torch calls on a device of outside for an operator of the host.
OF_HOST = {
    "aten::convolution_overrideable": torch.ops.aten.convolution.default,
    "aten::convolution_backward_overrideable": _convolution_backward,
}


def _compute(op, *args, **kwargs):
    signature = _signature(op)
    name = signature.name
    op = OF_HOST.get(name, op)
    if name == "aten::_copy_from":
        return _copy(*args, **kwargs)
    if name == "aten::set_":
        return _set(*args)

    from_host: list[torch.Tensor] = []
    host_args = [_to_host(value, from_host) for value in args]
    host_kwargs = {key: _to_host(value, from_host) for key, value in kwargs.items()}
    allowed = args[1] if name in TAKES_HOST_INDICES else ()
    if any(all(tensor is not index for index in allowed) for tensor in from_host):
        raise RuntimeError(MIXED.format(op))
    for place in signature.number_places:
        if place < len(host_args) and isinstance(host_args[place], int | float):
            host_args[place] = torch.tensor(host_args[place])
    if signature.draws:
        if host_kwargs.get("generator") is not None:
            raise RuntimeError(OTHER_GENERATOR.format(op))
        host_kwargs["generator"] = generator
    # The kernel resizes an empty result, for which the memory that it shares here has no room.
    empty = [key for key in signature.written_names if _is_here(kwargs[key]) and kwargs[key].numel() == 0]
    for key in empty:
        host_kwargs[key] = torch.empty(0, dtype=kwargs[key].dtype)

    result = op(*host_args, **host_kwargs)

    for key in empty:
        if host_kwargs[key].shape != kwargs[key].shape:
            kwargs[key].data = to_device_label(host_kwargs[key])
    written = [args[place] for place in signature.written_places]
    written += [kwargs[key] for key in signature.written_names]
    if written and not signature.returns:
        return None
    if written and all(signature.returns):
        return written[0] if len(written) == 1 else tuple(written)
    return _to_device(result)


def _to_host(value, from_host: list[torch.Tensor]):
    """Relabel what an operator is given, and note tensors that lie with the host. A number may: it is an argument."""
    if isinstance(value, torch.Tensor):
        if value.device.type == NAME:
            return to_host_label(value)
        if value.dim() > 0:
            from_host.append(value)
    elif isinstance(value, torch.device):
        return torch.device("cpu")
    elif isinstance(value, list | tuple):
        return [_to_host(one, from_host) for one in value]
    return value


def _to_device(value):
    if isinstance(value, torch.Tensor):
        return to_device_label(value)
    if isinstance(value, list | tuple):
        return type(value)(_to_device(one) for one in value)
    return value


def _copy(source, target, non_blocking=False):
    """Copy within the device, or between it and the host."""
    host_source = to_host_label(source) if _is_here(source) else source
    host_target = to_host_label(target) if _is_here(target) else target
    host_target.copy_(host_source)
    if source.device == target.device:
        copies.append(target.shape)
    return target


def _set(tensor, source, offset=0, size=None, stride=None):
    """Let a tensor show a storage, as `torch.load` and `torch.save` do."""
    if isinstance(source, torch.Tensor):
        tensor.data = source
        return tensor
    if source.nbytes() == 0:
        return tensor
    kind = type("Memory", (ctypes.c_char * source.nbytes(),), {})
    memory = kind.from_address(source.data_ptr())
    memory.storage = source  # which is kept for as long as the memory is seen
    values = torch.frombuffer(memory, dtype=tensor.dtype)
    if size is not None:
        values = values.as_strided(size, stride, offset)
    tensor.data = to_device_label(values)
    return tensor


def _tag_storage(storage) -> str | None:
    return str(DEVICE) if storage.device.type == NAME else None


def _move_storage(storage, location: str):
    """Bring what `torch.load` has read onto this device. There is no allocator behind `torch.UntypedStorage`."""
    if not location.startswith(NAME):
        return None
    values = torch.empty(0, dtype=torch.uint8).set_(storage).clone()
    return to_device_label(values).untyped_storage()


# -------------------------------------------------------------------------------------------------- its module

generator = torch.Generator()  # a random state of its own, as a GPU has


class Module:
    """What torch, accelerate and transformers ask `torch.pretend`."""

    def is_available(self):
        return True

    is_initialized = is_available

    def _is_in_bad_fork(self):
        return False

    def device_count(self):
        return 1

    def current_device(self):
        return 0

    def set_device(self, device):
        pass

    def device(self, device):
        return contextlib.nullcontext()

    def empty_cache(self):
        pass

    def synchronize(self, device=None):
        pass

    def manual_seed(self, seed):
        generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device=None):
        return generator.get_state()

    def set_rng_state(self, state, device=None):
        generator.set_state(state)

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]


# ------------------------------------------------------------------------------------------ kernels of its own


def _overload(name: str):
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """
    Attend as CUDA does: by flash attention without a mask, by memory-efficient attention with one, and in single steps
    where neither takes what it is given.
    """
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        forbidden = torch.full((), -torch.inf, dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, torch.zeros_like(forbidden), forbidden)
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    takes_groups = attn_mask is None and is_half
    if dropout_p or (enable_gqa and not takes_groups) or (attn_mask is not None and attn_mask.requires_grad):
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    if attn_mask is not None and attn_mask.dtype != query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
    return _FusedAttention.apply(query, key, value, attn_mask, is_causal, scale)


class _FusedAttention(torch.autograd.Function):
    """Is one kernel forward and one backward; the host repeats keys and values for their groups unseen."""

    @staticmethod
    def forward(ctx, query, key, value, mask, is_causal, scale):
        ctx.groups = query.shape[-3] // key.shape[-3]
        ctx.is_causal = is_causal
        ctx.keys = {"scale": scale}
        if mask is not None:
            ctx.keys["attn_mask"] = to_host_label(mask.detach())
        host = [to_host_label(one.detach()) for one in (query, key, value)]
        repeated = [host[0], *(one.repeat_interleave(ctx.groups, dim=-3) for one in host[1:])]
        attend_on_host = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        result, sums = attend_on_host(*repeated, 0.0, is_causal, **ctx.keys)
        ctx.host = (*repeated, result, sums)
        made = to_device_label(result)
        return _tell(torch.ops.aten.scaled_dot_product_attention.default, (query, key, value, mask), {}, made)

    @staticmethod
    def backward(ctx, gradient):
        gradient = to_host_label(gradient.contiguous())
        backward_on_host = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        query, *repeated = backward_on_host(gradient, *ctx.host, 0.0, ctx.is_causal, **ctx.keys)
        key, value = (one.unflatten(-3, (-1, ctx.groups)).sum(-3) for one in repeated)
        made = [to_device_label(one) for one in (query, key, value)]
        attend_op = torch.ops.aten.scaled_dot_product_attention.default
        return *_tell(attend_op, (gradient, *made), {}, made), None, None, None


# --------------------------------------------------------------------------------------------------- autocast


def _autocast_lists() -> dict[str, list[str]]:
    """Read CUDA's lists of operators from the header of the installed torch."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    lists = {}
    for name, body in re.findall(r"#define AT_FORALL_(\w+)\(_\)(.*?)\n\n", header.read_text(), re.DOTALL):
        entries = re.findall(r"_\(([\w, ]+)\)", body)
        lists[name] = [entry.replace(", ", ".") for entry in entries if "deprecated" not in entry]
    return lists


_AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # autocast keeps those of weights until it ends


def _cast(value, dtype, keeps: bool):
    if isinstance(value, list | tuple):
        return type(value)(_cast(one, dtype, keeps) for one in value)
    if not _is_here(value) or not value.is_floating_point() or value.dtype in (dtype, torch.float64):
        return value
    is_weight = value.requires_grad and value.is_leaf and value.dtype == torch.float32 and not value._is_view()
    if not (keeps and is_weight and torch.is_autocast_cache_enabled()):
        return value.to(dtype)
    if id(value) not in _casts:
        _casts[id(value)] = (value, value.to(dtype))
    return _casts[id(value)][1]


def _call_with(op, dtype, keeps, args, kwargs):
    args = [_cast(value, dtype, keeps) for value in args]
    kwargs = {key: _cast(value, dtype, keeps) for key, value in kwargs.items()}
    return op(*args, **kwargs)


def _call_lowered(op, args, kwargs):
    return _call_with(op, torch.get_autocast_dtype(NAME), True, args, kwargs)


def _call_widened(op, args, kwargs):
    return _call_with(op, torch.float32, False, args, kwargs)


def _call_with_wide_result(op, args, kwargs):
    if args[0].dtype in (torch.bfloat16, torch.float16) and kwargs.get("dtype") is None:
        kwargs["dtype"] = torch.float32
    return op(*args, **kwargs)


def _call_promoted(op, args, kwargs):
    if any(_is_here(value) and value.dtype == torch.float32 for value in args):
        return _call_widened(op, args, kwargs)
    return op(*args, **kwargs)


def _under_autocast(call, op):
    """Make the kernel that autocast puts before an operator's own."""

    def kernel(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS):
            return call(op, args, kwargs)

    return kernel


def _clear_casts(clear=torch.clear_autocast_cache):
    _casts.clear()
    clear()


# ------------------------------------------------------------------------------------------------ registration


def _register() -> list[torch.library.Library]:
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    torch.serialization.register_package(0, _tag_storage, _move_storage)
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(compute, "PrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    kernels = torch.library.Library("aten", "IMPL")
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        kernels.impl("aten::scaled_dot_product_attention", attend, key)
    for name in OF_HOST:  # torch has kernels for every device that raise an error
        kernels.impl(name, partial(compute, _overload(name.removeprefix("aten::"))), "PrivateUse1")
    calls = {
        "LOWER_PRECISION_FP": _call_lowered,
        "FP32": _call_widened,
        "FP32_SET_OPT_DTYPE": _call_with_wide_result,
        "PROMOTE": _call_promoted,
    }
    lists = _autocast_lists()
    for kind, call in calls.items():
        for name in lists[kind]:
            kernels.impl(f"aten::{name}", _under_autocast(call, _overload(name)), "AutocastPrivateUse1")
    torch.clear_autocast_cache = _clear_casts
    return [fallback, kernels]  # registered for as long as they live


_libraries = _register()
DEVICE = torch.device(NAME, 0)
