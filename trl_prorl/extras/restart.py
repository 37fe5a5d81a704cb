"""
Restarts of a LoRA adapter, as in ReLoRA (arXiv 2307.05695): what was learned goes into the frozen weights, and a new
adapter begins.

    W₀ + Σᵢ s·BᵢAᵢ + s·BA  →  W₀ + Σᵢ s·BᵢAᵢ + s·BA + s·0·A'

The function stays, but for rounding. The frozen weights are recomputed from W₀ and from the sum of all products,
which is kept in fp32 in the host's memory, so that a bf16 model loses nothing however often its adapter restarts. Yet
in bf16 every restart moves the policy, because what is below half a unit in the last place of a merged weight acts no
more until the sum exceeds it; [`warn_of_rounding`] says so. The factors of every merged adapter are kept there too,
because one adapter of their ranks together, over the model that the run started from, is what every file holds: it
loads, is evaluated, pushed and merged like any other.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from ..parts import Part
from ..run_files import read_json
from .growth import (
    CONFIG_FILE,
    draw_rows,
    list_factors,
    random_state,
    resize,
    set_factors,
)


logger = logging.getLogger(__name__)


def warn_of_rounding(policy: PeftModel, mixed_precision: str) -> None:
    """
    Warn in a line that restarts move a policy whose merged weights are rounded to 16 bits.

    Weights in fp32 are, too, if autocast computes with them.

    Args:
        policy ([`~peft.PeftModel`]): As for [`Restart`].
        mixed_precision (`str`): The accelerator's: `"no"`, `"bf16"` or `"fp16"`.
    """
    rounded = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision)
    for factor in list_factors(policy):
        dtype = factor.layer.get_base_layer().weight.dtype
        if dtype in (torch.bfloat16, torch.float16):
            rounded = dtype
    if rounded is None:
        return
    logger.warning(
        "adapter_restart='merge' rounds the merged weights to %s, so each restart moves the policy a little: by "
        "0.005 to 0.012 nats per token in a small model (docs/methods.md). Keep reset intervals long enough to "
        "learn more than that. With bf16: false and model_init_kwargs: {dtype: float32} nothing is lost.",
        str(rounded).removeprefix("torch."),
    )


class Restart(Part):
    """
    Restarts the policy's adapter `default`. The model without it is, after a restart, the policy itself.

    Args:
        policy ([`~peft.PeftModel`]): With a new LoRA adapter that [`check_growing_model`] accepts.
        args ([`~trl_prorl.ProRLConfig`]): Its `seed` decides the new factors A.

    Attributes:
        merged (`list[dict[str, torch.Tensor]]`): The factors of the adapters that were merged, by their names, in the
            order of the restarts, on the host: A of shape `(r, in)`, B of `(out, r)`.
    """

    def __init__(self, policy: PeftModel, args):
        self.policy = policy
        self.args = args
        self.rank = policy.peft_config["default"].r
        self.merged: list[dict[str, torch.Tensor]] = []
        self._original: dict[str, torch.Tensor] = {}  # W₀ and the sum, once there is one
        self._sum: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def apply(self) -> dict[str, Any]:
        """Merge the adapter, and begin another one. Return facts for the event."""
        factors = list_factors(self.policy)
        self._merge({factor.name: factor.linear.weight.detach().to("cpu", copy=True) for factor in factors})
        source = random_state(self.args.seed, len(self.merged), "adapter restart")
        init = self.policy.peft_config["default"].init_lora_weights
        for factor in factors:
            weight = factor.linear.weight
            if factor.side == "A":
                weight.copy_(draw_rows(*weight.shape, self.rank, init, source))
            else:
                weight.zero_()
        size = sum(tensor.nbytes for values in self.merged for tensor in values.values())
        return {"adapter_restarts": len(self.merged), "merged_bytes": size}

    def _merge(self, values: dict[str, torch.Tensor]) -> None:
        """Add the product of an adapter's factors to the frozen weights."""
        self.merged.append(values)
        for factor in list_factors(self.policy):
            if factor.side == "A":
                down = values[factor.name]
                continue
            place = factor.place  # of both factors, of which B is the second
            layer = factor.layer
            weight = layer.get_base_layer().weight
            wide = torch.promote_types(weight.dtype, torch.float32)
            product = (values[factor.name].to(wide) @ down.to(wide)) * layer.scaling["default"]
            if layer.fan_in_fan_out:
                product = product.t()
            if place not in self._sum:
                self._original[place] = weight.detach().to("cpu", copy=True)
                self._sum[place] = torch.zeros_like(product)
            self._sum[place] += product
        self._set_frozen(merged=True)

    @torch.no_grad()
    def _set_frozen(self, merged: bool) -> None:
        """Set the frozen weights to those with what was merged into them, or to those of the beginning."""
        for place, original in self._original.items():
            value = original + self._sum[place] if merged else original
            self.policy.get_submodule(place).get_base_layer().weight.copy_(value)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Give the frozen weights the values of the beginning while this lasts."""
        self._set_frozen(merged=False)
        try:
            yield
        finally:
            self._set_frozen(merged=True)

    # As a part, see parts.py.

    def begin(self) -> None:
        self._take_apart()  # after the best checkpoint was loaded, all ranks are the adapter's

    @contextmanager
    def written(self) -> Iterator[None]:
        """Give the policy's adapter all ranks while this lasts."""
        if not self.merged:
            yield
            return
        own = [(factor, factor.linear.weight.data) for factor in list_factors(self.policy)]
        wide = []
        for factor, value in own:
            earlier = [values[factor.name].to(value) for values in self.merged]
            wide.append((factor, torch.cat([*earlier, value], dim=factor.axis)))
        set_factors(self.policy, wide, self.rank * (len(self.merged) + 1))
        try:
            yield
        finally:
            set_factors(self.policy, own, self.rank)

    def before_load(self, checkpoint: Path) -> None:
        """Restore the weights of the beginning, and an adapter of as many ranks as the checkpoint's."""
        if not (checkpoint / CONFIG_FILE).is_file():
            return
        saved = read_json(checkpoint / CONFIG_FILE)["r"]
        self._set_frozen(merged=False)
        self.merged = []
        self._sum = {}
        self._original = {}
        factors = list_factors(self.policy)
        wide = [(factor, resize(factor.linear.weight.data, factor.axis, saved)) for factor in factors]
        set_factors(self.policy, wide, saved)

    def load(self, folder: Path, changed: Mapping[str, Any]) -> None:
        self._take_apart()

    @torch.no_grad()
    def _take_apart(self) -> None:
        """Merge again what had been merged: the last ranks are the adapter that is trained."""
        factors = list_factors(self.policy)
        count = self.policy.peft_config["default"].r // self.rank
        pieces = {factor: factor.linear.weight.detach().chunk(count, dim=factor.axis) for factor in factors}
        newest = [(factor, parts[-1].contiguous()) for factor, parts in pieces.items()]
        set_factors(self.policy, newest, self.rank)
        for number in range(count - 1):
            self._merge({factor.name: parts[number].to("cpu", copy=True) for factor, parts in pieces.items()})
