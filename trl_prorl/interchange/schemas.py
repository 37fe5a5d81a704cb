"""
The algorithm's state apart from the engine that computes it: three schemas, each with a version of its own.

An update takes [`UpdateInputs`] to [`UpdateOutputs`]: growth, then a reset, then clipping, then Adam. The outputs of
one update are the state in the inputs of the next. [`Rollout`] is the data from which the gradients were computed.
docs/interchange.md has a table of each.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypedDict

import torch

from ..errors import InputError
from ..resets.treatments import factors


# The state that an update takes over and hands on.
STATE = ("parameters", "exp_avg", "exp_avg_sq", "steps")

# What a field holds.
ONE, MAYBE, EACH, SOME, VALUE = "tensor", "tensor or absent", "tensor of each parameter", "of some parameters", "value"


class Group(TypedDict):
    """A group of parameters of the optimizer; `decoupled` is AdamW's decay."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    parameters: list[str]


class GrowthStep(TypedDict):
    """A growth of the LoRA rank."""

    old_rank: int
    new_rank: int


class ResetStep(TypedDict):
    """A reset; the last two are already in the learning rate."""

    mode: str
    alpha: float
    restarts_schedule: bool
    rewarmup_steps: int


def one() -> Any:
    """A tensor."""
    return field(metadata={"holds": ONE})


def maybe() -> Any:
    """A tensor, or `None`."""
    return field(default=None, metadata={"holds": MAYBE})


def each() -> Any:
    """A tensor of every parameter, by name."""
    return field(metadata={"holds": EACH})


def some() -> Any:
    """A tensor of some parameters, by name."""
    return field(metadata={"holds": SOME})


def value(default: Any = MISSING) -> Any:
    """A value that JSON can hold."""
    return field(metadata={"holds": VALUE}, **({} if default is MISSING else {"default": default}))


class Schema:
    """Base of the three: between a dataclass, and tensors by name with JSON values."""

    schema: ClassVar[str]
    version: ClassVar[int]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by its name, in the order of the schema: `advantages`, `gradients/model.weight`."""
        found = {}
        for spec in fields(self):
            held, holds = getattr(self, spec.name), spec.metadata["holds"]
            if holds in (ONE, MAYBE) and held is not None:
                found[spec.name] = held
            elif holds in (EACH, SOME):
                found |= {f"{spec.name}/{name}": held[name] for name in self.names if name in held}
        return found

    def values(self) -> dict[str, Any]:
        """Everything that is no tensor."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.metadata["holds"] == VALUE}

    @classmethod
    def order(cls, values: Mapping[str, Any]) -> dict[str, bool]:
        """The names of the tensors in their order, each with whether it has to be there."""
        found = {}
        for spec in fields(cls):
            holds = spec.metadata["holds"]
            if holds in (ONE, MAYBE):
                found[spec.name] = holds == ONE
            elif holds in (EACH, SOME):
                found |= {f"{spec.name}/{name}": holds == EACH for name in values["names"]}
        return found

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> "Schema":
        """The dataclass of `tensors()` and `values()`."""
        held = dict(values)
        for spec in fields(cls):
            holds = spec.metadata["holds"]
            if holds in (ONE, MAYBE):
                held[spec.name] = tensors.get(spec.name)
            elif holds in (EACH, SOME):
                given = {name: tensors.get(f"{spec.name}/{name}") for name in values["names"]}
                held[spec.name] = {name: tensor for name, tensor in given.items() if tensor is not None}
        return cls(**held)

    @classmethod
    def value_names(cls) -> set[str]:
        """The keys of `values()`."""
        return {spec.name for spec in fields(cls) if spec.metadata["holds"] == VALUE}

    def check(self) -> None:
        """Raise [`~trl_prorl.errors.InputError`], naming the tensor, if the parts do not fit each other."""


@dataclass
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

    prompt_ids: torch.Tensor = one()
    prompt_mask: torch.Tensor = one()
    completion_ids: torch.Tensor = one()
    completion_mask: torch.Tensor = one()
    advantages: torch.Tensor = one()
    rewards: torch.Tensor = one()
    group: torch.Tensor = one()
    update: int = value()
    reward_functions: list[str] = value()
    logp_old: torch.Tensor | None = maybe()
    logp_ref: torch.Tensor | None = maybe()

    def check(self) -> None:
        rows = len(self.advantages)
        like = {"prompt_mask": self.prompt_ids, "completion_mask": self.completion_ids}
        like |= {"logp_old": self.completion_ids, "logp_ref": self.completion_ids}
        for name, tensor in self.tensors().items():
            if len(tensor) != rows:
                raise InputError(f"rollout: tensor {name} has {len(tensor)} rows, and advantages has {rows}.")
            if name in like and tensor.shape != like[name].shape:
                raise InputError(f"rollout: tensor {name} is {list(tensor.shape)}, not {list(like[name].shape)}.")


