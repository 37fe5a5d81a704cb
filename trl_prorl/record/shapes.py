"""The shape that a value read from JSON or YAML must have, and in words where it has another."""

import math
from collections.abc import Callable, Mapping
from typing import Any


# Raises a `ShapeError` if the value, whose place in the file is given, is not of the shape.
Shape = Callable[[Any, str], None]
LARGEST = 2**53  # integers above it are not exact as a float
LONGEST = 40  # characters of a value in a message


class ShapeError(ValueError):
    """A value is not of the shape that it must have; the message says where, what it is, and what is needed."""


def refuse(value: Any, at: str, needed: str) -> None:
    spelt = repr(value) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
    spelt = spelt if len(spelt) <= LONGEST else f"{spelt[: LONGEST - 1]}…"
    raise ShapeError(f"{at + ' is' if at else 'it holds'} {spelt}; {needed} is needed")


def anything(value: Any, at: str) -> None:
    """Accept any value."""


def text(value: Any, at: str) -> None:
    """Require a string."""
    if not isinstance(value, str):
        refuse(value, at, "text")


def flag(value: Any, at: str) -> None:
    """Require true or false."""
    if not isinstance(value, bool):
        refuse(value, at, "true or false")


def number(value: Any, at: str) -> None:
    """Require a number that a float can hold, NaN and infinity included."""
    if not is_number(value):
        refuse(value, at, "a number")


def is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) <= LARGEST


def measured(value: Any, at: str) -> None:
    """Require a number, true, false or null."""
    # Most are floats, and a record has a hundred thousand.
    if not (type(value) is float or value is None or isinstance(value, bool) or is_number(value)):
        refuse(value, at, "a number")


def scalar(value: Any, at: str) -> None:
    """Require a number, text, true, false or null."""
    if not (value is None or isinstance(value, (str, bool)) or is_number(value)):
        refuse(value, at, "a number or text")


def finite(least: float = -math.inf, most: float = math.inf) -> Shape:
    """Make the shape of a finite number within bounds."""

    def check(value, at):
        if not is_number(value) or not math.isfinite(value) or not least <= value <= most:
            refuse(value, at, f"a number from {least:g} to {most:g}" if math.isfinite(most) else "a finite number")

    return check


def integer(least: int = -LARGEST, most: int = LARGEST) -> Shape:
    """Make the shape of an integer within bounds."""

    def check(value, at):
        if not is_number(value) or isinstance(value, float) or not least <= value <= most:
            upper = f" to {most}" if most < LARGEST else ""
            refuse(value, at, f"an integer from {least}{upper}" if least > -LARGEST else "an integer")

    return check


def optional(shape: Shape) -> Shape:
    """Make the shape of null, or a value of a shape."""
    return lambda value, at: None if value is None else shape(value, at)


def array(shape: Shape, length: int | None = None, least: int = 0) -> Shape:
    """Make the shape of a list of values of one shape."""

    def check(value, at):
        if not isinstance(value, list):
            refuse(value, at, "a list")
        if len(value) < least or length not in (None, len(value)):
            size = f"a list of {length}" if length is not None else f"a list of at least {least}"
            refuse(f"of length {len(value)}", at, size)
        for place, one in enumerate(value):
            shape(one, f"{at}[{place}]")

    return check


def table(needed: Mapping[str, Shape] = {}, known: Mapping[str, Shape] = {}, rest: Shape = anything) -> Shape:  # noqa: B006
    """
    Make the shape of an object.

    Args:
        needed (`Mapping[str, Shape]`): Shapes of the keys that must be there.
        known (`Mapping[str, Shape]`): Shapes of keys that may be there.
        rest (`Shape`): The shape of the values of all other keys.
    """
    shapes = {**known, **needed}

    def check(value, at):
        if not isinstance(value, dict):
            refuse(value, at, "an object")
        for key in needed:
            if key not in value:
                raise ShapeError(f"{at + ' has' if at else 'it has'} no {key!r}")
        for key, one in value.items():
            if not isinstance(key, str):
                raise ShapeError(f"{at + ' has' if at else 'it has'} the key {key!r}; text is needed")
            shapes.get(key, rest)(one, f"{at}.{key}" if at else key)

    return check
