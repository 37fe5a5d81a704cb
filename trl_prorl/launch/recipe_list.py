"""What `trl-prorl train` prints without a recipe: families of recipes and their arms, or with `--all` every recipe."""

import textwrap
from itertools import groupby
from pathlib import Path

from ..variants import VARIANTS
from .shipped_recipes import shipped_recipes


WIDTH = 79
USAGE = "usage: trl-prorl train RECIPE [--KEY VALUE ...]"
# What a newcomer chooses from, in the order in which one would try them: the model, the machine, what comes first.
FAMILIES = {
    "tiny": "0.7 M parameters, on a CPU, minutes",
    "smollm2": "135 M, on a CPU; first run `trl-prorl smollm2`",
    "prorl_mix": "the same, on ProRL's five kinds of tasks",
    "gsm8k": "Qwen2.5-0.5B on GSM8K, one GPU; or gsm8k/cpu",
}
ARMS = {"plain": "plain", "control": "control", "variantA": "A", "variantB": "B", "variantC": "C"}


def short_list() -> str:
    """Return the families, their arms, and how to see the rest, on one screen."""
    lines = [
        USAGE,
        "",
        "RECIPE is a file of yours, or a family and an arm of these, which come with",
        "the package: `trl-prorl train tiny/plain --max_steps 20`.",
        "",
        "Families:",
    ]
    for family, text in FAMILIES.items():
        lines.append(f"  {family:<29}{text}")
    lines += ["", "Arms:"]
    for arm, variant in ARMS.items():
        lines.append(f"  {arm:<29}{VARIANTS[variant].recipe}")
    lines += [
        "",
        f"`trl-prorl train --all` lists all {len(shipped_recipes())}: other treatments of Adam's state,",
        "published schemes, resets by events, growth, several turns.",
        "`trl-prorl train --help` lists the keys.",
    ]
    return "\n".join(lines)


def whole_list() -> str:
    """Return every recipe by folder, each with the first words of its comment."""
    lines = [USAGE, "", "RECIPE is a file, or one of these names with its folder, such as tiny/variantA:"]
    recipes = shipped_recipes()
    by_folder = sorted(recipes, key=lambda name: name.rpartition("/"))
    for folder, names in groupby(by_folder, key=lambda name: name.rpartition("/")[0]):
        lines += ["", f"  {folder}/"]
        for name in names:
            stem = name.rpartition("/")[2]
            text = f"    {stem:<18} {first_words(recipes[name])}"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent=" " * 23, break_on_hyphens=False)
    return "\n".join(lines)


def first_words(file: Path) -> str:
    """Return the first line of the comment with which a recipe begins, and what its last sentence has below it."""
    words = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# "))
        if line.endswith((".", "?")):
            break
    return " ".join(words)
