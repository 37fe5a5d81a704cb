"""
The descriptor of a key: which values it takes, what it changes, what a resume may do with it, and which other key it
needs. Nothing is imported that takes long, because command lines and reports ask before torch is there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Flag, auto
from numbers import Real
from types import NoneType
from typing import Any, get_args, get_type_hints


ValueOf = Callable[[str], Any]  # the value of a key by its name, `None` for one that a configuration lacks


class Effect(Flag):
    """What a key changes of TRL's training where it is not at its default."""

    NOTHING = 0  # it watches, or says how something is done that another key asks for
    STEP = auto()  # the numbers or the forwards of a step
    TERM = auto()  # it adds a KL term
    KL = auto()  # how a KL term is computed, TRL's own among them
    BOUNDARY = auto()  # weights or ranks, at a generation boundary
    RESET = auto()  # it requests resets


@dataclass(frozen=True)
class Values:
    """
    The values that a key may have.

    Attributes:
        is_right (`Callable`): Whether a value is one of them.
        words (`str`): What they are, after "must be".
        names (`tuple[str, ...]`, *optional*): All of them, where they are names.
    """

    is_right: Callable[[Any], bool]
    words: str = ""
    names: tuple[str, ...] = ()


def one_of(*names: str) -> Values:
    return Values(names.__contains__, names=names)


def number(is_right: Callable[[float], bool], words: str) -> Values:
    """Make the values of numbers in a range, in which NaN never is; NumPy's are among them."""

    def check(value: Any) -> bool:
        return isinstance(value, Real) and not isinstance(value, bool) and is_right(value)

    return Values(check, words)


def whole(least: int) -> Values:
    return number(lambda value: value >= least and float(value).is_integer(), f"a whole number from {least}")


@dataclass(frozen=True)
class Need:
    """
    What a key cannot do without; it has no effect where this is not there.

    Attributes:
        is_met (`Callable[[ValueOf], bool]`): Whether it is there.
        line (`str`): What refuses a key without it; `{key}` and `{value!r}` stand for the key and its value.
        adjusted (`bool`, *optional*, defaults to `False`):
            Whether the key does no more than to adjust it, so that reports leave the key out.
    """

    is_met: Callable[[ValueOf], bool]
    line: str
    adjusted: bool = False


def is_on(value: Any) -> bool:
    """Return whether a value is not off: not `None`, 0, `False` or `"off"`."""
    return value not in (None, 0, "off")


def switched_on(changed: Mapping[str, list[Any]], key: str) -> bool:
    """Return whether a key was off, `[then, now]`, and is not any more."""
    if key not in changed:
        return False
    then, now = changed[key]
    return is_on(now) and not is_on(then)


def switched_off(changed: Mapping[str, list[Any]], key: str) -> bool:
    """Return whether a key was on, and is not any more."""
    if key not in changed:
        return False
    then, now = changed[key]
    return is_on(then) and not is_on(now)


def needs(*keys: str, value: Any = None, written: str | None = None, line: str | None = None) -> Need:
    """
    Make the need of another key.

    Args:
        keys (`str`): The keys of which one has to be on, or to have the value.
        value (`Any`, *optional*): The value, or several as a tuple.
        written (`str`, *optional*): How the refusal spells what is missing.
        line (`str`, *optional*): A whole refusal, of a key that does more than adjust the others.
    """
    values = value if isinstance(value, tuple) else (value,)

    def is_met(value_of: ValueOf) -> bool:
        if value is None:
            return any(is_on(value_of(key)) for key in keys)
        return any(value_of(key) in values for key in keys)

    if line is not None:
        return Need(is_met, line)
    if written is None:
        written = " or ".join(keys)
        if value is not None:
            written += f": {' or '.join(map(str, values))}"
    line = f"{{key}}={{value!r}} has no effect without {written}. Set that, or leave {{key}} out."
    return Need(is_met, line, adjusted=True)


# What a resume does with a key that has changed, by its values then and now, and all keys as they are now: a reason
# for which it cannot be changed, or `None`.
Resume = Callable[[Any, Any, Mapping[str, Any]], str | None]


def applies(then: Any, now: Any, keys: Mapping[str, Any]) -> None:
    """It acts from the checkpoint on, with `allow_config_change`."""


