"""
The algorithm's state apart from the engine that computes it: three schemas, each with a version of its own.

An update takes [`UpdateInputs`] to [`UpdateOutputs`]: growth, then a reset, then clipping, then Adam. The outputs of
one update are the state in the inputs of the next. [`Rollout`] is the data from which the gradients were computed.
docs/interchange.md has a table of each.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypedDict, get_type_hints

import torch

from ..errors import InputError
from ..treatments import factors
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


def tensor_field(needed: bool = True) -> Any:
    """Declare a tensor, or `None` if it is not needed."""
    default = MISSING if needed else None
    return field(default=default, metadata={"of": "update", "needed": needed})


def tensors_field(needed: bool = True) -> Any:
    """Declare tensors by the names of parameters: of every parameter, or of some if not all are needed."""
    return field(metadata={"of": "parameter", "needed": needed})


class Schema:
    """Converts between a dataclass, and tensors by label with JSON values; the three schemas derive from it."""

    schema: ClassVar[str]
    version: ClassVar[int]

    @classmethod
    def places(cls, names: Sequence[str]) -> Iterator[tuple[str, str | None, str, bool]]:
        """
        List the place of every tensor, in order.

        Returns:
            `Iterator[tuple]`: Its field, its parameter, its label (`advantages`, `gradients/model.weight`), and
                whether it has to be there.
        """
        for spec in fields(cls):
            if spec.metadata.get("of") == "update":
                yield spec.name, None, spec.name, spec.metadata["needed"]
            elif spec.metadata.get("of") == "parameter":
                for name in names:
                    yield spec.name, name, f"{spec.name}/{name}", spec.metadata["needed"]

    @classmethod
    def value_names(cls) -> list[str]:
        """List the fields that hold no tensors."""
        return [spec.name for spec in fields(cls) if "of" not in spec.metadata]

    @classmethod
    def check_values(cls, values: Mapping[str, Any]) -> None:
        """
        Raise an error for values that are not of the types of their fields.

        Raises:
            [`~trl_prorl.interchange.json_types.TypeMismatchError`]: The message names the value.
        """
        names = cls.value_names()
        hints = get_type_hints(cls)
        check_type(values, TypedDict("values", {name: hints[name] for name in names}))
        if values["update"] < 1:
            raise TypeMismatchError(f"update is {values['update']}; updates are numbered from 1")

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return every tensor by its label, in the order of the schema."""
        found = {}
        for name, parameter, label, _ in self.places(getattr(self, "names", ())):
            held = getattr(self, name)
            found[label] = held if parameter is None else held.get(parameter)
        return {label: held for label, held in found.items() if held is not None}

    def values(self) -> dict[str, Any]:
        """Return everything that is no tensor."""
        return {name: getattr(self, name) for name in self.value_names()}

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> "Schema":
        """Make the dataclass of `tensors()` and `values()`."""
        held: dict[str, Any] = {spec.name: {} for spec in fields(cls) if spec.metadata.get("of") == "parameter"}
        held.update(values)
        for name, parameter, label, _ in cls.places(values.get("names", ())):
            if parameter is None:
                held[name] = tensors.get(label)
            elif label in tensors:
                held[name][parameter] = tensors[label]
        return cls(**held)

    def check(self) -> None:
        """
        Raise an error for parts that do not fit each other.

        Raises:
            [`~trl_prorl.errors.InputError`]: The message names the tensor or the value.
        """
        try:
            self.check_values(self.values())
        except TypeMismatchError as error:
            raise InputError(f"{self.schema}: {error}.") from None
        self.check_tensors()

    def check_tensors(self) -> None:
        """Raise an error for tensors that do not fit each other and the values."""


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

    prompt_ids: torch.Tensor = tensor_field()
    prompt_mask: torch.Tensor = tensor_field()
    completion_ids: torch.Tensor = tensor_field()
    completion_mask: torch.Tensor = tensor_field()
    advantages: torch.Tensor = tensor_field()
    rewards: torch.Tensor = tensor_field()
    group: torch.Tensor = tensor_field()
    update: int
    reward_functions: list[str]
    logp_old: torch.Tensor | None = tensor_field(needed=False)
    logp_ref: torch.Tensor | None = tensor_field(needed=False)

    def check_tensors(self) -> None:
        rows = len(self.advantages)
        like = {
            "prompt_mask": self.prompt_ids,
            "completion_mask": self.completion_ids,
            "logp_old": self.completion_ids,
            "logp_ref": self.completion_ids,
        }
        for name, tensor in self.tensors().items():
            if len(tensor) != rows:
                raise InputError(f"rollout: tensor {name} has {len(tensor)} rows, and advantages has {rows}.")
            check_shape(f"rollout: tensor {name}", tensor, like.get(name, tensor).shape)


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

    parameters: dict[str, torch.Tensor] = tensors_field()
    gradients: dict[str, torch.Tensor] = tensors_field(needed=False)
    exp_avg: dict[str, torch.Tensor] = tensors_field()
    exp_avg_sq: dict[str, torch.Tensor] = tensors_field()
    steps: dict[str, torch.Tensor] = tensors_field()
    new_rows: dict[str, torch.Tensor] = tensors_field(needed=False)
    names: list[str]
    groups: list[Group]
    clip_norm: float
    grad_norm: float
    update: int
    growth: Growth | None = None
    reset: Reset | None = None
    schedule: dict | None = None
    scaler: dict | None = None

    def check_tensors(self) -> None:
        check_state(self)
        listed = [name for group in self.groups for name in group["parameters"]]
        if listed != self.names:
            different = [group for group, name in zip(listed, self.names, strict=False) if group != name]
            wrong = different[0] if different else "the last one"
            raise InputError(f"inputs: groups and names list different parameters, from {wrong} on.")
        reset_factors(self.reset)
        for name, tensor in self.gradients.items():
            check_shape(
                f"inputs: tensor gradients/{name}",
                tensor,
                shape_after_growth(name, self.parameters[name], self.growth),
            )
        added = 0 if self.growth is None else self.growth["new_rank"] - self.growth["old_rank"]
        drawn = [name for name in self.names if self.growth is not None and grows(name) == 0]
        for name in {**dict.fromkeys(drawn), **self.new_rows}:
            expected = [added, *self.parameters[name].shape[1:]] if name in drawn else None
            check_shape(f"inputs: tensor new_rows/{name}", self.new_rows.get(name), expected)


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

    parameters: dict[str, torch.Tensor] = tensors_field()
    exp_avg: dict[str, torch.Tensor] = tensors_field()
    exp_avg_sq: dict[str, torch.Tensor] = tensors_field()
    steps: dict[str, torch.Tensor] = tensors_field()
    names: list[str]
    update: int
    inputs: str
    metrics: dict[str, float]

    def check_tensors(self) -> None:
        check_state(self)
        for name, tensor in self.tensors().items():
            if not tensor.isfinite().all():
                raise InputError(f"outputs: tensor {name} contains NaN or infinity.")
        for name, tensor in self.exp_avg_sq.items():
            if (tensor < 0).any():
                raise InputError(f"outputs: tensor exp_avg_sq/{name} is negative somewhere; it is a mean of squares.")
        for name, tensor in self.steps.items():
            if tensor.item() < 0 or tensor.item() % 1:
                raise InputError(f"outputs: tensor steps/{name} is {tensor.item():g}, not a number of updates.")


