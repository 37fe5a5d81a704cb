"""Constraints on a text that a program can check, in the manner of IFEval (Zhou et al. 2023, arXiv 2311.07911)."""

import re
import string
from collections.abc import Callable
from typing import NamedTuple


# A line that does nothing but separate paragraphs.
SEPARATOR = re.compile(r"(?m)^[ \t]*\*\*\*[ \t]*$")
BULLET = re.compile(r"(?m)^[ \t]*- +\S")
PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
SENTENCE_END = re.compile(r"[.!?][\"'”’»)\]*_]*(?=\s|$)")
SIGNS = string.punctuation + "“”‘’„«»…–—"


def words(text: str) -> list[str]:
    """The words of a text in lower case, without surrounding signs; a lone sign such as a bullet is no word."""
    return [word for word in (part.strip(SIGNS) for part in text.casefold().split()) if word]


def has_word_count(text: str, n: int) -> bool:
    return len(words(text)) == n


def has_word_range(text: str, low: int, high: int) -> bool:
    return low <= len(words(text)) <= high


def has_keywords(text: str, keywords: list[str]) -> bool:
    return set(keywords) <= set(words(text))


def has_word_times(text: str, word: str, n: int) -> bool:
    return words(text).count(word) == n


def lacks_word(text: str, word: str) -> bool:
    return word not in words(text)


def lacks_commas(text: str) -> bool:
    return "," not in text


def is_lower(text: str) -> bool:
    return text == text.lower()


def is_upper(text: str) -> bool:
    return text == text.upper()


def has_bullets(text: str, n: int) -> bool:
    return len(BULLET.findall(text)) == n


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


def starts_with(text: str, word: str) -> bool:
    return words(text)[:1] == [word]


def ends_with(text: str, phrase: str) -> bool:
    wanted = phrase.split()
    return words(text)[-len(wanted) :] == wanted


def has_letter(text: str, letter: str, n: int) -> bool:
    return text.casefold().count(letter) >= n


def has_placeholders(text: str, n: int) -> bool:
    return len(PLACEHOLDER.findall(text)) >= n


class Constraint(NamedTuple):
    """
    Attributes:
        slot (`str`): a question has at most one constraint of a slot, so that its constraints do not contradict one
            another.
        text (`str`): the sentence of the prompt, to be formatted with the parameters.
        check (`Callable[..., bool]`): whether a text fulfils the constraint, given the parameters by name.
    """

    slot: str
    text: str
    check: Callable[..., bool]


CONSTRAINTS = {
    "word_count": Constraint("length", "Use exactly {n} words.", has_word_count),
    "word_range": Constraint("length", "Use at least {low} and at most {high} words.", has_word_range),
    "keywords": Constraint("include", "Use each of these words: {keywords}.", has_keywords),
    "word_times": Constraint("include", 'Use the word "{word}" exactly {n} times.', has_word_times),
    "no_word": Constraint("exclude", 'Do not use the word "{word}".', lacks_word),
    "no_commas": Constraint("exclude", "Do not use any comma.", lacks_commas),
    "lower": Constraint("case", "Write in lower-case letters only.", is_lower),
    "upper": Constraint("case", "Write in CAPITAL letters only.", is_upper),
    "bullets": Constraint("layout", 'Write exactly {n} bullet points: lines that start with "- ".', has_bullets),
    "paragraphs": Constraint(
        "layout", "Write exactly {n} paragraphs with a line of *** between them.", has_paragraphs
    ),
    "title": Constraint("layout", "The first line is a title in double angle brackets, <<like this>>.", has_title),
    "sentences": Constraint("layout", "Write exactly {n} sentences.", has_sentences),
    "start": Constraint("layout", 'Start with the word "{word}".', starts_with),
    "end": Constraint("end", 'End with exactly these words: "{phrase}".', ends_with),
    "letter": Constraint("count", 'Use the letter "{letter}" at least {n} times.', has_letter),
    "placeholders": Constraint(
        "count", "Include at least {n} placeholders in square brackets, such as [name].", has_placeholders
    ),
}


def describe(kind: str, parameters: dict) -> str:
    """The sentence of the prompt."""
    shown = {key: ", ".join(value) if isinstance(value, list) else value for key, value in parameters.items()}
    return CONSTRAINTS[kind].text.format(**shown).replace("exactly 1 times", "exactly once")


def fulfils(text: str, kind: str, parameters: dict) -> bool:
    """Whether the text fulfils the constraint; a text without any word fulfils none."""
    return bool(words(text)) and CONSTRAINTS[kind].check(text, **parameters)
