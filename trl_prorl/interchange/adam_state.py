"""The state of an Adam optimizer by the names of its parameters: read, and set."""

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import InputError
from ..optimizer import inner_of


MOMENTS = ("exp_avg", "exp_avg_sq")


def named_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """
    Map the optimizer's parameters by their names in the model, in the order of its groups.

    Raises:
        [`~trl_prorl.errors.InputError`]: The optimizer is not torch's Adam or AdamW, or has a parameter that is not
            the model's.
    """
    inner = inner_of(optimizer)
    if type(inner) not in (torch.optim.Adam, torch.optim.AdamW):
        raise InputError(
            f"optimizer {type(inner).__module__}.{type(inner).__name__} is not supported: only torch's Adam and "
            "AdamW can be exported. Set optim: adamw_torch or adamw_torch_fused."
        )
    for key in ("amsgrad", "maximize"):
        if any(group.get(key) for group in inner.param_groups):
            raise InputError(f"optimizer {type(inner).__name__} with {key}=True cannot be exported: remove {key}.")
    names = {id(param): name for name, param in model.named_parameters()}
    found = {}
    for group in inner.param_groups:
        for param in group["params"]:
            if id(param) not in names:
                raise InputError("The optimizer contains a parameter that is not the model's (sharded, or replaced).")
            found[names[id(param)]] = param
    return found


def groups_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[dict[str, Any]]:
    """Describe the optimizer's groups as [`~trl_prorl.interchange.schemas.UpdateInputs`] has them."""
    inner = inner_of(optimizer)
    found = []
    names = {id(param): name for name, param in model.named_parameters()}
    for group in inner.param_groups:
        beta1, beta2 = group["betas"]
        described = {
            "lr": float(group["lr"]),
            "eps": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "decoupled": isinstance(inner, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay")),
            "parameters": [names[id(param)] for param in group["params"]],
        }
        found.append(described)
    return found


def live_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, dict[str, torch.Tensor]]:
    """
    Return the live tensors by name: `parameters`, `exp_avg`, `exp_avg_sq`, `steps` of shape `(1,)`.

    The state of a parameter without an update is zeros.

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
            zeros = param.detach().new_zeros(()).expand(param.shape)
            found[key][name] = state.get(key, zeros)
        found["steps"][name] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32).reshape(1)
    return found


def state_of(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.nn.Parameter], copy: bool = False
) -> dict[str, dict[str, torch.Tensor]]:
    """Copy `live_state` to the CPU; `copy` if the tensors must outlive the next update."""
    live = live_state(optimizer, parameters)
    found = {}
    for kind, tensors in live.items():
        found[kind] = {name: tensor.to("cpu", copy=copy) for name, tensor in tensors.items()}
    return found


@torch.no_grad()
def set_state(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, torch.nn.Parameter],
    state: Mapping[str, Mapping[str, torch.Tensor]],
) -> None:
    """
    Set parameters, in place, and m, v and t.

    Args:
        optimizer (`torch.optim.Optimizer`): As in `live_state`.
        parameters (`Mapping[str, torch.nn.Parameter]`): As in `live_state`.
        state (`Mapping[str, Mapping[str, torch.Tensor]]`): As `state_of` returns it, in the shapes of the parameters.
    """
    inner = inner_of(optimizer)
    entries = {}
    for place, name in enumerate(parameters):
        entries[place] = {
            "step": state["steps"][name].clone().reshape(()),
            "exp_avg": state["exp_avg"][name].clone(),
            "exp_avg_sq": state["exp_avg_sq"][name].clone(),
        }
    inner.load_state_dict({**inner.state_dict(), "state": entries})
    for name, param in parameters.items():
        param.copy_(state["parameters"][name])
