"""Signs, which a program can check, that a text is English about its topic; no sign is paid by a reward."""

import functools
import re
from collections.abc import Callable
from importlib.util import find_spec


WORD = re.compile(r"\w+(?:'\w+)?")
LEAST_WORDS = 0.9  # share of a text that has to be in the dictionary


def tokens(text: str) -> list[str]:
    """The words and numbers of a text in lower case."""
    return WORD.findall(text.casefold().replace("’", "'"))


def names(text: str, topic: str) -> bool:
    """Whether a text has the last word of a topic, "street" of "a quiet street", in the singular or the plural."""
    noun = topic.split()[-1].removesuffix("s")
    return any(token.removesuffix("'s").removesuffix("s") == noun for token in tokens(text))


def is_english(text: str, known: Callable[[str], bool]) -> bool:
    """Whether at least 90 % of a text's words and numbers are in a dictionary; an empty text is none."""
    found = tokens(text)
    count = sum(known(token.removesuffix("'s")) or known(token) for token in found)
    return bool(found) and count >= LEAST_WORDS * len(found)


def repeats(text: str) -> bool:
    """Whether the same three words follow one another twice."""
    found = tokens(text)
    triples = list(zip(found, found[1:], found[2:], strict=False))
    return len(set(triples)) < len(triples)


def makes_sense(text: str, topic: str, known: Callable[[str], bool]) -> bool:
    """
    Whether a text names its topic, is English, and does not repeat itself.

    Args:
        text (`str`): The text.
        topic (`str`): "the sea"; its own words count as words of the dictionary.
        known (`Callable[[str], bool]`): Whether a word in lower case is in the dictionary.
    """
    own = set(tokens(topic))
    return names(text, topic) and is_english(text, lambda word: word in own or known(word)) and not repeats(text)


@functools.cache
def english_words() -> Callable[[str], bool]:
    """
    A dictionary: 160,000 English words with their inflections, that come with pyspellchecker (MIT).

    Raises:
        `ValueError`: pyspellchecker is not installed.
    """
    if find_spec("spellchecker") is None:
        raise ValueError(
            "the option sense needs a list of English words: `pip install pyspellchecker` (`trl-prorl smollm2` does)"
        )
    from spellchecker import SpellChecker

    return SpellChecker().word_frequency.dictionary.__contains__
