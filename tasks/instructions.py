"""Follow instructions that a program can check."""

import functools
import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from random import Random

from trl_prorl.tasks.base import check_choice
from trl_prorl.tasks.constraints import CONSTRAINTS, describe, fulfils, words
from trl_prorl.tasks.generated import GeneratedTask


REWARDS = ("exact", "share")
TOPICS = (
    "a bicycle, a bridge, a garden, a harbour, a kitchen, a lighthouse, a long journey, a market, a mountain, a new "
    "job, a piano, a quiet street, a railway station, a rainy day, a school, a small island, a snowstorm, an old "
    "clock, autumn, bees, bread, coffee, dreams, fishing, friendship, glass, maps, music, paper, rivers, sleep, "
    "spring, stars, tea, the city at night, the desert, the first day of a holiday, the moon, the sea, trees, water, "
    "winter"
).split(", ")
WORDS = (
    "always answer blue bright build carry child clear cloud cold corner deep door dream early earth evening field "
    "fire follow forest garden gentle gold green ground happy heart hidden hour house island kind lake language leaf "
    "letter light little long lost market meadow memory middle morning mountain narrow night open orange paper "
    "pattern people plain quiet rain remember river road round season secret seven shadow shore silent silver simple "
    "slow small song south spring stone story strong summer table thread tower travel under valley village voice walk "
    "warm water white wild window winter wonder wood yellow young"
).split()


