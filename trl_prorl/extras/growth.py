"""Growth of the adapters' rank on a schedule, with the optimizer's state."""

import copy
import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora.layer import LoraLayer, ParamWrapper

from ..optimizer import STEP
from ..parts import Event, Part, make_event
from ..run.log_files import GROWTH, read_json
from ..supported import OPTIMIZERS, find_optimizer


WEIGHTS_FILE = "adapter_model.safetensors"


class Growth(Part):
    """
    Adds ranks to the policy's adapter and its frozen copies. In `copies` of trained parameters, by name, entries are
    replaced to keep their shapes.
    """

    remembers = ("requested",)  # the adapter's own files have the weights

    def __init__(self, args, policy: PeftModel, copies: Iterable[dict[str, torch.Tensor]], timer):
        self.every = args.lora_growth_every
        self.step = args.lora_growth_step
        self.largest = args.lora_growth_max_rank
        self.seed = args.seed
        self.policy = policy
        self.optimizer: Any = None
        self.copies = [*copies]
        self.timer = timer
        check_growing_model(policy, args)
        self.requested: int | None = None

    @property
    def rank(self) -> int:
        return self.policy.peft_config["default"].r

    def optimizer_made(self, optimizer) -> None:
        if optimizer is not None:
            check_growing_optimizer(type(optimizer))
        self.optimizer = optimizer

    def on_step_end(self, step: int, parameters) -> None:
        if step % self.every == 0 and self.rank < self.largest:
            self.requested = step

    def on_generation(self, step: int) -> Event | None:
        requested = self.requested
        self.requested = None
        if requested is None or self.rank >= self.largest:  # a resume may have lowered the maximum
            return None
        before = self.rank
        rank = min(before + self.step, self.largest)
        generator = random_state(self.seed, step)
        init = self.policy.peft_config["default"].init_lora_weights
        rows = {}
        for factor in list_factors(self.policy):
            if factor.adapter == "default" and factor.side == "A":
                rows[factor.place] = draw_rows(rank - before, factor.linear.in_features, rank, init, generator)
        seconds = self._set_rank(rank, rows)
        event = make_event(GROWTH, requested, step, "periodic", requested, self.every)
        return {**event, "rank_before": before, "rank": rank, **seconds, "world_size": 1}

    def _set_rank(self, rank: int, rows: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """
        Set the rank of everything, or of nothing if a state is unknown; return the seconds. All get the same new rows
        of A, so averaging two adapters averages their old ranks. Rows of a missing layer are 0.
        """
        factors = list_factors(self.policy)
        states = self.optimizer.state if self.optimizer is not None else {}
        changes = []
        with self.timer.stage("reset") as copy:
            values = []
            for factor in factors:
                new = rows.get(factor.place) if factor.side == "A" else None
                values.append((factor, resize(factor.linear.weight.detach(), factor.axis, rank, new)))
                if factor.adapter == "default":
                    for copied in self.copies:
                        changes.append((copied, {factor.name: resize(copied[factor.name], factor.axis, rank, new)}))
        with self.timer.stage("reset") as migration:
            for factor in factors:
                weight = factor.linear.weight
                if weight in states:
                    state = states[weight]
                    changes.append((state, migrate_state(state, weight.shape, factor.axis, rank)))
        # All values are computed; the writes below cannot fail.
        set_factors(self.policy, values, rank)
        for old, new in changes:
            old.update(new)
        return {"seconds_copy": copy.seconds, "seconds_optimizer": migration.seconds}

    def before_load(self, checkpoint: Path) -> None:
        """Set rank and frozen values to a checkpoint's."""
        if not (checkpoint / ADAPTER_CONFIG).is_file():
            return
        saved = read_json(checkpoint / ADAPTER_CONFIG)
        mine = self.policy.peft_config["default"]
        if saved["r"] != mine.r:
            self._set_rank(saved["r"], rows={})
        # For the best model, transformers loads only the policy; the newest reference would lose its newer ranks.
        for name in self.policy.peft_config:
            if name != "default" and (checkpoint / name / WEIGHTS_FILE).is_file():
                self.policy.load_adapter(checkpoint / name, name)


# ---------------------------------------------------------------------------------------------------------------------
# Growth of a LoRA adapter from rank r to r' > r; its function stays the same.
#
#     W + s·BA = W + s·[B | 0] [A ; N]
#
# New rows N of A are drawn as in PEFT; new columns of B are 0. PEFT computes s as α/r or, for rsLoRA (arXiv
# 2312.03732), as α/√r. To keep s in a saved adapter, α becomes s·r' or s·√r'.
#
# Old rows of A and old columns of B keep Adam's m and v; new ones start at 0. The step count t belongs to the whole
# tensor, so the first update of new ranks, with gradient g, is the learning rate times
#
#     (1 − β1) g / (1 − β1^t) / √((1 − β2) g² / (1 − β2^t)) = (1 − β1) / √(1 − β2) · √(1 − β2^t) / (1 − β1^t)
#
# for large t 0.1 / √0.001 = 3.16; under a constant gradient it grows to 6.57 by the 12th update. A's new rows have no
# gradient until B's new columns have moved, so they start one update later.
#
# Tensors are stored by rows: copying a state to the start of a longer one (as `realloc` does) is correct only for A.


ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class Factor:
    """
    A factor of a layer's adapter: `side` is `"A"`, (r, in), or `"B"`, (out, r); `axis`: the ranks' dimension; `place`:
    the layer's name.
    """

    place: str
    layer: LoraLayer
    adapter: str
    side: str
    linear: torch.nn.Linear
    axis: int

    @property
    def name(self) -> str:
        return f"{self.place}.lora_{self.side}.{self.adapter}.weight"


def list_factors(policy: PeftModel) -> list[Factor]:
    found = []
    for place, layer in policy.named_modules():
        if isinstance(layer, LoraLayer):
            for adapter in layer.lora_A:
                found.append(Factor(place, layer, adapter, "A", layer.lora_A[adapter], axis=0))
                found.append(Factor(place, layer, adapter, "B", layer.lora_B[adapter], axis=1))
    return found


def resize(tensor: torch.Tensor, axis: int, size: int, new: torch.Tensor | None = None) -> torch.Tensor:
    """Copy a tensor, truncated or with `new` (default 0) appended along one dimension."""
    more = size - tensor.shape[axis]
    if more <= 0:
        return tensor.narrow(axis, 0, size).clone(memory_format=torch.contiguous_format)
    if new is None:
        shape = list(tensor.shape)
        shape[axis] = more
        new = tensor.new_zeros(shape)
    return torch.cat([tensor, new.to(tensor)], dim=axis)


def random_state(seed: int, step: int, purpose: str = "rank growth") -> torch.Generator:
    """Make a random state from seed, step and purpose only."""
    # On a CPU torch uses the low 32 bits of a seed, so two numbers need a hash.
    digest = hashlib.sha256(f"{purpose}, seed {seed}, step {step}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))


def draw_rows(rows: int, columns: int, rank: int, initialisation: object, generator: torch.Generator) -> torch.Tensor:
    """
    Draw rows `(rows, columns)` of a factor A as PEFT does, in fp32 on the CPU: with `init_lora_weights="gaussian"` of
    standard deviation 1/rank, else uniform within ±1/√in.
    """
    values = torch.empty(rows, columns)
    if isinstance(initialisation, str) and initialisation.lower() == "gaussian":
        return torch.nn.init.normal_(values, std=1 / rank, generator=generator)
    return torch.nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)


def alpha_for(scaling: float, rank: int, rank_stabilised: bool) -> float:
    """Return the α of a scaling factor, an integer if it is one up to rounding."""
    alpha = scaling * (math.sqrt(rank) if rank_stabilised else rank)
    return round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-12) else alpha


