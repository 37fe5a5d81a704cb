"""What a check needs beside torch and a device, and whether it is there."""

import importlib.util
import inspect

import torch

from trl_prorl.eval.gpucheck.size import Size


def _module(name: str, install: str) -> str | None:
    return None if importlib.util.find_spec(name) is not None else f"{name} is not installed ({install})"


def _varlen() -> str | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"torch {torch.__version__} has no varlen_attn"
    known = inspect.signature(varlen_attn).parameters
    missing = [name for name in ("window_size", "enable_gqa", "scale") if name not in known]
    return f"varlen_attn of torch {torch.__version__} has no {', '.join(missing)}" if missing else None


def missing(need: str, size: Size) -> str | None:
    """
    Why a need is not met, in a few words, or `None`.

    Args:
        need (`str`): `"cuda"`, or a name of a library.
        size ([`Size`]): Of the check: at a CPU's size no GPU is used, even if there is one.
    """
    if need == "cuda":
        return None if size.on_card else "needs a GPU"
    if need == "triton":
        return _module("triton", "it comes with torch for CUDA")
    if need == "torch varlen":
        return _varlen()
    installs = {
        "bitsandbytes": "pip install bitsandbytes",
        "deepspeed": "pip install deepspeed",
        "flash_attn": "pip install flash-attn",
        "flash_attn_interface": "FlashAttention 3, built from source",
        "pytest": "pip install -e '.[dev]'",
        "vllm": "pip install vllm",
    }
    return _module(need, installs[need])


def why_skipped(needs: tuple[str, ...], size: Size) -> str | None:
    """The first need that is not met, or `None`."""
    return next((reason for need in needs if (reason := missing(need, size)) is not None), None)
