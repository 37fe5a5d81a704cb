"""Tables of many short texts, written in few lines."""

import re


def pairs(table, key=str):
    """
    `key ≟ text ¦ text ¦ other key ≟ text`, over several lines: a tuple of key and text for each text. ⏎ is a line
    break, ␣ a space at an end, ∅ an empty text, or no key.
    """
    found, of = [], None
    for entry in re.split(r" ¦ |(?: ¦)?\n\s*", table.strip()):
        *begins, text = entry.replace("⏎", "\n").replace("␣", " ").split(" ≟ ")
        of = (key(*begins) if begins != ["∅"] else None) if begins else of
        found.append((of, "" if text == "∅" else text))
    return found
