"""Constraints on a text that a program can check, similar to IFEval (Zhou et al. 2023, arXiv 2311.07911)."""

import re
import string
from collections.abc import Callable
from typing import NamedTuple


# A line that only separates paragraphs.
SEPARATOR = re.compile(r"(?m)^[ \t]*\*\*\*[ \t]*$")
BULLET = re.compile(r"(?m)^[ \t]*- +\S")
PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
SENTENCE_END = re.compile(r"[.!?][\"'”’»)\]*_]*(?=\s|$)")
SIGNS = string.punctuation + "“”‘’„«»…–—"


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without surrounding punctuation; a bullet alone is not a word."""
    return [word for word in (part.strip(SIGNS) for part in text.casefold().split()) if word]


def has_paragraphs(text: str, n: int) -> bool:
    parts = SEPARATOR.split(text)
    return len(parts) == n and all(words(part) for part in parts)


def has_title(text: str) -> bool:
    line = text.strip().partition("\n")[0].strip()
    inside = line[2:-2]
    return line == f"<<{inside}>>" and not set(inside) & set("<>") and bool(words(inside))


def has_sentences(text: str, n: int) -> bool:
    *sentences, rest = SENTENCE_END.split(text)
    return sum(bool(words(sentence)) for sentence in sentences) == n and not rest.strip()


def ends_with(text: str, phrase: str) -> bool:
    wanted = phrase.split()
    return words(text)[-len(wanted) :] == wanted


class Constraint(NamedTuple):
    """
    Attributes:
        slot (`str`): a question has at most one constraint per slot, so its constraints do not contradict each other.
        text (`str`): the sentence of the prompt, a format string for the parameters.
        check (`Callable[..., bool]`): returns whether a text fulfils the constraint, given the parameters by name.
    """

    slot: str
    text: str
    check: Callable[..., bool]


CONSTRAINTS = {
    "word_count": Constraint("length", "Use exactly {n} words.", lambda text, n: len(words(text)) == n),
    "word_range": Constraint(
        "length",
        "Use at least {low} and at most {high} words.",
        lambda text, low, high: low <= len(words(text)) <= high,
    ),
    "keywords": Constraint(
        "include", "Use each of these words: {keywords}.", lambda text, keywords: set(keywords) <= set(words(text))
    ),
    "word_times": Constraint(
        "include", 'Use the word "{word}" exactly {n} times.', lambda text, word, n: words(text).count(word) == n
    ),
    "no_word": Constraint("exclude", 'Do not use the word "{word}".', lambda text, word: word not in words(text)),
    "no_commas": Constraint("exclude", "Do not use any comma.", lambda text: "," not in text),
    "lower": Constraint("case", "Write in lower-case letters only.", lambda text: text == text.lower()),
    "upper": Constraint("case", "Write in CAPITAL letters only.", lambda text: text == text.upper()),
    "bullets": Constraint(
        "layout",
        'Write exactly {n} bullet points: lines that start with "- ".',
        lambda text, n: len(BULLET.findall(text)) == n,
    ),
    "paragraphs": Constraint(
        "layout", "Write exactly {n} paragraphs with a line of *** between them.", has_paragraphs
    ),
    "title": Constraint("layout", "The first line is a title in double angle brackets, <<like this>>.", has_title),
    "sentences": Constraint("layout", "Write exactly {n} sentences.", has_sentences),
    "start": Constraint("layout", 'Start with the word "{word}".', lambda text, word: words(text)[:1] == [word]),
    "end": Constraint("end", 'End with exactly these words: "{phrase}".', ends_with),
    "letter": Constraint(
        "count",
        'Use the letter "{letter}" at least {n} times.',
        lambda text, letter, n: text.casefold().count(letter) >= n,
    ),
    "placeholders": Constraint(
        "count",
        "Include at least {n} placeholders in square brackets, such as [name].",
        lambda text, n: len(PLACEHOLDER.findall(text)) >= n,
    ),
}


def describe(kind: str, parameters: dict) -> str:
    """Write the sentence of the prompt."""
    spelt = {key: ", ".join(value) if isinstance(value, list) else value for key, value in parameters.items()}
    return CONSTRAINTS[kind].text.format(**spelt).replace("exactly 1 times", "exactly once")


def fulfils(text: str, kind: str, parameters: dict) -> bool:
    """Return whether the text fulfils the constraint. A text without any word fulfils no constraint."""
    return bool(words(text)) and CONSTRAINTS[kind].check(text, **parameters)
