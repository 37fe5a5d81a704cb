"""What README.md and docs/performance.md say of cards: sentences from their numbers, or that there are none yet."""

import json
import re
import textwrap
from pathlib import Path

from trl_prorl.eval.stepcost.arms import BASELINE


BEGIN, END = "<!-- Of GPUs: written by eval.gpu_check. -->", "<!-- The end of what is written. -->"
WIDTH = 119
CODE = re.compile("`[^`]*`")
NONE_YET = "Not yet measured on a GPU: `make gpu-check` measures it ([how]({gpu}README.md))."
# Which files quote the cards: what comes first, where the pages are from there, and the indentation.
QUOTED = {
    "README.md": (
        "Every figure for which no card is named was measured on CPUs, with small models. ",
        "docs/gpu/",
        "",
    ),
    "docs/performance.md": ("", "gpu/", ""),
}


def quote(root: Path) -> None:
    """Write what is known of all cards into the files that quote them, where they have a place for it."""
    cards = sorted((root / "docs" / "gpu").glob("*.json"))
    for name, (first, pages, indent) in QUOTED.items():
        path = root / name
        text = path.read_text() if path.is_file() else ""
        before, began, rest = text.partition(BEGIN)
        _, ended, after = rest.partition(END)
        if began and ended:
            said = first + sentences(cards, pages)
            said = CODE.sub(lambda code: code[0].replace(" ", "\0"), said)  # a command stays in one line
            wrapped = textwrap.wrap(said, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
            lines = [before + BEGIN, *(indent + line.replace("\0", " ") for line in wrapped), indent + END + after]
            path.write_text("\n".join(lines))


def sentences(cards: list[Path], pages: str) -> str:
    """Of every card its speed against TRL's and how many checks hold, or that none has been measured."""
    return " ".join(of_card(card, pages) for card in cards) or NONE_YET.format(gpu=pages)


def of_card(card: Path, pages: str) -> str:
    """A card in a sentence, with a link to its page."""
    parts = json.loads(card.read_text())
    checks = [check["passed"] for part in parts.values() for check in part["checks"]]
    name = parts["machine"]["facts"]["device"]
    said = f"On one [{name}]({pages}{card.stem}.md) {sum(checks)} of {len(checks)} checks hold"
    costs = parts.get("cost", {"facts": {}})["facts"]
    rows = next(iter(costs.values()), {})
    if not {BASELINE, "A packed", "B packed"} <= set(rows):
        return f"{said}; what a step costs there has not been measured."
    a, b = (rows[BASELINE]["step"] / rows[arm]["step"] for arm in ("A packed", "B packed"))
    return (
        f"{said}; scoring and update together run {a:.2f} times as fast as TRL's with a reference in A, and {b:.2f} "
        f"times in B, which is a different objective ({next(iter(costs))})."
    )
