"""What `trl-prorl train` prints without a recipe: families of recipes and variants, or with `--all` every recipe."""

import textwrap
from itertools import groupby
from pathlib import Path

from ..variants import VARIANTS
from .shipped_recipes import shipped_recipes


WIDTH = 79
USAGE = "usage: trl-prorl train RECIPE [--KEY VALUE ...]"
# In the order in which a newcomer would try them.
FAMILIES = {
    "tiny": "0.7 M parameters, CPU, minutes",
    "smollm2": "SmolLM2-135M, CPU; first run `trl-prorl smollm2`",
    "prorl_mix": "SmolLM2-135M on ProRL's five kinds of tasks, CPU",
    "gsm8k": "Qwen2.5-0.5B on GSM8K, one GPU; gsm8k/cpu: Coder-1.5B on a CPU",
}
SHOWN = {"plain": "plain", "control": "control", "variantA": "A", "variantB": "B", "variantC": "C"}


def short_list() -> str:
    """Return families, variants, and the command that lists the rest, on one screen."""
    lines = [
        USAGE,
        "",
        "RECIPE is a YAML file, or a shipped recipe FAMILY/VARIANT:",
        "",
        "  trl-prorl train tiny/plain --max_steps 20",
        "",
        "Families:",
    ]
    for family, text in FAMILIES.items():
        lines.append(f"  {family:<11}{text}")
    lines += ["", "Variants:"]
    for name, variant in SHOWN.items():
        lines.append(f"  {name:<11}{VARIANTS[variant].recipe}")
    lines += [
        "",
        f"All {len(shipped_recipes())} recipes (optimizer resets, published schemes, event-triggered",
        "resets, LoRA growth, multi-turn tasks):  trl-prorl train --all",
        "All keys:  trl-prorl train --help",
    ]
    return "\n".join(lines)


def whole_list() -> str:
    """Return every recipe by folder, each with the first words of its comment."""
    lines = [USAGE, "", "RECIPE is a YAML file, or a shipped recipe FOLDER/NAME, for example tiny/variantA:"]
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
    """Return the first sentences of a recipe's leading comment: whole lines, up to the end of a sentence."""
    words = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# "))
        if line.endswith((".", "?")):
            break
    return " ".join(words)