def free(then: Any, now: Any, keys: Mapping[str, Any]) -> None:
    """It may always change, because no number of a run depends on it."""


@dataclass(frozen=True)
class Key:
    """
    A key, as `Annotated[TYPE, Key(...)] = DEFAULT` declares it in [`~trl_prorl.keys`].

    Attributes:
        values (`Values`): Its values, beside `None` where the type says so.
        effect (`Effect` or `Callable[[Any], Effect]`):
            What it changes where it is not at its default, or what a value changes.
        resume (`Resume`): [`applies`], [`free`] or a rule of its own.
        need (`Need`, *optional*), example (`Any`, *optional*): What it cannot do without, and a value that shows it in
            docs/reference.md; both are given, or neither.
        label (`str`, *optional*): Its form in the names of arms; `None`: `key=value`.
        fast (`Any`, *optional*): The value that the key `fast` gives it.
        default (`Any`), nullable (`bool`): Of the field that it describes.
    """

    values: Values
    effect: Effect | Callable[[Any], Effect]
    resume: Resume
    need: Need | None = None
    example: Any = None
    label: str | None = None
    fast: Any = None
    default: Any = None
    nullable: bool = False

    @property
    def choices(self) -> tuple[str | None, ...]:
        """All its values, where they are names."""
        if self.values.names and self.nullable:
            return (None, *self.values.names)
        return self.values.names

    def wrong(self, name: str, value: Any) -> str | None:
        """Return the line that refuses a value that is wrong by itself, with the key, the value and what is right."""
        if self.values.is_right(value) or (self.nullable and value is None):
            return None
        if self.choices:
            return f"{name}={value!r} is not one of {', '.join(map(str, self.choices))}."
        return f"{name}={value!r} must be {self.values.words}."

    def unused(self, name: str, value_of: ValueOf) -> str | None:
        """Return the line that refuses its value if that is not its default though nothing uses it."""
        value = value_of(name)
        if self.need is None or value == self.default or self.need.is_met(value_of):
            return None
        return self.need.line.format(key=name, value=value)

    def effect_of(self, name: str, value_of: ValueOf) -> Effect:
        """Return what its value changes."""
        value = value_of(name)
        if value in (None, self.default):
            return Effect.NOTHING
        effect = self.effect(value) if callable(self.effect) else self.effect
        if not effect or self.unused(name, value_of):
            return Effect.NOTHING
        return effect


def declared(cls: type) -> dict[str, Key]:
    """
    Collect the descriptors of a dataclass's fields, by name.

    Raises:
        `TypeError`: A field has no descriptor, or one that contradicts itself.
    """
    keys = {}
    hints = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        name = field.name
        hint = hints[name]
        descriptors = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Key)]
        if len(descriptors) != 1:
            raise TypeError(f"{name} has no descriptor: declare it as Annotated[TYPE, Key(...)] = DEFAULT.")
        key = replace(descriptors[0], default=field.default, nullable=NoneType in get_args(hint.__origin__))
        keys[name] = key
        has_one_alone = (key.need is None) != (key.example is None)
        if has_one_alone or (key.need and key.example == key.default):
            raise TypeError(f"{name}: a key that needs another one has an example, which is not its default.")
        if key.resume is free and key.effect is not Effect.NOTHING:
            raise TypeError(f"{name} changes training, so that a resume is not free to change it.")
        wrong = key.wrong(name, key.default)
        if wrong:
            raise TypeError(f"{wrong} It is the default.")
    return keys


def check_values(configuration: Any, keys: Mapping[str, Key]) -> None:
    """
    Refuse a value that is wrong by itself. `keys`: the descriptors of a configuration's fields.

    Raises:
        `ValueError`: The line names the first such key, its value and what is right.
    """
    for name, key in keys.items():
        line = key.wrong(name, getattr(configuration, name))
        if line is not None:
            raise ValueError(line)


def check_used(configuration: Any, keys: Mapping[str, Key]) -> None:
    """
    Refuse a value that nothing would ever look at. `keys`: the descriptors of a configuration's fields.

    Raises:
        `ValueError`: The line names the first such key, its value and the cure.
    """

    def value_of(name: str) -> Any:
        return getattr(configuration, name)

    for name, key in keys.items():
        line = key.unused(name, value_of)
        if line is not None:
            raise ValueError(line)