def set_factors(policy: PeftModel, values: list[tuple[Factor, torch.Tensor]], rank: int) -> None:
    """Set factors and ranks. Parameters stay the same objects: optimizer, average and merged copy refer to them."""
    for factor, value in values:
        layer = factor.layer
        adapter = factor.adapter
        weight = factor.linear.weight
        weight.grad = None
        weight.data = value
        if factor.side == "A":
            factor.linear.out_features = rank
        else:
            factor.linear.in_features = rank
        layer.r[adapter] = rank
        layer.lora_alpha[adapter] = alpha_for(layer.scaling[adapter], rank, layer.use_rslora[adapter])
    for adapter, layer in {factor.adapter: factor.layer for factor, _ in values}.items():
        config = copy.copy(policy.peft_config[adapter])  # the user's, who may start another run with it
        config.r = rank
        config.lora_alpha = layer.lora_alpha[adapter]
        policy.peft_config[adapter] = config


# States with the parameter's own shape.
OF_VALUES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")


@torch.no_grad()
def migrate_state(state: Mapping[str, Any], shape: torch.Size, axis: int, rank: int) -> dict[str, Any]:
    """
    Return the changed entries of a factor's state (`shape`: the factor's old one). Raises `ValueError`: an unknown
    entry.
    """
    unknown = sorted(set(state) - {*OF_VALUES, STEP})
    held = [key for key in OF_VALUES if state.get(key) is not None]
    unknown += [key for key in held if state[key].shape != shape]
    if unknown:
        raise ValueError(f"optimizer state {unknown} is unknown, so the adapter cannot grow.")
    return {key: resize(state[key], axis, rank) for key in held}


