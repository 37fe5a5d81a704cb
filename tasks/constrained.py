"""Short texts of a given form, with many correct answers."""

import json
import re
from collections.abc import Mapping
from random import Random

from trl_prorl.tasks.generated import GeneratedTask


LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORD = re.compile("[a-z]{2,}")


def has_initials(text: str, letters: str) -> bool:
    """Return whether a text has, for each of `letters` in order, one word of two or more letters starting with it."""
    words = text.lower().split()
    return all(WORD.fullmatch(word) for word in words) and [word[0] for word in words] == [*letters]


def has_lengths(text: str, count: int, length: int, letter: str) -> bool:
    """Return whether a text consists of `count` different words of `length` letters that all start with `letter`."""
    words = text.lower().split()
    matching = [word for word in set(words) if WORD.fullmatch(word) and len(word) == length and word[0] == letter]
    return len(words) == len(matching) == count


def has_keys(text: str, keys: str) -> bool:
    """Return whether a text is a JSON object with exactly these one-letter keys, each once. Values do not matter."""
    try:
        # Pairs, because a dict would hide a key that occurs twice.
        pairs = json.loads(text, object_pairs_hook=lambda pairs: ("object", [key for key, _ in pairs]))
    except (ValueError, RecursionError):
        return False
    return isinstance(pairs, tuple) and sorted(pairs[1]) == sorted(keys)


CHECKS = {"initials": has_initials, "lengths": has_lengths, "keys": has_keys}


class Constrained(GeneratedTask):
    """
    Write a text of a given form: `3 words of 2+ letters starting with b q t`, `JSON object with exactly the keys a k`.

    Level L, 1 to 8, requires 2 to L + 2 words or keys. There are three equally frequent kinds of questions: words with
    given first letters, different words of one length and first letter, and JSON. Every text of that form is correct.
    """

    name = "constrained"

    def sample(self, rng: Random) -> tuple[str, str, dict]:
        kind = rng.choice(list(CHECKS))
        count = rng.randint(2, self.level + 2)
        if kind == "initials":
            letters = "".join(rng.choices(LETTERS, k=count))
            prompt = f"{count} words of 2+ letters starting with {' '.join(letters)}"
            answer = " ".join(f"{letter}a" for letter in letters)
            wanted = {"letters": letters}
        elif kind == "lengths":
            length = rng.randint(3, 9)
            letter = rng.choice(LETTERS)
            prompt = f"{count} different words of {length} letters starting with {letter}"
            answer = " ".join(letter + "a" * (length - 2) + last for last in LETTERS[:count])
            wanted = {"count": count, "length": length, "letter": letter}
        else:
            keys = "".join(sorted(rng.sample(LETTERS, k=count)))
            prompt = f"JSON object with exactly the keys {' '.join(keys)}"
            answer = json.dumps(dict.fromkeys(keys, 0))
            wanted = {"keys": keys}
        return prompt, answer, {"form": json.dumps({"kind": kind, **wanted})}

    def verify(self, completion: str, row: Mapping) -> bool:
        form = json.loads(row["form"])
        return CHECKS[form.pop("kind")](completion.strip(), **form)
