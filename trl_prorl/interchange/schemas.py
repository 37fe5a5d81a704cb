"""
The algorithm's state apart from the engine that computes it: three schemas, each with a version of its own.

An update takes [`UpdateInputs`] to [`UpdateOutputs`]: growth, then a reset, then clipping, then Adam. The outputs of
one update are the state in the inputs of the next. [`Rollout`] is the data from which the gradients were computed.
docs/interchange.md has a table of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypedDict, get_type_hints

import torch

from ..errors import InputError
from .json_types import TypeMismatchError, check_type


# The state that an update takes over and hands on.
STATE = ("parameters", "exp_avg", "exp_avg_sq", "steps")


class Group(TypedDict):
    """A group of the optimizer: `lr` is the one in force; `decoupled` is AdamW's decay."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    parameters: list[str]


class Growth(TypedDict):
    """A growth of the adapters."""

    old_rank: int
    new_rank: int


class Reset(TypedDict):
    """A reset of the optimizer; the last two are already in the learning rate."""

    mode: str
    alpha: float
    restarts_schedule: bool
    rewarmup_steps: int


# The types of tensors: one, one of each parameter, and with `None` those that may be absent.
Tensors = dict[str, torch.Tensor]
SomeTensors = dict[str, torch.Tensor | None]


