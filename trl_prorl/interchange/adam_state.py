"""The state of an Adam optimizer by the names of its parameters: read, and set."""

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import InputError
from ..optimizer import inner_of


Parameters = dict[str, torch.nn.Parameter]
State = dict[str, dict[str, torch.Tensor]]


def named_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Parameters:
    """
    Map the optimizer's parameters by their names in the model, in the order of its groups.

    Raises:
        [`~trl_prorl.errors.InputError`]: The optimizer is not torch's Adam or AdamW, or has a parameter that is not
            the model's.
    """
    inner = inner_of(optimizer)
    kind = type(inner)
    if kind not in (torch.optim.Adam, torch.optim.AdamW):
        raise InputError(
            f"optimizer {kind.__module__}.{kind.__name__} is not supported: only torch's Adam and AdamW can be "
            "exported. Set optim: adamw_torch or adamw_torch_fused."
        )
    names = {param: name for name, param in model.named_parameters()}
    found = {}
    for group in inner.param_groups:
        for key in ("amsgrad", "maximize"):
            if group[key]:
                raise InputError(f"optimizer {kind.__name__} with {key}=True cannot be exported: remove {key}.")
        for param in group["params"]:
            if param not in names:
                raise InputError("The optimizer contains a parameter that is not the model's (sharded, or replaced).")
            found[names[param]] = param
    return found


def describe_groups(optimizer: torch.optim.Optimizer, parameters: Parameters, rate_factor: float) -> list[dict]:
    """Describe the optimizer's groups as `UpdateInputs` has them; the factor is that of the re-warm-up."""
    inner = inner_of(optimizer)
    names = {param: name for name, param in parameters.items()}
    found = []
    for group in inner.param_groups:
        beta1, beta2 = group["betas"]
        described = {
            "lr": float(group["lr"]) * rate_factor,
            "eps": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "decoupled": isinstance(inner, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay")),
            "parameters": [names[param] for param in group["params"]],
        }
        found.append(described)
    return found


def live_state(optimizer: torch.optim.Optimizer, parameters: Parameters) -> State:
    """
    Return the live tensors by name: `parameters`, `exp_avg`, `exp_avg_sq`, `steps` of shape `(1,)`.

    The state of a parameter without an update is zeros.

    Args:
        optimizer (`torch.optim.Optimizer`): torch's Adam or AdamW, or Accelerate's wrapper of one.
        parameters (`dict[str, torch.nn.Parameter]`): From `named_parameters`.
    """
    inner = inner_of(optimizer)
    found: State = {"parameters": {}, "exp_avg": {}, "exp_avg_sq": {}, "steps": {}}
    for name, param in parameters.items():
        value = param.detach()
        state = inner.state.get(param) or {"exp_avg": torch.zeros_like(value), "exp_avg_sq": torch.zeros_like(value)}
        found["parameters"][name] = value
        found["exp_avg"][name] = state["exp_avg"]
        found["exp_avg_sq"][name] = state["exp_avg_sq"]
        found["steps"][name] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32).reshape(1)
    return found


def state_on_cpu(optimizer: torch.optim.Optimizer, parameters: Parameters, copy: bool) -> State:
    """Return `live_state` on the CPU; as a copy if it has to outlive the next update."""
    live = live_state(optimizer, parameters)
    return {
        kind: {name: tensor.to("cpu", copy=copy) for name, tensor in tensors.items()} for kind, tensors in live.items()
    }


@torch.no_grad()
def set_state(
    optimizer: torch.optim.Optimizer, parameters: Parameters, state: Mapping[str, Mapping[str, torch.Tensor]]
) -> None:
    """
    Set parameters, in place, and m, v and t.

    Args:
        optimizer (`torch.optim.Optimizer`), parameters (`dict[str, torch.nn.Parameter]`): As in `live_state`.
        state (`Mapping[str, Mapping[str, torch.Tensor]]`): As of `live_state`, in the parameters' shapes.
    """
    inner = inner_of(optimizer)
    entries: dict[int, dict[str, Any]] = {}
    for place, name in enumerate(parameters):
        entries[place] = {
            "step": state["steps"][name].reshape(()).clone(),
            "exp_avg": state["exp_avg"][name].clone(),
            "exp_avg_sq": state["exp_avg_sq"][name].clone(),
        }
    inner.load_state_dict({**inner.state_dict(), "state": entries})
    for name, param in parameters.items():
        param.copy_(state["parameters"][name])