@dataclass
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

    parameters: dict[str, torch.Tensor] = each()
    gradients: dict[str, torch.Tensor] = some()
    exp_avg: dict[str, torch.Tensor] = each()
    exp_avg_sq: dict[str, torch.Tensor] = each()
    steps: dict[str, torch.Tensor] = each()
    new_rows: dict[str, torch.Tensor] = some()
    names: list[str] = value()
    groups: list[Group] = value()
    clip_norm: float = value()
    grad_norm: float = value()
    update: int = value()
    growth: GrowthStep | None = value(None)
    reset: ResetStep | None = value(None)
    schedule: dict[str, Any] | None = value(None)
    scaler: dict[str, Any] | None = value(None)

    def check(self) -> None:
        _check_names("inputs", self.names)
        listed = [name for group in self.groups for name in group["parameters"]]
        if listed != self.names:
            wrong = next((a for a, b in zip(listed, self.names, strict=False) if a != b), "the last one")
            raise InputError(f"inputs: the groups list other parameters than names, from {wrong} on.")
        reset_factors(self.reset)
        _check_state("inputs", self.parameters, self.exp_avg, self.exp_avg_sq, self.steps)
        for name, tensor in self.gradients.items():
            expected = list(grown_shape(name, self.parameters[name].shape, self.growth))
            if list(tensor.shape) != expected:
                raise InputError(f"inputs: tensor gradients/{name} is {list(tensor.shape)}, not {expected}.")
        drawn = [name for name in self.names if self.growth is not None and grows(name) == 0]
        for name in {**dict.fromkeys(drawn), **self.new_rows}:
            expected = None
            if name in drawn:
                count = self.growth["new_rank"] - self.growth["old_rank"]
                expected = [count, *self.parameters[name].shape[1:]]
            found = list(self.new_rows[name].shape) if name in self.new_rows else None
            if found != expected:
                raise InputError(f"inputs: tensor new_rows/{name} is {found or 'absent'}, not {expected or 'absent'}.")


@dataclass
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

    parameters: dict[str, torch.Tensor] = each()
    exp_avg: dict[str, torch.Tensor] = each()
    exp_avg_sq: dict[str, torch.Tensor] = each()
    steps: dict[str, torch.Tensor] = each()
    names: list[str] = value()
    update: int = value()
    inputs: str = value()
    metrics: dict[str, float] = value()

    def check(self) -> None:
        _check_names("outputs", self.names)
        _check_state("outputs", self.parameters, self.exp_avg, self.exp_avg_sq, self.steps)
        for name, tensor in self.tensors().items():
            if not tensor.isfinite().all():
                raise InputError(f"outputs: tensor {name} holds NaN or infinity.")
        for name, tensor in self.exp_avg_sq.items():
            if (tensor < 0).any():
                raise InputError(f"outputs: tensor exp_avg_sq/{name} is negative somewhere, and a square is not.")
        for name, tensor in self.steps.items():
            if tensor.item() < 0 or tensor.item() % 1:
                raise InputError(f"outputs: tensor steps/{name} is {tensor.item():g}, not a number of updates.")


def reset_factors(reset: ResetStep | None) -> tuple[float, float, bool]:
    """The factor of a reset on m, that on v, and whether it clears t; 1, 1 and `False` without one."""
    try:
        return factors(reset["mode"], reset["alpha"]) if reset is not None else factors("keep", 1.0)
    except ValueError as error:
        raise InputError(f"inputs: reset: {error}") from None


def _check_names(schema: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{schema}: names lists {twice} twice.")


def grows(name: str) -> int | None:
    """The axis along which a parameter of LoRA has its rank: 0 for A, 1 for B, `None` for any other."""
    parts = name.split(".")
    return 0 if "lora_A" in parts else 1 if "lora_B" in parts else None


def grown_shape(name: str, shape: torch.Size, growth: Mapping[str, int] | None) -> torch.Size:
    """The shape of a parameter after a growth."""
    axis = grows(name)
    if growth is None or axis is None:
        return shape
    return torch.Size([growth["new_rank"] if place == axis else size for place, size in enumerate(shape)])


def _check_state(schema: str, parameters: dict, exp_avg: dict, exp_avg_sq: dict, steps: dict) -> None:
    for kind, held in (("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)):
        for name, tensor in held.items():
            if tensor.shape != parameters[name].shape:
                shape, theirs = list(tensor.shape), list(parameters[name].shape)
                raise InputError(f"{schema}: tensor {kind}/{name} is {shape}, and its parameter {theirs}.")
    for name, tensor in steps.items():
        if list(tensor.shape) != [1]:
            raise InputError(f"{schema}: tensor steps/{name} is {list(tensor.shape)}, not [1].")