def check_growing_model(policy: torch.nn.Module, args) -> None:
    """Raise `ValueError` for adapters that do not grow together, or whose shapes something relies on."""
    growth = f"lora_growth_every={args.lora_growth_every}"
    if not isinstance(policy, PeftModel) or policy.active_adapters != ["default"]:
        raise ValueError(
            f"{growth} needs a LoRA adapter named 'default'. Pass a peft_config (recipe: use_peft: true)."
        )
    if args.world_size > 1 or args.torch_compile:
        raise ValueError(f"{growth} changes shapes of the adapter: train in one process, without torch_compile.")
    rank = policy.peft_config["default"].r
    if rank >= args.lora_growth_max_rank:
        raise ValueError(f"{growth}: lora_growth_max_rank must be above the rank {rank} of the adapter (lora_r).")
    for name, config in policy.peft_config.items():
        if config.r != rank or config.rank_pattern or config.alpha_pattern:
            raise ValueError(
                f"{growth} needs adapters of one rank, without rank_pattern and alpha_pattern, not {name!r}."
            )
    seen: set[int] = set()
    for factor in list_factors(policy):
        if type(factor.linear) is not torch.nn.Linear or id(factor.linear.weight) in seen:
            raise ValueError(f"{growth} needs linear layers that share no adapter, and {factor.place} is another.")
        seen.add(id(factor.linear.weight))
    for name, layer in policy.named_modules():
        if isinstance(layer, ParamWrapper) or getattr(layer, "lora_embedding_A", None):
            raise ValueError(f"{growth} needs linear layers that share no adapter, and {name} is another.")


def check_growing_optimizer(cls: type) -> None:
    """Raise `ValueError` for an optimizer that growth does not support."""
    name = find_optimizer(cls)
    if name is None or not OPTIMIZERS[name].grows:
        growing = ", ".join(other for other, optimizer in OPTIMIZERS.items() if optimizer.grows)
        raise ValueError(
            f"lora_growth_every does not support {cls.__module__}.{cls.__name__}. Use one of {growing} (optim: "
            "adamw_torch), or remove lora_growth_every."
        )