class Schema:
    """Converts between a dataclass, and tensors by label with JSON values; the three schemas derive from it."""

    schema: ClassVar[str]
    version: ClassVar[int]

    @classmethod
    def types(cls) -> dict[str, Any]:
        """Return the type of every field, in order."""
        hints = get_type_hints(cls)
        return {field.name: hints[field.name] for field in fields(cls)}

    @classmethod
    def value_types(cls) -> dict[str, Any]:
        """Return the type of every field that holds no tensors."""
        tensors = (torch.Tensor, torch.Tensor | None, Tensors, SomeTensors)
        return {name: kind for name, kind in cls.types().items() if kind not in tensors}

    @classmethod
    def labels(cls, names: Sequence[str]) -> dict[str, bool]:
        """
        List the tensors of a schema, in order.

        Args:
            names (`Sequence[str]`): The parameters.

        Returns:
            `dict[str, bool]`: Whether a tensor has to be there, by its label: `advantages`, `gradients/model.weight`.
        """
        found = {}
        for field, kind in cls.types().items():
            if kind in (torch.Tensor, torch.Tensor | None):
                found[field] = kind is torch.Tensor
            elif kind in (Tensors, SomeTensors):
                found |= {f"{field}/{name}": kind == Tensors for name in names}
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return every tensor by its label, in the order of the schema."""
        found = {}
        for label in self.labels(getattr(self, "names", ())):
            field, _, name = label.partition("/")
            held = getattr(self, field)
            tensor = held.get(name) if name else held
            if tensor is not None:
                found[label] = tensor
        return found

    def values(self) -> dict[str, Any]:
        """Return everything that is no tensor."""
        return {name: getattr(self, name) for name in self.value_types()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> "Schema":
        """Make the dataclass of `tensors()` and `values()`."""
        held: dict[str, Any] = {field: {} for field, kind in cls.types().items() if kind in (Tensors, SomeTensors)}
        for label, tensor in tensors.items():
            field, _, name = label.partition("/")
            if name:
                held[field][name] = tensor
            else:
                held[field] = tensor
        return cls(**values, **held)

    @classmethod
    def check_values(cls, values: Mapping[str, Any]) -> None:
        """
        Raise an error for values that are not of the types of their fields.

        Raises:
            [`~trl_prorl.interchange.json_types.TypeMismatchError`]: The message names the value.
        """
        check_type(values, TypedDict("values", cls.value_types()), "values")
        if values["update"] < 1:
            raise TypeMismatchError(f"values.update is {values['update']}; updates are numbered from 1")

    def check(self) -> None:
        """
        Raise an error for what no engine could have meant. Whether tensors fit a trainer, an import checks.

        Raises:
            [`~trl_prorl.errors.InputError`]: The message names the tensor or the value.
        """
        try:
            self.check_values(self.values())
        except TypeMismatchError as error:
            raise InputError(f"{self.schema}: {error}.") from None


@dataclass(kw_only=True)
class Rollout(Schema):
    """
    The rows on which an update trains. N rows, P tokens of the longest prompt, T of the longest completion, F reward
    functions.

    Attributes:
        prompt_ids, prompt_mask (`torch.Tensor` of shape `(N, P)`): Tokens, padded on the left; 1 where a token counts.
        completion_ids, completion_mask (`torch.Tensor` of shape `(N, T)`): Tokens, padded on the right; 1 where a
            token is in the loss.
        advantages (`torch.Tensor` of shape `(N,)`): As the loss takes them.
        rewards (`torch.Tensor` of shape `(N, F)`): NaN where a function does not apply.
        group (`torch.Tensor` of shape `(N,)`): The number of the row's group in its generation batch.
        logp_old, logp_ref (`torch.Tensor` of shape `(N, T)`): Log-probabilities in nats, of π_old and of the
            reference. Absent where the loss reads none.
        update (`int`): Number of the update, from 1.
        reward_functions (`list[str]`): Their names, F of them.
    """

    schema = "rollout"
    version = 1

    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    completion_ids: torch.Tensor
    completion_mask: torch.Tensor
    advantages: torch.Tensor
    rewards: torch.Tensor
    group: torch.Tensor
    update: int
    reward_functions: list[str]
    logp_old: torch.Tensor | None = None
    logp_ref: torch.Tensor | None = None


@dataclass(kw_only=True)
class UpdateInputs(Schema):
    """
    Everything on which an update depends. Parameters and moments are those that the last update left; growth and the
    reset have not been carried out on them.

    Attributes:
        parameters (`dict[str, torch.Tensor]`): Every trained parameter.
        gradients (`dict[str, torch.Tensor]`): Before clipping, in the shapes after growth. A parameter without one is
            left as it is.
        exp_avg, exp_avg_sq (`dict[str, torch.Tensor]`): Adam's m and v; zeros before the first update.
        steps (`dict[str, torch.Tensor]`): Adam's t, each of shape `(1,)`.
        new_rows (`dict[str, torch.Tensor]`): The rows that a growth appends to each A. The columns that it appends to
            each B are zero.
        names (`list[str]`): The parameters, in the order of the optimizer's groups.
        groups (`list[dict]`): `lr` in force (schedule and re-warm-up included), `beta1`, `beta2`, `eps`,
            `weight_decay`, `decoupled` (AdamW's decay; otherwise it is added to the gradient) and `parameters`, a list
            of names.
        clip_norm (`float`): The norm to which gradients are clipped; 0 for no clipping.
        grad_norm (`float`): Their norm before clipping.
        update (`int`): Number of the update, from 1.
        growth (`dict`, *optional*): `old_rank`, `new_rank`.
        reset (`dict`, *optional*): `mode`, `alpha`, `restarts_schedule`, `rewarmup_steps`. The last two are already in
            `lr`.
        schedule (`dict`, *optional*): State of the learning-rate schedule before this update, and `rate_factor`, that
            of the re-warm-up.
        scaler (`dict`, *optional*): State of the AMP gradient scaler. The gradients are unscaled.
    """

    schema = "inputs"
    version = 1

    parameters: Tensors
    gradients: SomeTensors
    exp_avg: Tensors
    exp_avg_sq: Tensors
    steps: Tensors
    new_rows: SomeTensors
    names: list[str]
    groups: list[Group]
    clip_norm: float
    grad_norm: float
    update: int
    growth: Growth | None = None
    reset: Reset | None = None
    schedule: dict | None = None
    scaler: dict | None = None


@dataclass(kw_only=True)
class UpdateOutputs(Schema):
    """
    The state after an update.

    Attributes:
        parameters, exp_avg, exp_avg_sq, steps (`dict[str, torch.Tensor]`): As in [`UpdateInputs`], of every parameter.
        names (`list[str]`): The parameters, in the order of the inputs.
        update (`int`): Number of the update, from 1.
        inputs (`str`): The `sha256` of the sidecar of the inputs.
        metrics (`dict[str, float]`): Whatever the engine measures.
    """

    schema = "outputs"
    version = 1

    parameters: Tensors
    exp_avg: Tensors
    exp_avg_sq: Tensors
    steps: Tensors
    names: list[str]
    update: int
    inputs: str
    metrics: dict[str, float]

    def check(self) -> None:
        super().check()
        for label, tensor in self.tensors().items():
            if not tensor.isfinite().all():
                raise InputError(f"outputs: tensor {label} contains NaN or infinity.")
        for name, tensor in self.exp_avg_sq.items():
            if (tensor < 0).any():
                raise InputError(f"outputs: tensor exp_avg_sq/{name} is negative somewhere; it is a mean of squares.")
        for name, tensor in self.steps.items():
            if (tensor < 0).any() or (tensor % 1).any():
                raise InputError(f"outputs: tensor steps/{name} is {tensor.tolist()}, not a number of updates.")