def reset_factors(reset: Mapping[str, Any] | None) -> tuple[float, float, bool]:
    """Return the factor of a reset on m, that on v, and whether it clears t; 1, 1 and `False` without one."""
    try:
        return factors(reset["mode"], reset["alpha"]) if reset is not None else factors("keep", 1.0)
    except ValueError as error:
        raise InputError(f"inputs: reset: {error}") from None


def grows(name: str) -> int | None:
    """Return the axis along which a parameter of LoRA has its rank: 0 for A, 1 for B, `None` for any other."""
    parts = name.split(".")
    if "lora_A" in parts:
        return 0
    if "lora_B" in parts:
        return 1
    return None


def shape_after_growth(name: str, parameter: torch.Tensor, growth: Mapping[str, int] | None) -> list[int]:
    """Return the shape of a parameter after a growth."""
    shape = list(parameter.shape)
    axis = grows(name)
    if growth is not None and axis is not None:
        shape[axis] = growth["new_rank"]
    return shape


def check_state(data: UpdateInputs | UpdateOutputs) -> None:
    """Require that every parameter is named once, its moments have its shape, and its t has the shape `(1,)`."""
    for name, count in Counter(data.names).items():
        if count > 1:
            raise InputError(f"{data.schema}: names lists {name} twice.")
        parameter = data.parameters[name]
        for kind, shape in (("exp_avg", parameter.shape), ("exp_avg_sq", parameter.shape), ("steps", [1])):
            check_shape(f"{data.schema}: tensor {kind}/{name}", getattr(data, kind)[name], shape)


def check_shape(label: str, found: torch.Tensor | None, expected: Sequence[int] | None) -> None:
    """Raise an error for a tensor of another shape; `None` stands for one that is absent."""
    is_shape = None if found is None else list(found.shape)
    needed = None if expected is None else list(expected)
    if is_shape != needed:
        raise InputError(f"{label} is {is_shape or 'absent'}, not {needed or 'absent'}.")
