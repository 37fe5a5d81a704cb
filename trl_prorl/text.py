"""Untrusted text, made safe for a terminal or a page."""

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


# C0 and C1 controls, DEL, line separators, characters without width or with a writing direction, and surrogates, which
# file names have for bytes that are not UTF-8.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
# Markdown's special characters. `_` within a word has no effect; `:`, `@` and `www.` make links without brackets.
_MARKS = re.compile(r"([\\`*{}\[\]<>&#|!~$:@]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.)", re.IGNORECASE)
LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")  # the Hub's names of licences: apache-2.0, mit, other


def visible(text: str) -> str:
    """Return one line: line breaks and tabs become spaces, other control characters their escape (`\\x1b`)."""
    return _CONTROL.sub(_make_visible, text)


def visible_lines(text: str) -> str:
    """Return text whose line breaks stay; each line as by [`visible`]."""
    return "\n".join(map(visible, text.split("\n")))


def _make_visible(match: re.Match) -> str:
    if match[0] in "\n\t\r":
        return " "
    return match[0].encode("unicode_escape").decode()


def last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a completion's last message; empty if it is a tool call."""
    return str(messages[-1].get("content") or "")


def shell_quote(text: str) -> str:
    """
    Quote text as one shell word that can be copied from the screen: control characters as `$'…'`, which bash and zsh
    read.
    """
    if not _CONTROL.search(text):
        return shlex.quote(text)
    spelt = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{_CONTROL.sub(_spell_bytes, spelt)}'"


def _spell_bytes(match: re.Match) -> str:
    is_byte = "\udc80" <= match[0] <= "\udcff"  # as Python decodes a file name
    return "".join(
        f"\\x{byte:02x}" for byte in match[0].encode(errors="surrogateescape" if is_byte else "surrogatepass")
    )


def shell_words(command: str) -> list[str]:
    """
    Split a shell command from a file; `;` and `$(` are characters of a word. A command with an unclosed quote is one
    word.
    """
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def plain_markdown(text: str) -> str:
    return _MARKS.sub(r"\\\1", visible(text))


def code_span(text: str) -> str:
    """Return Markdown that shows a line as code, even with backticks."""
    line = visible(text)
    if "`" not in line:
        return f"`{line}`"
    fence = _fence(line, 1)
    return f"{fence} {line} {fence}"


def code_block(text: str, language: str = "") -> str:
    """Return Markdown that shows lines as code, even with backticks."""
    lines = visible_lines(text)
    fence = _fence(lines, 3)
    return f"{fence}{language}\n{lines}\n{fence}"


def _fence(text: str, least: int) -> str:
    return "`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0))


def cut(text: str, most: int = 200) -> str:
    """Shorten text by removing its middle: a message ends with the cure."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[: half - 1]}…{text[-half:]}"


def short(value: Any) -> str:
    """Return the `repr` of any value in at most 80 characters."""
    try:
        return cut(repr(value), 80)
    except (ValueError, RecursionError):  # an integer with more digits than Python converts
        return f"{type(value).__name__} too large to be shown"


def one_line(value: Any) -> str:
    """Return a value's text without line breaks and repeated spaces."""
    return " ".join(str(value).split())


def quoted(prompt: Any) -> str:
    """Return the last message of a prompt, on one line, quoted and shortened."""
    if isinstance(prompt, list) and prompt:
        prompt = prompt[-1].get("content", prompt[-1])
    return short(one_line(prompt))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"`, or an empty string; case is ignored."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def parse_json(content: str) -> Any:
    """
    Return a JSON value.

    Raises:
        `json.JSONDecodeError`: It is not JSON.
        `ValueError`: Too deep, or too long a number.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