class Instructions(GeneratedTask):
    """
    Write a short text about a topic that meets several checkable constraints.

    Level L, 1 to 8, has 1 + L // 2 constraints (length, words to use or avoid, capitals, layout, ending, letters,
    placeholders) and texts of about 8 + 4 L words. The reward checks only the constraints, not the meaning.

    Args:
        level (`int`, *optional*, defaults to `3`): difficulty, from 1 to 8.
        reward (`str`, *optional*, defaults to `"exact"`): `"exact"` (all constraints or nothing) or `"share"` (the
            share of constraints met).
        sense (`bool`, *optional*, defaults to `False`): to be correct, a text must also name its topic, consist of at
            least 90 % dictionary words, and not repeat any three words in a row. *The reward does not change*, so it
            can be hacked: texts without sense get full reward too.

    Raises:
        `ValueError`: If an option is invalid, or no dictionary is installed.
    """

    name = "instructions"

    def __init__(self, level: int = 3, reward: str = "exact", sense: bool = False):
        super().__init__(level)
        check_choice("reward", reward, REWARDS)
        if not isinstance(sense, bool):
            raise ValueError(f"sense={sense!r} must be true or false")
        self._reward = reward
        self._known = english_words() if sense else None

    def sample(self, rng: Random) -> tuple[str, str, dict]:
        slots = sorted({constraint.slot for constraint in CONSTRAINTS.values()})
        kinds = []
        for slot in rng.sample(slots, 1 + self.level // 2):
            kinds_of_slot = [kind for kind, constraint in CONSTRAINTS.items() if constraint.slot == slot]
            kinds.append(rng.choice(kinds_of_slot))
        # Compose the text first and derive the constraints from it, so they can be met together.
        topic = rng.choice(TOPICS) if self._known else None
        length = rng.randint(8, 8 + 4 * self.level)
        answer, parameters = compose(rng, kinds, length, topic and topic.split()[-1])
        wishes = "\n".join(f"- {describe(kind, found)}" for kind, found in parameters.items())
        prompt = f"Write a short text about {topic or rng.choice(TOPICS)}.\n{wishes}"
        columns = {"constraints": json.dumps([{"kind": kind, **found} for kind, found in parameters.items()])}
        if topic:
            columns["topic"] = topic
        return prompt, answer, columns

    def met(self, completion: str, row: Mapping) -> list[bool]:
        """Return whether the completion meets each constraint of the row."""
        constraints = json.loads(row["constraints"])
        return [fulfils(completion, constraint.pop("kind"), constraint) for constraint in constraints]

    def verify(self, completion: str, row: Mapping) -> bool:
        if not all(self.met(completion, row)):
            return False
        return self._known is None or makes_sense(completion, row["topic"], self._known)

    def reward(self, completion: str, row: Mapping) -> float:
        met = self.met(completion, row)
        return sum(met) / len(met) if self._reward == "share" else float(all(met))


def compose(rng: Random, kinds: list[str], length: int, noun: str | None = None) -> tuple[str, dict[str, dict]]:
    """
    Write a text that meets the constraints. It makes no sense; it shows that they do not contradict each other.

    Args:
        rng (`Random`): draws the words.
        kinds (`list[str]`): the constraints.
        length (`int`): approximate number of words.
        noun (`str`, *optional*): a word that the text must contain.

    Returns:
        The text, and the parameters of each constraint by kind.
    """
    drawn = rng.choices(WORDS, k=length)
    if noun:
        drawn[rng.randrange(length)] = noun
    pieces = rng.randint(2, max(2, length // 4))
    parameters: dict[str, dict] = {kind: {"n": pieces} for kind in ("bullets", "paragraphs", "sentences")}
    if "placeholders" in kinds:
        count = rng.randint(2, 3)
        parameters["placeholders"] = {"n": count}
        for position in rng.sample(range(1, length - 2), count):
            drawn[position] = f"[{drawn[position]}]"
    if "word_times" in kinds:
        repeated = rng.choice([word for word in WORDS if word not in drawn and f"[{word}]" not in drawn])
        count = rng.randint(1, 3)
        parameters["word_times"] = {"word": repeated, "n": count}
        plain = [position for position, word in enumerate(drawn) if word in WORDS and word != noun]
        for position in rng.sample(plain, count):
            drawn[position] = repeated
    text = lay_out(drawn, kinds, pieces)
    if "upper" in kinds:
        text = text.upper()
    elif "lower" not in kinds:
        text = text[:1].upper() + text[1:]
    written = words(text)
    count = len(written)
    parameters |= {
        "word_count": {"n": count},
        "word_range": {"low": count - rng.randint(0, 3), "high": count + rng.randint(0, 3)},
        "keywords": {"keywords": sorted(rng.sample(sorted(set(written)), 3))},
        "no_word": {"word": rng.choice([word for word in WORDS if word not in written])},
        "start": {"word": written[0]},
        "end": {"phrase": " ".join(written[-rng.randint(2, 4) :])},
    }
    letter = rng.choice(sorted(set(text.casefold()) & set("abcdefghilmnoprstuwy")))
    parameters["letter"] = {"letter": letter, "n": text.casefold().count(letter)}
    return text, {kind: parameters.get(kind, {}) for kind in kinds}


def lay_out(drawn: list[str], kinds: list[str], pieces: int) -> str:
    """Arrange words as a text; bullet points, paragraphs and sentences get `pieces` parts."""
    size = len(drawn) // pieces
    ends = [*range(size, size * pieces, size), len(drawn)]
    lines = [" ".join(drawn[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    if "bullets" in kinds:
        return "\n".join(f"- {line}" for line in lines)
    if "paragraphs" in kinds:
        return "\n***\n".join(lines)
    if "sentences" in kinds:
        return " ".join(f"{line}." for line in lines)
    if "title" in kinds:
        return f"<<{lines[0]}>>\n{' '.join(lines[1:])}"
    return " ".join(lines) + "."


# Checks for `sense`: is the text English, and about its topic? The reward does not use them.

WORD = re.compile(r"\w+(?:'\w+)?")
MIN_KNOWN = 0.9  # minimum share of a text's words that must be in the dictionary


def tokens(text: str) -> list[str]:
    """Return the words and numbers of a text in lower case."""
    return WORD.findall(text.casefold().replace("’", "'"))


def names(text: str, topic: str) -> bool:
    """
    Return whether a text contains the last word of the topic ("street" for "a quiet street"), in singular or plural.
    """
    noun = topic.split()[-1].removesuffix("s")
    return any(token.removesuffix("'s").removesuffix("s") == noun for token in tokens(text))


def is_english(text: str, known: Callable[[str], bool]) -> bool:
    """Return whether at least 90 % of a text's words and numbers are in a dictionary; `False` for an empty text."""
    found = tokens(text)
    count = sum(known(token.removesuffix("'s")) or known(token) for token in found)
    return bool(found) and count >= MIN_KNOWN * len(found)


def repeats(text: str) -> bool:
    """Return whether any three consecutive words occur twice."""
    found = tokens(text)
    triples = list(zip(found, found[1:], found[2:], strict=False))
    return len(set(triples)) < len(triples)


def makes_sense(text: str, topic: str, known: Callable[[str], bool]) -> bool:
    """
    Return whether a text names its topic, is English, and does not repeat itself.

    Args:
        text (`str`): the text.
        topic (`str`): the topic, such as "the sea". Its own words count as dictionary words.
        known (`Callable[[str], bool]`): returns whether a word in lower case is in the dictionary.
    """
    own = set(tokens(topic))
    return names(text, topic) and is_english(text, lambda word: word in own or known(word)) and not repeats(text)


@functools.cache
def english_words() -> Callable[[str], bool]:
    """
    Return a lookup of 160,000 English words with their inflections, from pyspellchecker (MIT).

    Raises:
        `ValueError`: If pyspellchecker is not installed.
    """
    if find_spec("spellchecker") is None:
        raise ValueError(
            "sense=True needs a list of English words. Run `pip install pyspellchecker`, or `trl-prorl smollm2`"
        )
    from spellchecker import SpellChecker

    return SpellChecker().word_frequency.dictionary.__contains__
