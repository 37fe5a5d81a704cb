"""
A new adapter on top of a trained one, for example an SFT policy's, as one adapter with the ranks of both: the first r₁
ranks are the trained adapter's and are frozen, the others start as in a new PEFT adapter and are trained.

    W + s·[B₁·s₁/s | B₂] [A₁ ; A₂]  =  W + s₁·B₁A₁ + s·B₂A₂

Nothing is merged, so no weight of the model is rounded, and every file contains one adapter, which PEFT loads on top
of the base model. A frozen copy of it, taken before the first step, is the trained policy: its B₂ is 0.
"""

import copy

import torch
from accelerate.utils import set_seed
from peft import LoraConfig, PeftModel, get_peft_model

from ..parts import Part
from .growth import list_factors, set_factors


def stacked_config(model: PeftModel, config: LoraConfig) -> LoraConfig:
    """Return the new adapter's configuration with the ranks of both, for what looks at ranks."""
    both = copy.copy(config)
    both.r = config.r + model.peft_config[model.active_adapters[0]].r
    return both


# Of `optim` and of torch.optim, those that update each entry of a tensor by itself. The others look at a whole tensor,
# or at a block of it, in which the frozen ranks' zeros would count.
BY_ENTRY = (
    *("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adagrad", "rmsprop", "sgd"),
    *("paged_adamw_32bit", "lion_32bit", "paged_lion_32bit"),
)
BY_ENTRY_OF_TORCH = tuple(
    getattr(torch.optim, name)
    for name in "ASGD Adadelta Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD".split()
)


def check_optimizer_by_entry(name: str, given: torch.optim.Optimizer | None) -> None:
    """
    Raise an error, before any training, for an optimizer in which frozen ranks would change the updates of the others.

    Args:
        name (`str`): `optim`.
        given ([`~torch.optim.Optimizer`], *optional*): The one that takes its place.

    Raises:
        `ValueError`: The message names the optimizer and those that serve.
    """
    if given is not None and not isinstance(given, BY_ENTRY_OF_TORCH):
        name = f"{type(given).__module__}.{type(given).__name__}"
    elif given is not None or name in BY_ENTRY:
        return
    raise ValueError(
        f"optim={name!r} does not work with a peft_config on a trained adapter: the trained ranks are frozen, and "
        "this optimizer would let their zero gradients change the updates of the new ones. Set optim to one of "
        f"{', '.join(BY_ENTRY)}, or merge the trained adapter and pass the merged model: docs/from-sft.md."
    )


@torch.no_grad()
def stack(model: PeftModel, config: LoraConfig, seed: int) -> PeftModel:
    """
    Add a new adapter on top of the active one of a model that [`check_stacked`] accepts. The model is consumed.

    Args:
        model ([`~peft.PeftModel`]): The model with the trained adapter.
        config ([`~peft.LoraConfig`]): The new one's.
        seed (`int`): Decides the new factors, as it does those of TRL's trainer.

    Returns [`~peft.PeftModel`]: With one adapter, `default`, whose first ranks are the trained one's.

    Raises:
        `ValueError`: The new adapter leaves out a layer that the trained one has.
    """
    trained = model.active_adapters[0]
    rank = model.peft_config[trained].r
    earlier = {}
    scaling = {}
    for factor in list_factors(model):
        if factor.adapter == trained:
            earlier[factor.place, factor.side] = factor.linear.weight.detach()
            scaling[factor.place] = factor.layer.scaling[trained]
    base = model.unload()
    set_seed(seed)
    policy = get_peft_model(base, config)
    factors = list_factors(policy)
    left_out = sorted(scaling.keys() - {factor.place for factor in factors})
    if left_out:
        names = sorted({place.rpartition(".")[2] for place in left_out})
        raise ValueError(
            f"a peft_config on a trained adapter has to cover all its layers, and {', '.join(names)} are missing "
            "from the new adapter. Add them to target_modules of the peft_config."
        )
    values = []
    for factor in factors:
        new = factor.linear.weight.detach()
        first = earlier.get((factor.place, factor.side))
        if first is None:  # a layer that the trained adapter does not have
            shape = list(new.shape)
            shape[factor.axis] = rank
            first = new.new_zeros(shape)
        elif factor.side == "B":
            first = first.to(new) * (scaling[factor.place] / factor.layer.scaling["default"])
        values.append((factor, torch.cat([first.to(new), new], dim=factor.axis)))
    set_factors(policy, values, rank + config.r)
    return policy


def frozen_parts(policy: PeftModel, rank: int) -> list[tuple[str, torch.Tensor]]:
    """Return the first ranks of the policy's adapter `default`, by the names of its factors, as views."""
    factors = [factor for factor in list_factors(policy) if factor.adapter == "default"]
    return [(factor.name, factor.linear.weight.detach().narrow(factor.axis, 0, rank)) for factor in factors]


class FrozenRanks(Part):
    """
    Keeps the first ranks of the policy's adapter `default` as they are.

    Args:
        policy ([`~peft.PeftModel`]): From [`stack`].
        rank (`int`): How many of its ranks stay.
    """

    def __init__(self, policy: PeftModel, rank: int):
        self.policy = policy
        self.rank = rank
        self._values = {name: part.clone() for name, part in frozen_parts(policy, rank)}

    @property
    def size(self) -> int:
        """The number of values that stay."""
        return sum(value.numel() for value in self._values.values())

    def gradients(self, model) -> None:
        for factor in list_factors(self.policy):
            gradient = factor.linear.weight.grad
            if gradient is not None:
                gradient.narrow(factor.axis, 0, self.rank).zero_()

    @torch.no_grad()
    def update(self, step: int, model) -> None:
        # Without a gradient Adam leaves them alone, but weight decay does not.
        for name, part in frozen_parts(self.policy, self.rank):
            part.copy_(self._values[name])
