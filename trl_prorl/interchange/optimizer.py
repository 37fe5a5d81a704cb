"""A live Adam optimizer by the names of its parameters: its state as a schema has it, and that state set."""

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import InputError
from ..resets.optimizer_state import inner_of


MOMENTS = ("exp_avg", "exp_avg_sq")


def named_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """
    The optimizer's parameters by their names in the model, in the order of its groups. Raises
    [`~trl_prorl.errors.InputError`]: the optimizer is not torch's Adam or AdamW, or has a parameter that is not the
    model's.
    """
    inner = inner_of(optimizer)
    if type(inner) not in (torch.optim.Adam, torch.optim.AdamW):
        raise InputError(
            f"optimizer {type(inner).__module__}.{type(inner).__name__}: only the state of torch's Adam and AdamW is "
            "exchanged. Set optim: adamw_torch or adamw_torch_fused."
        )
    for key in ("amsgrad", "maximize"):
        if any(group.get(key) for group in inner.param_groups):
            raise InputError(f"optimizer {type(inner).__name__} with {key}=True is not exchanged: leave it out.")
    names = {id(param): name for name, param in model.named_parameters()}
    found = {}
    for group in inner.param_groups:
        for param in group["params"]:
            if id(param) not in names:
                raise InputError("The optimizer holds a parameter that is not the model's (sharded, or replaced).")
            found[names[id(param)]] = param
    return found


def groups_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[dict[str, Any]]:
    """The groups as [`~trl_prorl.interchange.schemas.UpdateInputs`] has them."""
    inner = inner_of(optimizer)
    names = {id(param): name for name, param in model.named_parameters()}
    return [
        {
            "lr": float(group["lr"]),
            "beta1": float(group["betas"][0]),
            "beta2": float(group["betas"][1]),
            "eps": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
            "decoupled": isinstance(inner, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay")),
            "parameters": [names[id(param)] for param in group["params"]],
        }
        for group in inner.param_groups
    ]


def live_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, dict[str, torch.Tensor]]:
    """
    The live tensors by name: `parameters`, `exp_avg`, `exp_avg_sq`, `steps` of shape `(1,)`. The state of a parameter
    without an update is zeros.

    Args:
        optimizer (`torch.optim.Optimizer`): torch's Adam or AdamW, or Accelerate's wrapper of one.
        parameters (`Mapping[str, torch.nn.Parameter]`): From `named_parameters`.
    """
    inner = inner_of(optimizer)
    found: dict[str, dict[str, torch.Tensor]] = {"parameters": {}, "exp_avg": {}, "exp_avg_sq": {}, "steps": {}}
    for name, param in parameters.items():
        state = inner.state.get(param, {})
        found["parameters"][name] = param.detach()
        for key in MOMENTS:
            found[key][name] = state[key] if key in state else param.detach().new_zeros(()).expand(param.shape)
        found["steps"][name] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32).reshape(1)
    return found


def state_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter], copy: bool = False
) -> dict[str, dict[str, torch.Tensor]]:
    """`live_state` on the CPU; `copy` if the tensors must outlive the next update."""
    return {
        kind: {name: tensor.to("cpu", copy=copy) for name, tensor in held.items()}
        for kind, held in live_state(optimizer, parameters).items()
    }


@torch.no_grad()
def set_state(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    state: Mapping[str, Mapping[str, torch.Tensor]],
) -> None:
    """
    Set parameters, m, v and t, in place: tensors keep their storage. What can fail is done before the first is set.

    Args:
        optimizer, parameters: As in `live_state`.
        state (`Mapping`): As `state_of` returns it, in the shapes of the parameters.
    """
    inner = inner_of(optimizer)
    writes: list[tuple[torch.Tensor, torch.Tensor]] = []
    made: dict[torch.nn.Parameter, dict[str, torch.Tensor]] = {}
    groups = {param: group for group in inner.param_groups for param in group["params"]}
    for name, param in parameters.items():
        held = inner.state.get(param)
        if not held:  # as torch makes it at the first update
            on_device = groups[param].get("capturable") or groups[param].get("fused")
            held = {"step": torch.zeros((), dtype=torch.float32, device=param.device if on_device else "cpu")}
            held |= {key: torch.zeros_like(param, memory_format=torch.preserve_format) for key in MOMENTS}
            made[param] = held
        new = {"step": state["steps"][name].reshape(()), **{key: state[key][name] for key in MOMENTS}}
        pairs = [(param, state["parameters"][name]), *((held[key], value) for key, value in new.items())]
        writes += [(target, value.to(target.device, target.dtype)) for target, value in pairs]
    for param, held in made.items():
        inner.state[param] = held
    for target, value in writes:
        target.copy_(value)
