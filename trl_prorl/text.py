"""Text from elsewhere (names of runs and tasks, prompts, messages of libraries), safe for a terminal or a page."""

import difflib
import json
import re
import reprlib
from collections.abc import Iterable
from typing import Any


# C0 and C1 controls, DEL, and the marks that reverse or hide what stands around them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)


def visible(text: str) -> str:
    """One line without control characters: line breaks and tabs become spaces, others their escape (`\\x1b`)."""
    return _CONTROL.sub(
        lambda match: " " if match[0] in "\n\t\r" else match[0].encode("unicode_escape").decode(), text
    )


def without_html(markdown: str) -> str:
    """Markdown in which no `<` or `&` outside code begins a tag or an entity."""
    parts, end = [], 0
    for span in _CODE_SPAN.finditer(markdown):
        parts += [re.sub(r"(?<!\\)([<&])", r"\\\1", markdown[end : span.start()]), span[0]]
        end = span.end()
    return "".join([*parts, re.sub(r"(?<!\\)([<&])", r"\\\1", markdown[end:])])


def cut(text: str, most: int = 200) -> str:
    """Text of at most `most` characters; a longer one loses its middle, because a message ends with the cure."""
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"


def short(value: Any) -> str:
    """A value as Python spells it, in at most 80 characters, whatever it holds, itself too."""
    one = reprlib.Repr()
    one.maxlevel, one.maxlist, one.maxdict, one.maxstring, one.maxlong, one.maxother = 2, 4, 4, 60, 60, 60
    try:
        return cut(one.repr(value), 80)
    except ValueError:  # an integer of more digits than Python spells
        return "a number of thousands of digits"


def quoted(prompt: Any, length: int = 80) -> str:
    """The last message of a prompt, on one line, quoted and cut."""
    text = prompt[-1].get("content", prompt[-1]) if isinstance(prompt, list) and prompt else prompt
    text = " ".join(str(text).split())
    return repr(text if len(text) <= length else text[: length - 1] + "…")


def nearest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"`, or an empty string; upper and lower case are alike."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def parse_json(content: str) -> Any:
    """
    A JSON value. Raises `json.JSONDecodeError`: it is not JSON, or is cut off; another `ValueError`: it is JSON, and
    is nested deeper or holds a longer number than can be read.
    """
    try:
        return json.loads(content)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:  # Python makes no integer of so many digits
        json.loads(content, parse_int=str)  # the rest may be cut off
        raise ValueError("it holds a whole number of thousands of digits") from None
