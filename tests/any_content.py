"""Files with anything in any place: for the tests that no content of theirs ends in a traceback."""

from hypothesis import HealthCheck, Phase


# A failure shows the content as it is: to shrink it takes minutes.
QUICK = {
    "phases": [Phase.generate],
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


def places(value, at=()):
    """Where something may be changed in a value: itself, and everything in it."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def changed(value, at, new):
    """A copy of a value with another one in a place; `...` leaves it out."""
    if not at:
        return new
    copy = value.copy()
    if new is ... and len(at) == 1:
        del copy[at[0]]
    else:
        copy[at[0]] = changed(value[at[0]], at[1:], new)
    return copy
